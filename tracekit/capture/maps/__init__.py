"""Kernel maps: which modules each kernel of an Inductor graph serves, and a range around each of its runs.

>>> with compiled_maps():  # doctest: +SKIP
...     torch.compile(model)(x)

Read the modules in this order: ``inductor.py`` watches Inductor compile and load graphs, ``traced.py`` numbers the
modules of a traced graph, ``owners.py`` finds which of them each kernel serves, ``runs.py`` opens the ranges, and
``paths.py`` finds the modules of a run.

Nothing here imports Dynamo or Inductor before the program does, because both are slow to import.
"""

from tracekit.capture.maps.inductor import cache_tag, compiled_maps, maps_of_recording

__all__ = ["cache_tag", "compiled_maps", "maps_of_recording"]

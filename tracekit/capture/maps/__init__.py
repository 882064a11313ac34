"""Kernel maps: which modules each kernel of an Inductor graph serves, and a range around each of its runs.

>>> with compiled_maps():  # doctest: +SKIP
...     torch.compile(model)(x)

``README.md`` in this folder explains the modules. Nothing here imports Dynamo or Inductor before the program does,
because both are slow to import.
"""

from tracekit.capture.maps.inductor import cache_tag, compiled_maps, maps_of_recording

__all__ = ["cache_tag", "compiled_maps", "maps_of_recording"]

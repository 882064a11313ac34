"""Kernel maps: which modules each kernel of an Inductor graph serves, and a range around each of its runs.

>>> with compiled_maps():  # doctest: +SKIP
...     torch.compile(model)(x)

Read the modules in this order: ``inductor.py`` watches Inductor compile and load graphs, ``traced.py`` numbers the
modules of a traced graph, ``owners.py`` says which of them each kernel serves, ``runs.py`` opens the ranges,
``roots.py`` and ``inputs.py`` say which modules a run is of, ``marked.py`` knows the paths that layer markers give.

Nothing here imports Dynamo or Inductor before the program does, because both are slow to import.
"""

from __future__ import annotations

from tracekit.capture.maps.switch import cache_tag, compiled_maps, maps_of_recording, unsupported

__all__ = ["cache_tag", "compiled_maps", "maps_of_recording", "unsupported"]

"""Marks, runs and records a model. Beside it, only models that the self-test records import torch.

* :func:`layer_markers` puts a range around every call of every module of a model;
* :func:`layer_marker` marks one call by hand;
* :func:`compiled_maps` records which modules the kernels of compiled graphs serve;
* :func:`step` marks an iteration, and :func:`operator_markers` every operator;
* :class:`Nvtx`, :class:`Itt` and :class:`MemoryEmitter` are emitters: where the ranges go;
* :func:`unheard` explains why no tool records them.

This code runs inside the user's job. It does not import pandas, pyarrow or SQLAlchemy, and it raises nothing while
the model runs.
"""

import torch  # noqa: F401 - before all parts, because what records this process imports them once torch is imported

from tracekit.capture.emit import Emitter, Itt, MemoryEmitter, Nvtx, itt_emitter, nvtx_emitter, unheard
from tracekit.capture.layers import SKIPPED, LayerMarkers, MarkedCall, layer_marker, layer_markers
from tracekit.capture.maps import compiled_maps
from tracekit.capture.steps import operator_markers, step

__all__ = [
    "SKIPPED",
    "Emitter",
    "Itt",
    "LayerMarkers",
    "MarkedCall",
    "MemoryEmitter",
    "Nvtx",
    "compiled_maps",
    "itt_emitter",
    "layer_marker",
    "layer_markers",
    "nvtx_emitter",
    "operator_markers",
    "step",
    "unheard",
]

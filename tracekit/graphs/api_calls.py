"""Roles of CUDA API calls in a graph capture: what each call becomes when captured, by the beginning of its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracekit.arrays.columns import integers
from tracekit.recording.tables import graph_launch_names, names_starting

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints
    from tracekit.recording.tables import Recording

#: Roles. ``UNNAMED`` is a call whose name the report does not hold: it may become a node.
OTHER, KERNEL_LAUNCH, MEMCPY_CALL, MEMSET_CALL, NODE_CALL = range(5)
UNNAMED, BEGINS_CAPTURE, ENDS_CAPTURE, GRAPH_LAUNCH = range(5, 9)
_HIP = ("hipLaunch", "hipModuleLaunch", "hipExtLaunch", "hipExtModuleLaunch", "hipDrvLaunch")
#: Names of each role by their beginnings; where several fit, the last row wins.
_PREFIXES: tuple[tuple[int, tuple[str, ...]], ...] = (
    (KERNEL_LAUNCH, ("cudaLaunch", "cuLaunch", *_HIP)),
    (MEMCPY_CALL, ("cudaMemcpy", "cuMemcpy", "hipMemcpy", "hipDrvMemcpy")),
    (MEMSET_CALL, ("cudaMemset", "cuMemset", "hipMemset")),
    (NODE_CALL, tuple(f"{api}{call}" for api in ("cuda", "cu", "hip") for call in ("GraphAdd", "LaunchHostFunc"))),
    (BEGINS_CAPTURE, ("cudaStreamBeginCapture", "cuStreamBeginCapture", "hipStreamBeginCapture")),
    (ENDS_CAPTURE, ("cudaStreamEndCapture", "cuStreamEndCapture", "hipStreamEndCapture")),
)
#: Copies that become several nodes at once.
_BATCHES = ("cudaMemcpyBatch", "cudaMemcpy3DBatch", "cuMemcpyBatch", "cuMemcpy3DBatch")


def roles_of(recording: Recording) -> Ints:
    """The role of every launch."""
    names = recording.names
    role = np.full(len(names) + 1, OTHER, dtype=np.int8)
    for number, prefixes in _PREFIXES:
        role[names_starting(names, prefixes)] = number
    role[graph_launch_names(names)] = GRAPH_LAUNCH
    role[-1] = UNNAMED
    return role[integers(recording.launches, "name")]


def makes_node(role: Ints) -> Flags:
    """Which calls become nodes when captured, or add a node to a graph."""
    return (role >= KERNEL_LAUNCH) & (role <= UNNAMED)


def is_batch(recording: Recording, launch: Ints) -> Flags:
    """Which of some launches copy in batches, so that one call becomes several nodes."""
    batches = np.asarray(names_starting(recording.names, _BATCHES), dtype=np.int64)
    return np.isin(integers(recording.launches, "name")[launch], batches)

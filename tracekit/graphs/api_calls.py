"""CUDA API calls by the beginnings of their names: what each becomes in a graph capture, and which change instances."""

import numpy as np

from tracekit.arrays.codes import lookup
from tracekit.arrays.groups import minima
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.recording.tables import KERNEL, MEMCPY, MEMSET, Recording, graph_launch_names, names_starting

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
BATCHES = ("cudaMemcpyBatch", "cudaMemcpy3DBatch", "cuMemcpyBatch", "cuMemcpy3DBatch")
#: The kind of work that a captured call does when it is replayed; -1 for other calls.
KIND_OF_ROLE = np.full(GRAPH_LAUNCH + 1, -1, dtype=np.int8)
KIND_OF_ROLE[[KERNEL_LAUNCH, MEMCPY_CALL, MEMSET_CALL]] = KERNEL, MEMCPY, MEMSET
#: API calls that change what an instance runs on the device. Not among them: calls that change a graph, since its
#: instances stay as they are; calls about host functions, events and semaphores, which are no device work; and calls
#: that disable a node, since the other nodes stay in their places.
_UPDATES = tuple(
    f"{api}GraphExec{change}"
    for api in ("cuda", "cu", "hip")
    for change in (
        "Update",
        "NodeSetParams",
        "KernelNodeSetParams",
        "MemcpyNodeSetParams",
        "MemsetNodeSetParams",
        "ChildGraphNodeSetParams",
    )
)


def roles_of(recording: Recording) -> Ints:
    """The role of every launch."""
    names = recording.call_names
    role = np.full(len(names) + 1, OTHER, dtype=np.int8)
    for number, prefixes in _PREFIXES:
        role[names_starting(names, prefixes)] = number
    role[graph_launch_names(names)] = GRAPH_LAUNCH
    role[-1] = UNNAMED
    return role[recording.launches.name]


def makes_node(role: Ints) -> Flags:
    """Which calls become nodes when captured, or add a node to a graph."""
    return (role >= KERNEL_LAUNCH) & (role <= UNNAMED)


def launches_named(recording: Recording, prefixes: tuple[str, ...]) -> Flags:
    """Which launches have a name that begins in one of these ways."""
    names = np.asarray(names_starting(recording.call_names, prefixes), dtype=np.int64)
    return np.isin(recording.launches.name, names)


def replayed_after_update(recording: Recording, launch: Rows) -> Rows:
    """Rows of the work that was launched after any instance in its process had been updated.

    The report does not record which instance was updated, nor which of its nodes.
    """
    launches, first = recording.launches, first_updates(recording)
    late = launches.start_ns >= first[recording.threads.process[launches.thread]]
    return np.flatnonzero(lookup(late, launch, missing=False))


def first_updates(recording: Recording) -> Ints:
    """When the first update in each process returned; the largest int64 where there is none."""
    launches, updates = recording.launches, is_update(recording)
    process = recording.threads.process[launches.thread[updates]]
    return minima(process, launches.end_ns[updates], recording.threads.process_pid.size)


def is_update(recording: Recording) -> Flags:
    """Which launches are calls that change what an instance runs."""
    return launches_named(recording, _UPDATES)

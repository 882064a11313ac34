"""Updates of instances of CUDA graphs: work replayed after a call that changes what an instance runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracekit.arrays.columns import integers
from tracekit.arrays.groups import minima
from tracekit.arrays.lookups import lookup
from tracekit.recording.tables import names_starting

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.recording.tables import Recording


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


def replayed_after_update(recording: Recording, launch: Rows) -> Ints:
    """Rows of the work that was launched after any instance in its process had been updated.

    The report does not say which instance was updated, nor which of its nodes.
    """
    launches = recording.launches
    process = recording.threads.process[integers(launches, "thread")]
    late = integers(launches, "start_ns") >= first_updates(recording)[process]
    return np.flatnonzero(lookup(late, launch, missing=False))


def first_updates(recording: Recording) -> Ints:
    """When the first update in each process returned; the largest int64 where there is none."""
    launches = recording.launches
    updates = is_update(recording)
    process = recording.threads.process[integers(launches, "thread")[updates]]
    return minima(process, integers(launches, "end_ns")[updates], recording.threads.process_pid.size)


def is_update(recording: Recording) -> Flags:
    """Which launches are calls that change what an instance runs."""
    names = np.asarray(names_starting(recording.names, _UPDATES), dtype=np.int64)
    return np.isin(integers(recording.launches, "name"), names)

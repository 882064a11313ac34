"""The call that was open when a node of a CUDA graph was captured, however that is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracekit.intervals import innermost
from tracekit.recording import integers, names_starting

if TYPE_CHECKING:
    from tracekit.arrays import Ints, Rows
    from tracekit.recording import Recording
    from tracekit.trace import Evidence

#: API calls that change what an instance runs on the device. Those that change a graph change no instance of it; those
#: about host functions, events and semaphores no device work; to disable a node lets run what is left where it was.
_UPDATES = tuple(
    f"{api}GraphExec{what}"
    for api in ("cuda", "cu")
    for what in (
        "Update", "NodeSetParams", "KernelNodeSetParams", "MemcpyNodeSetParams", "MemsetNodeSetParams",
        "ChildGraphNodeSetParams",
    )
)  # fmt: skip


def call_at_capture(evidence: Evidence, work: Ints, *, by_order: bool) -> Ints:
    """The innermost call around the launch that became the node of each piece of work, or -1.

    Args:
        evidence: The trace.
        work: Rows of work.
        by_order: Whether of nodes whose place the order of launches tells, or their descent.
    """
    origins, calls = evidence.origins, evidence.calls
    told = np.flatnonzero(origins.known & (origins.by_order == by_order))
    call = np.full(origins.start.size + 1, -1, dtype=np.int64)
    call[told] = innermost(
        calls.start, calls.end, calls.parent, origins.start[told], origins.end[told]
    )
    return call[evidence.lineage.of_work[work]]


def replayed_after_update(recording: Recording, launch: Rows) -> Ints:
    """Pieces of work that were launched when some instance in their process had been updated.

    Which one it was, and which of its nodes, the report does not say.
    """
    launches = recording.launches
    updates = np.isin(
        integers(launches, "name"), np.asarray(names_starting(recording.names, _UPDATES), np.int64)
    )
    process = recording.threads.process[integers(launches, "thread")]
    end = integers(launches, "end_ns")
    first = np.full(recording.threads.process_pid.size, np.iinfo(np.int64).max)
    np.minimum.at(first, process[updates], end[updates])
    late = integers(launches, "start_ns") >= first[process]
    return np.flatnonzero(np.append(late, False)[launch])

"""Calls on one thread that wait while an autograd thread works for them.

PyTorch runs backward passes on threads of its own while the thread that called ``backward()`` waits. If exactly one
other thread of the process is inside a call then, and neither launches nor begins or ends a range itself, other than to
evaluate nodes of autograd, the work is that call's. A thread inside a library's range does not wait. This is inferred,
and only where plain ranges or operators are the nodes: marked modules identify their own backward work.
"""

import numpy as np

from tracekit.arrays.intervals import innermost, parents
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.recording.axis import ThreadAxis
from tracekit.recording.tables import Launches, Ranges, Recording
from tracekit.trace.autograd_nodes import AutogradNodes
from tracekit.trace.plain.keys import Extents, HierarchyKey, of_libraries

_FIRST, _LAST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


def waiting_calls(
    recording: Recording, axis: ThreadAxis, keyed: HierarchyKey, calls: Extents, asked: Ranges | Launches
) -> Rows:
    """For what autograd threads did the innermost call on the one other thread of the process that waits, or -1.

    ``keyed`` knows the autograd threads; ``asked`` are ranges or launches on any threads.
    """
    process = np.where(np.isin(asked.thread, keyed.autograd), recording.threads.process[asked.thread], -1)
    candidates = np.zeros(process.size, dtype=np.int64)
    waiting = np.full(process.size, -1, dtype=np.int64)
    calling = np.unique(recording.ranges.thread[calls.row]) if (process >= 0).any() else process[:0]
    library = of_libraries(recording)[calls.row]
    for number in np.setdiff1d(calling, keyed.autograd).tolist():
        at = np.flatnonzero(process == recording.threads.process[number])
        before, after, idle = _open_calls(
            recording, axis, keyed.nodes, calls, number, (asked.start_ns[at], asked.end_ns[at])
        )
        candidates[at] += (before >= 0) | (after >= 0)
        idle &= (before >= 0) & ~library[before]
        waiting[at[idle]] = before[idle]
    return np.where(candidates == 1, waiting, -1)


def _open_calls(
    recording: Recording,
    axis: ThreadAxis,
    nodes: AutogradNodes | None,
    calls: Extents,
    number: int,
    asked: tuple[Ints, Ints],
) -> tuple[Rows, Rows, Flags]:
    """The innermost call that a thread was inside of as stretches began and as they ended; and when it was idle."""
    ranges, launches = recording.ranges, recording.launches
    own = np.flatnonzero((ranges.thread[calls.row] == number) & _outside(nodes, calls.start, calls.end))
    on = np.flatnonzero((ranges.thread == number) & _outside(nodes, axis.range_start, axis.range_end))
    launched = np.flatnonzero((launches.thread == number) & _outside(nodes, axis.launch_start, axis.launch_end))
    ended = on[axis.ends_here[on] & ~ranges.open[on]]
    begun, returned = axis.launch_start[launched], np.sort(axis.launch_end[launched])
    at = np.concatenate((axis.range_start[on], axis.range_end[ended], begun, returned))
    times = ranges.start_ns[on], ranges.end_ns[ended], launches.start_ns[launched], np.sort(launches.end_ns[launched])
    order = np.argsort(at, kind="stable")
    # A call that never ended need not have ended when its thread was last seen: the thread may have waited since.
    open_ = ranges.open[calls.row[own]] & (calls.end[own] == axis.range_end[calls.row[own]])
    start, end = calls.start[own], np.where(open_, _LAST, calls.end[own])
    at = np.concatenate(([_FIRST], at[order], [_LAST]))
    # Between two events nothing changes on the thread.
    event_ns = np.concatenate(times)[order]
    first, last = np.searchsorted(event_ns, asked[0], side="right"), np.searchsorted(event_ns, asked[1], side="left")
    above, _ = parents(start, end)
    before, after = (np.append(own, -1)[innermost(start, end, above, at[row], at[row + 1])] for row in (first, last))
    launching = np.searchsorted(begun, at[first], side="right") > np.searchsorted(returned, at[first], side="right")
    return before, after, np.asarray((first == last) & ~launching)


def _outside(nodes: AutogradNodes | None, start: Ints, end: Ints) -> Flags:
    return np.ones(start.size, dtype=bool) if nodes is None else np.asarray(nodes.around(start, end) < 0)

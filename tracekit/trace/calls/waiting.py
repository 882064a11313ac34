"""Calls on one thread that wait while a thread of autograd works for them.

PyTorch runs backward passes on threads of its own while the thread that called ``backward()`` waits. If exactly one
other thread of the process is inside a call then, and neither launches nor begins or ends a range itself, other than to
evaluate nodes of autograd, the work is that call's. A thread inside a library's range does not wait. This is inferred,
and only where plain ranges or operators are the nodes: marked modules identify their own backward work.
"""

from typing import NamedTuple

import numpy as np

from tracekit.arrays.intervals import innermost, nesting_order, parents
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.recording.axis import ThreadAxis
from tracekit.recording.tables import Launches, Ranges, Recording
from tracekit.trace.autograd_nodes import AutogradNodes
from tracekit.trace.plain.keys import Extents, HierarchyKey, of_libraries


def waiting_calls(
    recording: Recording, axis: ThreadAxis, keyed: HierarchyKey, calls: Extents, asked: Ranges | Launches
) -> Rows:
    """For what threads of autograd did the innermost call on the one other thread of the process that waits, or -1.

    Args:
        recording: The recording.
        axis: Its ranges and launches on one axis.
        keyed: Which threads are autograd's, and the nodes that ran.
        calls: The calls.
        asked: Some of its ranges or launches, on any threads.
    """
    process = np.where(np.isin(asked.thread, keyed.autograd), recording.threads.process[asked.thread], -1)
    library = of_libraries(recording)[calls.row]
    candidates = np.zeros(process.size, dtype=np.int64)
    waiting = np.full(process.size, -1, dtype=np.int64)
    calling = np.unique(recording.ranges.thread[calls.row])
    own_calls = _outside(keyed.nodes, calls.start, calls.end)
    own_launches = _outside(keyed.nodes, axis.launch_start, axis.launch_end)
    for number in np.setdiff1d(calling, keyed.autograd).tolist():
        at = np.flatnonzero(process == recording.threads.process[number])
        if not at.size:
            continue
        thread = _thread(recording, axis, calls, number, (own_calls, own_launches))
        start_ns, end_ns = asked.start_ns[at], asked.end_ns[at]
        before, after = thread.call_at(start_ns), thread.call_at(end_ns)
        candidates[at] += (before >= 0) | (after >= 0)
        # Who waits neither begins nor ends a range, nor launches anything, nor is inside a library.
        idle = (before >= 0) & (before == after) & ~library[before] & ~thread.active_in(start_ns, end_ns)
        waiting[at[idle]] = before[idle]
    return np.where(candidates == 1, waiting, -1)


def _outside(nodes: AutogradNodes | None, start: Ints, end: Ints) -> Flags:
    """Which intervals lie in no evaluation of a node."""
    return np.ones(start.size, dtype=bool) if nodes is None else np.asarray(nodes.around(start, end) < 0)


class _Thread(NamedTuple):
    """What one thread was inside of, and launched.

    Attributes:
        call: Rows of its calls, by (start, -end).
        start_ns: When each began.
        end_ns: When it ended.
        launch_start_ns: When its launches began, ascending.
        launch_end_ns: When the latest of these and all earlier ones had returned.
    """

    call: Rows
    start_ns: Ints
    end_ns: Ints
    launch_start_ns: Ints
    launch_end_ns: Ints

    def call_at(self, at_ns: Ints) -> Rows:
        """The innermost call that is open at each time, or -1."""
        parent, _ = parents(self.start_ns, self.end_ns)
        return np.append(self.call, -1)[innermost(self.start_ns, self.end_ns, parent, at_ns, at_ns)]

    def active_in(self, start_ns: Ints, end_ns: Ints) -> Flags:
        """Whether it began a call or was launching something itself in each interval."""
        before = np.searchsorted(self.launch_start_ns, end_ns)
        launches = np.append(self.launch_end_ns, -1)[before - 1] > start_ns
        began = np.searchsorted(self.start_ns, [start_ns, end_ns], side="right")
        return np.asarray(launches | (began[0] < began[1]))


def _thread(
    recording: Recording, axis: ThreadAxis, calls: Extents, number: int, own_work: tuple[Flags, Flags]
) -> _Thread:
    """A thread, with those of its calls and launches that are its own work."""
    ranges, launches = recording.ranges, recording.launches
    own = np.flatnonzero((ranges.thread[calls.row] == number) & own_work[0])
    on_thread = np.flatnonzero(ranges.thread == number)
    launched = np.flatnonzero((launches.thread == number) & own_work[1])
    # A call may end before its range does, where another range begins or ends.
    at = [
        axis.range_start[on_thread],
        axis.range_end[on_thread],
        axis.launch_start[launched],
        axis.launch_end[launched],
    ]
    at_ns = [
        ranges.start_ns[on_thread],
        ranges.end_ns[on_thread],
        launches.start_ns[launched],
        launches.end_ns[launched],
    ]
    start_ns, end_ns = _times((calls.start[own], calls.end[own]), np.concatenate(at), np.concatenate(at_ns))
    # Of one that never ended it is not known that it did when its thread was last seen: that may wait since then.
    never_ended = ranges.open[calls.row[own]]
    end_ns[never_ended & (calls.end[own] == axis.range_end[calls.row[own]])] = np.iinfo(np.int64).max
    order = nesting_order(start_ns, end_ns)
    return _Thread(
        call=own[order],
        start_ns=start_ns[order],
        end_ns=end_ns[order],
        launch_start_ns=at_ns[2],
        launch_end_ns=np.maximum.accumulate(at_ns[3]),
    )


def _times(positions: tuple[Ints, ...], at: Ints, at_ns: Ints) -> list[Ints]:
    order = np.argsort(at)
    return [at_ns[order][np.searchsorted(at, each, sorter=order)] for each in positions]

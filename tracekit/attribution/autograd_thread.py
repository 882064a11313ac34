"""``autograd_thread``: what a thread of autograd launched belongs to the range that waits for the backward pass.

PyTorch runs backward passes on threads of its own while the thread that called ``backward()`` waits. If exactly one
other thread of the process is inside a range then, and neither launches nor begins or ends a range itself, the work is
that range's. Who is inside a library's range does not wait. This is inferred, and only where plain ranges or operators
are the nodes: a marked module says which backward work is its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.columns import integers
from tracekit.arrays.intervals import innermost, nesting_order, parents
from tracekit.markers.base import RangeMarker
from tracekit.markers.kinds import MODULES
from tracekit.trace.phases import AUTOGRAD_THREAD
from tracekit.trace.plain.keys import of_libraries

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.trace.evidence import Evidence

NAME = "autograd_thread"
_TIMES = ("start_ns", "end_ns")


def owners(evidence: Evidence, work: Ints) -> Ints:
    """The innermost call around the launch on the one thread that waits; -1 where there is none, or several."""
    owner = np.full(work.size, -1, dtype=np.int64)
    if evidence.keyed.by == MODULES:
        return owner
    threads = _autograd_threads(evidence)
    if not threads.size:
        return owner
    launch = evidence.launched.launch[work]
    thread = integers(evidence.recording.launches, "thread")
    at = np.flatnonzero((launch >= 0) & ~evidence.launched.replayed[work])
    at = at[np.isin(thread[launch[at]], threads) & (evidence.call_at_launch[launch[at]] < 0)]
    rows, of_row = np.unique(launch[at], return_inverse=True)
    owner[at] = _waiting_calls(evidence, rows, threads)[of_row]
    return owner


def _autograd_threads(evidence: Evidence) -> Ints:
    """Rows of threads that run backward passes for others: by name, or as they have ranges of backward passes alone."""
    recording = evidence.recording
    named = [row for row, name in recording.thread_names.items() if AUTOGRAD_THREAD.fullmatch(name)]
    engine = np.array([phase.engine for phase in evidence.phased.texts], dtype=bool)
    passes = evidence.phased.at(engine[evidence.phased.text])
    backward = np.unique(passes.thread)
    thread = integers(recording.ranges, "thread")
    others = np.flatnonzero(np.isin(thread, backward) & ~_of_backward_passes(evidence))
    inside = passes.around(evidence.axis.range_start[others], evidence.axis.range_end[others]) >= 0
    return np.union1d(np.array(named, dtype=np.int64), np.setdiff1d(backward, thread[others[~inside]]))


def _of_backward_passes(evidence: Evidence) -> Flags:
    """Which ranges are operators, or what a framework does in a backward pass."""
    decoded, ranges = evidence.decoded, evidence.recording.ranges
    backward = [isinstance(marker, RangeMarker) and marker.phase == "backward" for marker in decoded.markers]
    which = np.append(np.array([*backward, False])[decoded.of_text], np.False_)[integers(ranges, "text")]
    which |= evidence.operators.by_torch[integers(ranges, "text")]
    return np.asarray(which)


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

    def launches_at(self, start_ns: Ints, end_ns: Ints) -> Flags:
        """Whether it was launching something itself in each interval."""
        before = np.searchsorted(self.launch_start_ns, end_ns)
        return np.append(self.launch_end_ns, -1)[before - 1] > start_ns


def _waiting_calls(evidence: Evidence, rows: Rows, autograd: Ints) -> Rows:
    """The innermost call on the one other thread of its process that is inside a call at each of some launches."""
    launches, threads = evidence.recording.launches, evidence.recording.threads
    start_ns, end_ns = (integers(launches, name)[rows] for name in ("start_ns", "end_ns"))
    process = threads.process[integers(launches, "thread")[rows]]
    library = of_libraries(evidence.recording)[evidence.calls.range_row]
    candidates = np.zeros(rows.size, dtype=np.int64)
    waiting = np.full(rows.size, -1, dtype=np.int64)
    calling = np.unique(integers(evidence.recording.ranges, "thread")[evidence.calls.range_row])
    for number in np.setdiff1d(calling, autograd).tolist():
        at = np.flatnonzero(process == threads.process[number])
        if not at.size:
            continue
        thread = _thread(evidence, number)
        before, after = thread.call_at(start_ns[at]), thread.call_at(end_ns[at])
        candidates[at] += (before >= 0) | (after >= 0)
        # Who waits neither begins nor ends a range, nor launches anything, nor is inside a library.
        idle = (before >= 0) & (before == after) & ~library[before] & ~thread.launches_at(start_ns[at], end_ns[at])
        waiting[at[idle]] = before[idle]
    return np.where(candidates == 1, waiting, -1)


def _thread(evidence: Evidence, number: int) -> _Thread:
    calls, axis, launches = evidence.calls, evidence.axis, evidence.recording.launches
    ranges = evidence.recording.ranges
    own = np.flatnonzero(integers(ranges, "thread")[calls.range_row] == number)
    on_thread = np.flatnonzero(integers(ranges, "thread") == number)
    launched = np.flatnonzero(integers(launches, "thread") == number)
    # A call may end before its range does, where another range begins or ends.
    at = [
        axis.range_start[on_thread],
        axis.range_end[on_thread],
        axis.launch_start[launched],
        axis.launch_end[launched],
    ]
    at_ns = [
        integers(table, name)[rows] for table, rows in ((ranges, on_thread), (launches, launched)) for name in _TIMES
    ]
    start_ns, end_ns = _times((calls.start[own], calls.end[own]), np.concatenate(at), np.concatenate(at_ns))
    # Of one that never ended it is not known that it did when its thread was last seen: that may wait since then.
    never_ended = np.asarray(ranges.column("open"))[calls.range_row[own]]
    end_ns[never_ended & (calls.end[own] == axis.range_end[calls.range_row[own]])] = np.iinfo(np.int64).max
    order = nesting_order(start_ns, end_ns)
    return _Thread(
        call=own[order],
        start_ns=start_ns[order],
        end_ns=end_ns[order],
        launch_start_ns=at_ns[2],
        launch_end_ns=np.maximum.accumulate(at_ns[3]),
    )


def _times(positions: tuple[Ints, ...], at: Ints, at_ns: Ints) -> list[Ints]:
    """Positions on the axis as times, by those of which both are known."""
    order = np.argsort(at)
    return [at_ns[order][np.searchsorted(at, each, sorter=order)] for each in positions]

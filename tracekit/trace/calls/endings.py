"""Where each range ended: as it was recorded, but on threads that have left ranges open.

Such a thread is known by a range that has no end, or by a module or step inside itself;
:mod:`tracekit.trace.calls.unwinding` then tells the ends from the order of its pushes and pops. On all others
everything is as it was recorded.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.columns import integers
from tracekit.causes import LEFT_OPEN
from tracekit.trace.calls.balanced import seen_inside
from tracekit.trace.calls.enclosing import STEP, Event, Known
from tracekit.trace.calls.pushes import contradicted, names_of, pushes_of, seen_on
from tracekit.trace.calls.unwinding import unwound

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.recording.axis import Timeline
    from tracekit.recording.tables import Recording
    from tracekit.trace.calls.pushes import Names, Pushes
    from tracekit.trace.calls.unwinding import Unwound
    from tracekit.trace.decoding import Decoded

#: How often a thread is unwound anew because its pops say that the pushes were misunderstood.
_MOST_ROUNDS = 8
#: A module that was called so often has called what it calls.
_OFTEN = 3
_BEFORE_ALL = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class Endings:
    """When ranges ended.

    Attributes:
        end: Of every range of the recording, on the axis.
        end_ns: The same as a time.
        as_recorded: Whether these are the ends that were recorded.
        doubts: Starts and ends on the axis of stretches in which it is not known what was open on the thread, and a
            row of the ranges of that thread.
    """

    end: Ints
    end_ns: Ints
    as_recorded: bool
    doubts: tuple[Ints, Ints, Rows]

    def in_doubt(self, at: Ints) -> Flags:
        """Which times on the axis lie in such a stretch, or at its end."""
        since, until, _ = self.doubts
        order = np.argsort(since, kind="stable")
        row = np.searchsorted(since[order], at) - 1
        return np.append(np.maximum.accumulate(until[order]), _BEFORE_ALL)[row] >= at


def endings_of(recording: Recording, decoded: Decoded, line: Timeline) -> Endings:
    """Tells when every range ended; calls and steps that were left open are counted."""
    names = names_of(decoded.markers)
    pushes = pushes_of(recording, decoded, line, names)
    suspects = np.unique(pushes.thread[contradicted(line, pushes, names)])
    end_ns = integers(recording.ranges, "end_ns")
    none = np.empty(0, dtype=np.int64)
    recorded = Endings(line.range_end, end_ns, as_recorded=True, doubts=(none, none, none))
    if not suspects.size:
        return recorded
    threads = [_Thread.of(recording, line, pushes, names, one) for one in suspects.tolist()]
    inside = seen_on(line, pushes, ~np.isin(pushes.thread, suspects))
    for thread in threads:
        inside += seen_inside(thread.events())
    known = _known(names, inside)
    end, end_ns = line.range_end.copy(), end_ns.copy()
    doubts = []
    for thread in threads:
        found = _unwound(thread, known)
        if found is None or not found.doubts:
            continue
        recording.tally.add("calls", LEFT_OPEN, found.left_open)
        ended = np.array(list(found.ends.items()), dtype=np.int64)
        end[ended[:, 0]] = thread.at[ended[:, 1]]
        end_ns[ended[:, 0]] = thread.at_ns[ended[:, 1]]
        doubts.append(thread.stretches(found.doubts))
    if not doubts:
        return recorded
    since, until, row = np.concatenate(doubts, axis=1)
    return Endings(end, end_ns, as_recorded=False, doubts=(since, until, row))


def _known(names: Names, inside: Counter[tuple[int, int]]) -> Known:
    above = names.above.tolist()
    called: Counter[int] = Counter()
    for (_, name), times in inside.items():
        called[name] += times
    often = {name for name, times in called.items() if times >= _OFTEN}
    shared = {name for outer, name in inside if outer != above[name]}
    return Known(above, inside, often, shared)


class _Thread(NamedTuple):
    """What one thread pushed and popped, in order.

    Attributes:
        row: The range that every event pushed, or was recorded to end.
        pushed: Whether the event is a push.
        kind: Of the range.
        name: Of the range.
        domain: Of the range.
        second: Whether it is a second range of a call.
        ends: Whether it has an end.
        at: When it happened, on the axis; last, when the thread was last seen.
        at_ns: The same as a time, without the last.
    """

    row: Rows
    pushed: Flags
    kind: Ints
    name: Ints
    domain: Ints
    second: Flags
    ends: Flags
    at: Ints
    at_ns: Ints

    @staticmethod
    def of(recording: Recording, line: Timeline, pushes: Pushes, names: Names, thread: int) -> _Thread:
        """The events of a thread. Ranges without duration contain nothing, and are left out."""
        own = np.flatnonzero(pushes.thread == thread)
        rows = pushes.rows[own]
        lasting = (line.range_end[rows] > line.range_start[rows]) | pushes.never_ended[own]
        own, rows = own[lasting], rows[lasting]
        order = _pushed_in_order(recording, line, pushes, names, own)
        own, rows = own[order], rows[order]
        popped = np.flatnonzero(~pushes.never_ended[own])
        which = np.concatenate((np.arange(own.size), popped))
        pushed = np.arange(which.size) < own.size
        at = np.where(pushed, line.range_start[rows[which]], line.range_end[rows[which]])
        order = np.lexsort((np.where(pushed, which, -which), pushed, at))
        which, pushed, at = which[order], pushed[order], at[order]
        row = rows[which]
        start_ns, end_ns = (integers(recording.ranges, name)[row] for name in ("start_ns", "end_ns"))
        launched = line.launch_end[integers(recording.launches, "thread") == thread]
        last = max(int(line.range_end[rows].max()), int(launched.max(initial=at[-1])))
        return _Thread(
            row=row,
            pushed=pushed,
            kind=pushes.kind[own[which]],
            name=pushes.name[own[which]],
            domain=integers(recording.ranges, "domain")[row],
            second=pushes.second[own[which]],
            ends=~pushes.never_ended[own[which]],
            at=np.append(at, last),
            at_ns=np.where(pushed, start_ns, end_ns),
        )

    def events(self) -> Iterator[Event]:
        """The events one by one."""
        return map(Event._make, zip(*(column.tolist() for column in self[:7]), strict=True))

    def stretches(self, between: list[tuple[int, int]]) -> Ints:
        """Start, end and some row of the stretches between events."""
        since, until = np.array(between, dtype=np.int64).T
        return np.stack((self.at[since], self.at[until], np.full(since.size, self.row[0])))


def _pushed_in_order(recording: Recording, line: Timeline, pushes: Pushes, names: Names, own: Rows) -> Rows:
    """The order in which ranges of one thread were pushed; of those that began together the outer first.

    That is the longer one; of two of one extent a step, or the shorter path. A call without an end may be inside of a
    step of another domain, however long it seems.
    """
    rows = pushes.rows[own]
    start, end = line.range_start[rows], line.range_end[rows].copy()
    steps = np.flatnonzero((pushes.kind[own] == STEP) & ~pushes.never_ended[own])
    if steps.size:
        step = steps[np.minimum(np.searchsorted(start[steps], start), steps.size - 1)]
        domain = integers(recording.ranges, "domain")[rows]
        inside = pushes.never_ended[own] & (start[step] == start) & (domain[step] != domain)
        end[inside] = np.minimum(end, end[step])[inside]
    return np.lexsort((own, names.parts[pushes.name[own]], pushes.kind[own] != STEP, -end, start))


def _unwound(thread: _Thread, known: Known) -> Unwound | None:
    """Unwinds a thread; anew where that shows what else is to be believed, or not."""
    found = None
    for _ in range(_MOST_ROUNDS):
        found = unwound(thread.events(), known)
        if found is None or (found.proven <= known.strict and found.refuted <= known.inside.keys()):
            break
        known = known._replace(inside=known.inside + Counter(found.refuted), strict=known.strict or found.proven)
    return found

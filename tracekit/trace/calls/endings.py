"""Endings of ranges: as recorded, except on threads that left ranges open.

Such a thread is recognised by a range without an end, or by a module or step inside itself. There,
:mod:`tracekit.trace.calls.unwinding` finds the ends from the order of pushes and pops.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.columns import integers
from tracekit.causes.work import LEFT_OPEN
from tracekit.trace.calls.balanced import seen_inside
from tracekit.trace.calls.enclosing import STEP, Event, Known
from tracekit.trace.calls.pushes import contradicted, names_of, pushes_of, seen_on
from tracekit.trace.calls.unwinding import unwound

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.recording.axis import ThreadAxis
    from tracekit.recording.tables import Recording
    from tracekit.trace.calls.pushes import Names, Pushes
    from tracekit.trace.calls.unwinding import Unwound
    from tracekit.trace.decoding import Decoded

#: How often a thread is unwound again because its pops show that pushes were misunderstood.
_MOST_ROUNDS = 8
#: A module that was called this often has called everything that it ever calls.
_OFTEN = 3
_BEFORE_ALL = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class Endings:
    """When ranges ended.

    Attributes:
        end: End of every range of the recording, on the axis.
        end_ns: The same as a time.
        as_recorded: Whether all of these are the recorded ends.
        doubts: Stretches in which it is not known what was open on a thread: starts and ends on the axis, and the row
            of some range of that thread.
    """

    end: Ints
    end_ns: Ints
    as_recorded: bool
    doubts: tuple[Ints, Ints, Rows]

    def in_doubt(self, at: Ints) -> Flags:
        """Which times on the axis lie in such a stretch, or at its end."""
        since, until, _ = self.doubts
        if not since.size:
            return np.zeros(at.size, dtype=bool)
        order = np.argsort(since, kind="stable")
        row = np.searchsorted(since[order], at) - 1
        return np.append(np.maximum.accumulate(until[order]), _BEFORE_ALL)[row] >= at


def endings_of(recording: Recording, decoded: Decoded, axis: ThreadAxis) -> Endings:
    """Finds when every range ended, and counts the calls and steps that were left open."""
    names = names_of(decoded.bare)
    pushes = pushes_of(recording, decoded, axis, names)
    suspects = np.unique(pushes.thread[contradicted(axis, pushes, names)])
    end_ns = integers(recording.ranges, "end_ns")
    none = np.empty(0, dtype=np.int64)
    recorded = Endings(axis.range_end, end_ns, as_recorded=True, doubts=(none, none, none))
    recording.tally.look(LEFT_OPEN.name, decides=bool(suspects.size))
    if not suspects.size:
        return recorded
    threads = [_Thread.of(recording, axis, pushes, names, thread) for thread in suspects.tolist()]
    inside = seen_on(axis, pushes, ~np.isin(pushes.thread, suspects))
    for thread in threads:
        inside += seen_inside(thread.events())
    known = _known(names, inside)
    end, end_ns = axis.range_end.copy(), end_ns.copy()
    doubts = []
    for thread in threads:
        unwinding = _unwound(thread, known)
        if unwinding is None or not unwinding.doubts:
            continue
        recording.tally.add("calls", LEFT_OPEN, unwinding.left_open)
        rows, events = np.array(list(unwinding.ends.items()), dtype=np.int64).T
        end[rows] = thread.at[events]
        end_ns[rows] = thread.at_ns[events]
        doubts.append(thread.stretches(unwinding.doubts))
    if not doubts:
        return recorded
    since, until, row = np.concatenate(doubts, axis=1)
    return Endings(end, end_ns, as_recorded=False, doubts=(since, until, row))


def _known(names: Names, inside: Counter[tuple[int, int]]) -> Known:
    """What pairs of names, each called right inside the other, prove about the names."""
    above = names.above.tolist()
    called: Counter[int] = Counter()
    for (_, name), times in inside.items():
        called[name] += times
    often = {name for name, times in called.items() if times >= _OFTEN}
    shared = {name for outer, name in inside if outer != above[name]}
    return Known(above, inside, often, shared)


class _Thread(NamedTuple):
    """The pushes and pops of one thread, in order.

    Attributes:
        row: Row of the range that the event pushed, or was recorded to end.
        pushed: Whether the event is a push.
        kind: Kind of the range.
        name: Name of the range.
        domain: Domain of the range.
        second: Whether the range is the second range of a call.
        ends: Whether the range has an end.
        at: When the event happened, on the axis; one more entry for when the thread was last seen.
        at_ns: The same as a time, without the last entry.
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
    def of(recording: Recording, axis: ThreadAxis, pushes: Pushes, names: Names, thread: int) -> _Thread:
        """The events of a thread; ranges without duration contain nothing and are ignored."""
        own = np.flatnonzero(pushes.thread == thread)
        rows = pushes.rows[own]
        own = own[(axis.range_end[rows] > axis.range_start[rows]) | pushes.never_ended[own]]
        push, pushed, at = _events_in_order(axis, pushes, _pushed_in_order(recording, axis, pushes, names, own))
        row = pushes.rows[push]
        start_ns, end_ns = (integers(recording.ranges, name)[row] for name in ("start_ns", "end_ns"))
        launch_end = axis.launch_end[integers(recording.launches, "thread") == thread]
        last_seen = max(int(axis.range_end[row].max()), int(launch_end.max(initial=at[-1])))
        return _Thread(
            row=row,
            pushed=pushed,
            kind=pushes.kind[push],
            name=pushes.name[push],
            domain=integers(recording.ranges, "domain")[row],
            second=pushes.second[push],
            ends=~pushes.never_ended[push],
            at=np.append(at, last_seen),
            at_ns=np.where(pushed, start_ns, end_ns),
        )

    def events(self) -> Iterator[Event]:
        """The events one by one."""
        return map(Event._make, zip(*(column.tolist() for column in self[:7]), strict=True))

    def stretches(self, between: list[tuple[int, int]]) -> Ints:
        """Start and end of the stretches between events, and the row of some range of the thread."""
        since, until = np.array(between, dtype=np.int64).T
        return np.stack((self.at[since], self.at[until], np.full(since.size, self.row[0])))


def _events_in_order(axis: ThreadAxis, pushes: Pushes, own: Rows) -> tuple[Rows, Flags, Ints]:
    """Pushes and pops of ranges that are sorted by push, in the order in which they happened.

    Returns:
        For each event the position of its range in ``pushes``, whether it is a push, and its time on the axis.
    """
    popped = np.flatnonzero(~pushes.never_ended[own])
    position = np.concatenate((np.arange(own.size), popped))
    pushed = np.arange(position.size) < own.size
    row = pushes.rows[own[position]]
    at = np.where(pushed, axis.range_start[row], axis.range_end[row])
    # At one time pops come before pushes; ranges pop in the reverse order of their pushes.
    order = np.lexsort((np.where(pushed, position, -position), pushed, at))
    return own[position[order]], pushed[order], at[order]


def _pushed_in_order(recording: Recording, axis: ThreadAxis, pushes: Pushes, names: Names, own: Rows) -> Rows:
    """Ranges of one thread in the order in which they were pushed; of those that began together the outer first.

    The outer one is the longer; of two of one extent the step, or the one with the shorter path. A call without an end
    may be inside a step of another domain, however long it seems.
    """
    rows = pushes.rows[own]
    start, end = axis.range_start[rows], axis.range_end[rows].copy()
    steps = np.flatnonzero((pushes.kind[own] == STEP) & ~pushes.never_ended[own])
    if steps.size:
        step = steps[np.minimum(np.searchsorted(start[steps], start), steps.size - 1)]
        domain = integers(recording.ranges, "domain")[rows]
        inside = pushes.never_ended[own] & (start[step] == start) & (domain[step] != domain)
        end[inside] = np.minimum(end, end[step])[inside]
    return own[np.lexsort((own, names.parts[pushes.name[own]], pushes.kind[own] != STEP, -end, start))]


def _unwound(thread: _Thread, known: Known) -> Unwound | None:
    """Unwinds a thread, again while that proves something about its names that was not known before."""
    unwinding = None
    for _ in range(_MOST_ROUNDS):
        unwinding = unwound(thread.events(), known)
        if unwinding is None or (unwinding.proven <= known.strict and unwinding.refuted <= known.inside.keys()):
            break
        inside = known.inside + Counter(unwinding.refuted)
        known = known._replace(inside=inside, strict=known.strict or unwinding.proven)
    return unwinding

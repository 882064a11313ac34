"""The dependencies of a report as a model, which gives back the measured times, and others if something changes.

Host threads run their calls in the order of the program, with the code between two calls as a task of its own. Device
work starts when its call has launched it, the work before it on its stream has ended, and so has what its stream was
made to wait for. Calls that block end with the work that they wait for. What was seen beyond the one of these that was
*binding* stays with that one; the others take what is usual for their kind, and never more than was seen. So nothing
moves unless something changes. (Daydream, Zhu et al., USENIX ATC 2020, has host threads and streams as such a graph.)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tracekit.analyses.whatif.recorded import Recorded
from tracekit.arrays.codes import lookup
from tracekit.arrays.types import Flags, Ints, Rows

_NEVER = np.iinfo(np.int64).min // 4
_LAUNCH, _ORDER, _WAIT = range(3)
#: What kinds of nodes come first at one time: a call ends before the next starts, which launches the work.
_EVENT_ENDS, _EVENT_STARTS, _WORK_STARTS, _MET = range(4)


@dataclass(frozen=True, slots=True)
class Tasks:
    """What takes time, and what waits for what, before or after a change; times in ns.

    Attributes:
        code: Of every event the code of its thread before it; of the first one of a thread, when it starts.
        takes: How long every event takes by itself.
        waits_for: Row of the work at which it ends, or -1.
        after_work: How long after that.
        awaited: Pairs of events and further work at which they end: the last on each stream, of a device's.
        event: Of all work its call, or -1.
        launch: How long after its call (the end of it, or the start if ``early``) it starts at the least.
        early: Whether it started before its call returned.
        before: The work before it on its stream, or -1.
        order: How long after that it starts at the least.
        lasts: How long it runs; of a collective of several ranks from the arrival of the last one.
        dependent: Pairs of work: the row that waits, the row it waits for, and how long after that it starts.
        meeting: Of all work the number of its collective of several ranks, or -1.
    """

    code: Ints
    takes: Ints
    waits_for: Rows
    after_work: Ints
    awaited: tuple[Rows, Rows]
    event: Rows
    launch: Ints
    early: Flags
    before: Rows
    order: Ints
    lasts: Ints
    dependent: tuple[Rows, Rows, Ints]
    meeting: Rows


class Times(NamedTuple):
    """When events and work start and end."""

    event_start: Ints
    event_end: Ints
    start: Ints
    end: Ints


def measured(found: Recorded) -> Times:
    """The times that were measured."""
    return Times(found.events.start, found.events.end, found.work.start, found.work.end)


def tasks(found: Recorded, meeting: Rows, *, assumed: bool = False) -> Tasks:
    """The model of reports.

    Args:
        found: The reports.
        meeting: Of all work the number of its collective of several ranks, or -1.
        assumed: Whether work that starts right when other work of another stream ends is assumed to wait for that.
    """
    events, work = found.events, found.work
    fresh = np.append(True, events.thread[1:] != events.thread[:-1])[: events.thread.size]
    code = events.start - np.where(fresh, 0, np.append(0, events.end[:-1]))
    takes = events.end - events.start
    called = lookup(events.end, work.event, _NEVER)
    early = (work.event >= 0) & (work.start < called)
    called = np.where(early, lookup(events.start, work.event, _NEVER), called)
    ended = lookup(work.end, work.before, _NEVER)
    one, other = found.waits
    if assumed:
        pairs = _assumed(found, (called, ended))
        one, other = np.append(one, pairs[0]), np.append(other, pairs[1])
    kept = work.start[one] >= work.end[other]
    one, other = one[kept], other[kept]
    waited = np.full(work.start.size, _NEVER)
    np.maximum.at(waited, one, work.end[other])
    launch, order, wait = _lags(work.start, (called, ended, waited))
    after = work.start[one] - work.end[other]
    last = work.end[other] == waited[one]
    dependent = np.where(last, wait[one], np.minimum(after, np.median(wait[one]) if one.size else 0)).astype(np.int64)
    waits_for, after_work, own = _waits(found, takes)
    met = meeting >= 0
    arrived = np.full(int(meeting.max(initial=-1)) + 1, _NEVER)
    np.maximum.at(arrived, meeting[met], work.start[met])
    begun = np.where(met, np.append(arrived, 0)[meeting], work.start)
    return Tasks(
        code, own, waits_for, after_work, _awaited(found, waits_for), work.event, launch, early,
        work.before, order, work.end - begun, (one, other, dependent), meeting,
    )  # fmt: skip


def _lags(start: Ints, ready: tuple[Ints, ...]) -> list[Ints]:
    """How long after each of its conditions work starts: what was seen for the binding one, else what is usual."""
    seen = [np.where(time > _NEVER, start - time, np.iinfo(np.int64).max) for time in ready]
    usual = [_usual(kind, seen) for kind in range(len(ready))]
    expected = np.stack([np.where(time > _NEVER, time + lag, _NEVER) for time, lag in zip(ready, usual, strict=True)])
    binding = expected.argmax(axis=0)
    return [np.where(binding == kind, lag, np.minimum(lag, usual[kind])) for kind, lag in enumerate(seen)]


#: How much later than usual work must start to wait for something that is not recorded, and how soon after that.
_LATE_NS, _SOON_NS = 1_000, 5_000


def _assumed(found: Recorded, ready: tuple[Ints, Ints]) -> tuple[Rows, Rows]:
    """Work that starts later than all recorded conditions explain, and the work of another stream that just ended."""
    work = found.work
    seen = [np.where(time > _NEVER, work.start - time, np.iinfo(np.int64).max) for time in ready]
    usual = [_usual(kind, seen) for kind in range(len(ready))]
    expected = np.max([np.where(time > _NEVER, time + lag, _NEVER) for time, lag in zip(ready, usual, strict=True)], 0)
    late = np.flatnonzero((expected > _NEVER) & (work.start - expected > _LATE_NS))
    by_end = np.lexsort((work.end, work.context))
    place = (
        np.searchsorted(
            _keyed(work.context[by_end], work.end[by_end]), _keyed(work.context[late], work.start[late]), "right"
        )
        - 1
    )
    other = by_end[np.maximum(place, 0)]
    fits = (place >= 0) & (work.context[other] == work.context[late]) & (work.stream[other] != work.stream[late])
    fits &= (work.start[late] - work.end[other] <= _SOON_NS) & (work.end[other] > expected[late])
    return late[fits], other[fits]


def _keyed(context: Rows, time: Ints) -> Ints:
    return context.astype(np.int64) << 52 | time.astype(np.int64)


def _usual(kind: int, seen: list[Ints]) -> int:
    """The usual lag where this condition was met clearly last."""
    others = np.min([lag for other, lag in enumerate(seen) if other != kind], axis=0)
    lags = seen[kind]
    clear = lags[(lags >= 0) & (lags < others)]
    return int(np.median(clear)) if clear.size else 0


def _waits(found: Recorded, takes: Ints) -> tuple[Rows, Ints, Ints]:
    """At which work calls that block end, how long after it, and how long they take by themselves."""
    events, work = found.events, found.work
    ends = lookup(work.end, events.work, _NEVER)
    began = lookup(work.start, events.work, np.iinfo(np.int64).max)
    waits_for = np.where((began < events.end) & events.blocks & (takes > 0), events.work, -1)
    binding = (waits_for >= 0) & (ends > events.start)
    after = events.end - ends
    usual_after = int(np.median(after[binding])) if binding.any() else 0
    idle = takes[(waits_for >= 0) & ~binding]
    usual_own = int(np.median(idle)) if idle.size else 0
    own = np.where(binding, np.minimum(takes, usual_own), takes)
    return waits_for, np.where(binding, after, np.minimum(after, usual_after)), own


def _awaited(found: Recorded, waits_for: Rows) -> tuple[Rows, Rows]:
    """For calls that wait for a device the last work on each of its streams that was launched before."""
    events, work = found.events, found.work
    asking = np.flatnonzero(events.everywhere & (waits_for >= 0))
    launched = lookup(events.start, work.event, _NEVER)
    pairs: list[tuple[Rows, Rows]] = [(asking[:0], asking[:0])]
    context = work.context[waits_for[asking]]
    for stream in np.unique(work.stream).tolist() if asking.size else ():
        own = np.flatnonzero(work.stream == stream)
        own = own[np.argsort(launched[own], kind="stable")]
        latest = np.maximum.accumulate(own)  # work of a stream runs in the order in which rows stand
        place = np.searchsorted(launched[own], events.start[asking]) - 1
        fits = (place >= 0) & (context == work.context[own[0]])
        pairs.append((asking[fits], latest[place[fits]]))
    return tuple(np.concatenate(column) for column in zip(*pairs, strict=True))  # type: ignore[return-value]


def played(found: Recorded, changed: Tasks) -> Times:
    """The times under the model, in one pass over all calls and work in the order in which they were measured."""
    playing = _Playing(found, changed)
    does = (playing.end_event, playing.start_event, playing.start_work, playing.meet)
    kinds, rows = _nodes(found, changed)
    for kind, row in zip(kinds.tolist(), rows.tolist(), strict=True):
        does[kind](row)
    return Times(*(np.array(column, np.int64) for column in playing.times))


class _Playing:
    """The times so far, as lists: one of Python's integers is read and written faster than one of NumPy's."""

    def __init__(self, found: Recorded, changed: Tasks) -> None:
        self._thread, self._code, self._takes = (
            column.tolist() for column in (found.events.thread, changed.code, changed.takes)
        )
        self._after_work = changed.after_work.tolist()
        self._event, self._launch, self._early = (
            column.tolist() for column in (changed.event, changed.launch, changed.early)
        )
        self._before, self._order, self._lasts = (
            column.tolist() for column in (changed.before, changed.order, changed.lasts)
        )
        waiting = np.flatnonzero(changed.waits_for >= 0)
        calls, ended_by = (
            np.append(waiting, changed.awaited[0]),
            np.append(changed.waits_for[waiting], changed.awaited[1]),
        )
        self._awaited = _lists(calls, zip(ended_by.tolist()))
        one, other, lag = changed.dependent
        self._depends = _lists(one, zip(other.tolist(), lag.tolist(), strict=True))
        met = np.flatnonzero(changed.meeting >= 0)
        self._members = _lists(changed.meeting[met], zip(met.tolist()))
        self._now = [0] * (int(found.events.thread.max(initial=-1)) + 1)
        self._event_start, self._event_end = [0] * len(self._thread), [0] * len(self._thread)
        self._start, self._end = found.work.start.tolist(), found.work.end.tolist()

    @property
    def times(self) -> tuple[list[int], list[int], list[int], list[int]]:
        return self._event_start, self._event_end, self._start, self._end

    def start_event(self, row: int) -> None:
        thread = self._thread[row]
        self._event_start[row] = at = self._now[thread] + self._code[row]
        self._event_end[row] = self._now[thread] = at + self._takes[row]

    def end_event(self, row: int) -> None:
        until = max(self._end[work] for (work,) in self._awaited[row]) + self._after_work[row]
        if until > self._event_end[row]:
            self._event_end[row] = self._now[self._thread[row]] = until

    def start_work(self, row: int) -> None:
        at = _NEVER
        if (call := self._event[row]) >= 0:
            at = (self._event_start if self._early[row] else self._event_end)[call] + self._launch[row]
        if (prior := self._before[row]) >= 0:
            at = max(at, self._end[prior] + self._order[row])
        if row in self._depends:
            at = max(at, *(self._end[other] + lag for other, lag in self._depends[row]))
        if at > _NEVER:
            self._start[row] = at
        self._end[row] = self._start[row] + self._lasts[row]

    def meet(self, number: int) -> None:
        members = self._members[number]
        arrived = max(self._start[one] for (one,) in members)
        for (one,) in members:
            self._end[one] = arrived + self._lasts[one]


def _lists(keys: Ints, values: Iterable[tuple[int, ...]]) -> dict[int, list[tuple[int, ...]]]:
    found: dict[int, list[tuple[int, ...]]] = {}
    for key, value in zip(keys.tolist(), values, strict=True):
        found.setdefault(key, []).append(value)
    return found


def _nodes(found: Recorded, changed: Tasks) -> tuple[Ints, Rows]:
    """The starts and ends of calls, the starts of work, and the arrivals of the last ranks, in the measured order."""
    events, work = found.events, found.work
    waiting = np.flatnonzero(changed.waits_for >= 0)
    launched = lookup(events.start, changed.event, _NEVER)
    met = np.flatnonzero(changed.meeting >= 0)
    arrived = np.full(int(changed.meeting.max(initial=-1)) + 1, _NEVER)
    np.maximum.at(arrived, changed.meeting[met], work.start[met])
    parts = [
        (_EVENT_ENDS, waiting, events.end[waiting]),
        (_EVENT_STARTS, np.arange(events.start.size), events.start),
        (_WORK_STARTS, np.arange(work.start.size), np.maximum(work.start, launched)),
        (_MET, np.arange(arrived.size), arrived),
    ]
    kinds, rows, times = (
        np.concatenate(column)
        for column in zip(*((np.full(part[1].size, part[0]), *part[1:]) for part in parts), strict=True)
    )
    order = np.lexsort((kinds, times))
    return kinds[order], rows[order]

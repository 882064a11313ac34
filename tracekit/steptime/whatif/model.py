"""The dependencies of a report as a model, which gives back the measured times, and others if something changes.

Host threads run their calls in the order of the program, with the code between two calls as a task of its own. Device
work starts when its call has launched it, the work before it on its stream has ended, and so has what its stream was
made to wait for. Calls that block end with the work that they wait for. What was seen beyond the one of these that was
*binding* stays with that one; the others take what is usual for their kind, and never more than was seen. So nothing
moves unless something changes. (Daydream, Zhu et al., USENIX ATC 2020, has host threads and streams as such a graph.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tracekit.arrays.codes import lookup
from tracekit.arrays.groups import counts, maxima
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.steptime.whatif.recorded import Recorded

NEVER = np.iinfo(np.int64).min // 4
_LONGEST = np.iinfo(np.int64).max


class Order(NamedTuple):
    """The places of ends of calls, starts of work and arrivals of last ranks in one order, that of the measured times.

    Nothing waits for what has a later place, so that one pass in this order gives all times.
    """

    call: Ints
    start: Ints
    arrival: Ints

    def end(self, meeting: Rows) -> Ints:
        """The place from which the end of each work is known."""
        return np.where(meeting >= 0, np.append(self.arrival, -1)[meeting], self.start)


class Conditions(NamedTuple):
    """Rows (calls, or work), the work that each waits for, and how long after its end."""

    row: Rows
    work: Rows
    lag: Ints

    def at(self, kept: Flags) -> Conditions:
        """Some of them."""
        return Conditions(*(column[kept] for column in self))

    def instead(self, work: Rows) -> Conditions:
        """The same with other work in place of each, or without the condition where that is -1."""
        return self._replace(work=work[self.work]).at(work[self.work] >= 0)


@dataclass(slots=True)
class Tasks:
    """What takes time, and what waits for what, before or after a change; times in ns.

    A change replaces columns, and leaves arrays as they are: those of several tasks are the same.
    """

    order_of: Order
    previous: Rows  # the call before each in its program, or -1
    code: Ints  # the time of host code before every call; for the first one of a program, when it starts
    takes: Ints  # how long every call takes by itself
    awaited: Conditions  # calls that end with work
    event: Rows  # the call of all work, or -1
    launch: Ints  # how long after its call (the end of it, or the start if ``early``) it starts at least
    early: Flags  # whether it started before its call returned
    before: Rows  # the work before it on its stream, or -1
    order: Ints  # how long after that it starts at least
    lasts: Ints  # how long it runs; of a collective of several ranks from the arrival of the last one
    dependent: Conditions  # work that waits for other work than that before it on its stream
    meeting: Rows  # for all work, the number of its collective of several ranks, or -1
    alone: Ints  # when work starts that waits for nothing
    node_after: tuple[int, int]  # how long after the node before on its stream a node of a replay starts, and at most

    def depend(self, rows: Rows, others: Rows) -> None:
        """Some work also waits for other work, where that ended before by the measured times."""
        known = self.order_of.end(self.meeting)[others] < self.order_of.start[rows]
        columns = rows[known], others[known], np.zeros(np.count_nonzero(known), np.int64)
        self.dependent = Conditions(*map(np.append, self.dependent, columns))


class Times(NamedTuple):
    """When calls and work start and end."""

    event_start: Ints
    event_end: Ints
    start: Ints
    end: Ints


def measured(found: Recorded) -> Times:
    """The times that were measured."""
    return Times(found.events.start, found.events.end, found.work.start, found.work.end)


def tasks(found: Recorded, meeting: Rows, *, assumed: str = "none", waiting: bool = False) -> Tasks:
    """The model of reports.

    Args:
        found: The reports.
        meeting: For all work, the number of its collective of several ranks, or -1.
        assumed: Which unrecorded dependencies between streams are assumed: ``none``; ``late``, of work that starts
            right when other work ends, later than all else explains; or ``all``, on everything that had ended before.
        waiting: Whether calls of which that is not recorded wait for all work that had ended before they did.
    """
    events, work = found.events, found.work
    if waiting:
        events = events._replace(work=np.where(events.work < 0, events.perhaps, events.work))
        found = found._replace(events=events)
    places = _order(found, meeting)
    known_from = places.end(meeting)
    before = _if(known_from[work.before] < places.start, work.before)
    code = events.start - np.where(events.previous >= 0, events.end[events.previous], 0)
    called, early, event = _called(found, places)
    ended = lookup(work.end, before, NEVER)
    one, other = found.waits
    if assumed != "none":
        pairs = _assumed(found, (called, ended), early, everything=assumed == "all")
        one, other = np.append(one, pairs[0]), np.append(other, pairs[1])
    kept = (work.start[one] >= work.end[other]) & (known_from[other] < places.start[one])
    one, other = one[kept], other[kept]
    waited = np.maximum(maxima(one, work.end[other], work.start.size), NEVER)
    (launch, order, wait), node_after = _lags(found, (called, ended, waited), early)
    after = work.start[one] - work.end[other]
    usual = median(wait[one])
    dependent = np.where(work.end[other] == waited[one], wait[one], np.minimum(after, usual))
    takes, awaited = _waits(found, places, known_from)
    lasts = work.end - np.where(meeting >= 0, lookup(arrivals(meeting, work.start), meeting), work.start)
    return Tasks(
        places, events.previous, code, takes, awaited, event, launch, early,
        before, order, lasts, Conditions(one, other, dependent), meeting, work.start, node_after,
    )  # fmt: skip


def _if(holds: Flags, rows: Rows) -> Rows:
    return np.where(holds & (rows >= 0), rows, -1)


def arrivals(meeting: Rows, start: Ints) -> Ints:
    """When the last rank began each collective."""
    met = np.flatnonzero(meeting >= 0)
    return maxima(meeting[met], start[met], int(meeting.max(initial=-1)) + 1)


def latest(groups: tuple[Rows, Rows], stream: Rows, time: Ints, before: Ints) -> tuple[Rows, Rows]:
    """On each stream of the group of a time the last row with an earlier one: places of these times, and rows.

    ``groups`` are those of the rows, and those of the times.
    """
    pairs = [(stream[:0], stream[:0])]
    for number in np.unique(stream).tolist():
        own = np.flatnonzero(stream == number)
        asking = np.flatnonzero(groups[1] == groups[0][own[0]])
        at_the_least = np.minimum.accumulate(time[own][::-1])[::-1]
        place = np.searchsorted(at_the_least, before[asking]) - 1
        pairs.append((asking[place >= 0], own[place[place >= 0]]))
    places, rows = (np.concatenate(column) for column in zip(*pairs, strict=True))
    return places, rows


def _order(found: Recorded, meeting: Rows) -> Order:
    events, work = found.events, found.work
    calls = np.lexsort((events.start, events.end))
    start = np.maximum(work.start, lookup(events.start, work.event, NEVER))
    arrived = arrivals(meeting, start)
    # A call ends before work that starts at that time, and the last to arrive has begun.
    order = np.argsort(np.concatenate([events.end[calls], start, arrived]), kind="stable")
    place = np.empty(order.size, np.int64)
    place[order] = np.arange(order.size)
    of_calls, starts, of_arrivals = np.split(place, [calls.size, calls.size + start.size])
    by_row = np.empty(calls.size, np.int64)
    by_row[calls] = of_calls
    return Order(by_row, starts, of_arrivals)


def _called(found: Recorded, places: Order) -> tuple[Ints, Flags, Rows]:
    """From when work could start by its call, whether that is its start as any did before it returned, and the call."""
    events, work = found.events, found.work
    called = lookup(events.end, work.event, NEVER)
    early = np.append(counts(work.event[work.start < called], events.end.size) > 0, False)[work.event]
    known_from = np.where(early, lookup(events.previous, work.event), work.event)
    event = _if(lookup(places.call, known_from) < places.start, work.event)
    called = np.where(early, lookup(events.start, event, NEVER), called)
    return np.where(event >= 0, called, NEVER), early & (event >= 0), event


def _lags(found: Recorded, ready: tuple[Ints, ...], early: Flags) -> tuple[list[Ints], tuple[int, int]]:
    """How long after each condition work starts: as seen after the binding one, else as usual; and nodes of replays."""
    seen, usual, node_after = _usual(found, ready, early)
    binding = _expected(ready, usual).argmax(axis=0)
    lags = [np.where(binding == kind, lag, np.minimum(lag, usual[kind])) for kind, lag in enumerate(seen)]
    return lags, node_after


def _expected(ready: tuple[Ints, ...], usual: list[Ints]) -> Ints:
    return np.stack([np.where(time > NEVER, time + lag, NEVER) for time, lag in zip(ready, usual, strict=True)])


#: The condition that the work before on the stream has ended.
_ORDER = 1
#: On GPUs of today, where a report never shows it: how long after the work before nodes of a replay start, and other
#: work; and the longest after a call returned, and after one began which goes on.
_NODE_AFTER_NS, _AFTER_NS, _LAUNCH_NS, _EARLY_NS = 500, 1_000, 2_000, 8_000
#: Work that starts so many times later after its launch than usual waited for something else.
_CLEARLY = 2


def _usual(found: Recorded, ready: tuple[Ints, ...], early: Flags) -> tuple[list[Ints], list[Ints], tuple[int, int]]:
    """How long after each condition work started, how long usually where it was met clearly last, and nodes of replays.

    That of launches is another one where it counts from the start of a call, as the call goes on until the work ends.
    """
    replayed = found.work.from_replay
    seen = [np.where(time > NEVER, found.work.start - time, _LONGEST) for time in ready]
    clear, launched = _clear(seen, 0), seen[0] >= 0
    classes = (early, _EARLY_NS), (replayed & ~early, _LAUNCH_NS), (~replayed & ~early, _LAUNCH_NS)
    usual = [median(seen[0][own & clear], int(seen[0][own & launched].min(initial=most))) for own, most in classes]
    lags, node_after = [np.select([own for own, _ in classes], usual)], (0, 0)
    for kind in range(1, len(seen)):
        clear = _clear(seen, kind) & (seen[0] > _CLEARLY * lags[0])
        of_nodes, of_others, least = seen[kind][clear & replayed], seen[kind][clear & ~replayed], 0
        if kind == _ORDER:
            others = [median(of_others, unseen) for unseen in (_NODE_AFTER_NS, _AFTER_NS)]
            node_after = median(of_nodes, others[0]), median(of_nodes, others[1])
            least = int(seen[kind][~replayed & (seen[kind] >= 0)].min(initial=_AFTER_NS))
        of_node = node_after[0] if kind == _ORDER else median(of_nodes)
        lags.append(np.where(replayed, of_node, median(of_others, least)))
    return seen, lags, node_after


def _clear(seen: list[Ints], kind: int) -> Flags:
    others = np.min([lag for other, lag in enumerate(seen) if other != kind], axis=0)
    return np.asarray((seen[kind] >= 0) & (seen[kind] < others))


def median(values: Ints, unseen: int = 0) -> int:
    """Their median, or what it is taken to be where there are none."""
    return int(np.median(values)) if values.size else unseen


#: How much later than usual work must start to wait for something that is not recorded, and how soon after that.
_LATE_NS, _SOON_NS = 1_000, 5_000


def _assumed(found: Recorded, ready: tuple[Ints, Ints], early: Flags, *, everything: bool) -> tuple[Rows, Rows]:
    """Work, and the work of other streams that ended last before it: of all, or if nothing else explains its start."""
    work = found.work
    expected = _expected(ready, _usual(found, ready, early)[1]).max(axis=0)
    late = (expected > NEVER) & (work.start - expected > _LATE_NS)
    one, other = latest((work.context, work.context), work.stream, work.end, work.start + 1)
    fits = work.stream[one] != work.stream[other]
    if not everything:
        fits &= late[one] & (work.start[one] - work.end[other] <= _SOON_NS) & (work.end[other] > expected[one])
    return one[fits], other[fits]


def _waits(found: Recorded, places: Order, known_from: Ints) -> tuple[Ints, Conditions]:
    """How long calls take by themselves, and at which work those that block end, and how long after it."""
    events, work = found.events, found.work
    takes = events.end - events.start
    asks = events.ended_by_work & (takes > 0) & (lookup(known_from, events.work, _LONGEST) < places.call)
    waits_for = _if(asks, events.work)
    ends = lookup(work.end, waits_for, NEVER)
    binding = (waits_for >= 0) & (ends > events.start)
    after = events.end - ends
    usual = median(after[binding])
    own = np.where(binding, np.minimum(takes, median(takes[(waits_for >= 0) & ~binding])), takes)
    calls, others = _on_all_streams(found, waits_for)
    kept = known_from[others] < places.call[calls]
    calls, others = calls[kept], others[kept]
    further = np.minimum(events.end[calls] - work.end[others], usual)
    waiting = np.flatnonzero(waits_for >= 0)
    after = np.where(binding, after, np.minimum(after, usual))[waiting]
    columns = (waiting, calls), (waits_for[waiting], others), (after, further)
    return own, Conditions(*(np.append(*pair) for pair in columns))


def _on_all_streams(found: Recorded, waits_for: Rows) -> tuple[Rows, Rows]:
    """For calls that wait for a device the last work on each of its streams that was launched before."""
    events, work = found.events, found.work
    asking = np.flatnonzero(events.everywhere & (waits_for >= 0))
    launched = lookup(events.start, work.event, NEVER)
    # Work of a stream runs in the order in which rows stand.
    groups = work.context, work.context[waits_for[asking]]
    place, others = latest(groups, work.stream, launched, events.start[asking])
    return asking[place], others


def simulated(model: Tasks) -> Times:
    """All times under a model, in one pass over all calls and work in the order in which they were measured.

    Everything starts at the latest of some other times, each with a lag. Most work depends on two others; what depends
    on more gets a row for each further one, so that the pass is one short loop. Only calls that wait have rows.
    """
    order, known_from = model.order_of, model.order_of.end(model.meeting)
    met = np.flatnonzero(model.meeting >= 0)
    calls, awaited, after = model.awaited
    works, others, lag = model.dependent
    waits, last_waiting, since = _since_waiting(model)
    place = np.concatenate([order.call[calls], order.start[works], order.arrival[model.meeting[met]]])
    more = counts(place, order.call.size + order.start.size + order.arrival.size)
    # Row 0 is the time 0; a place has one row, and one more for each further condition, of which the last is its time.
    size = 1 + more
    size[order.call[~waits]] = 0
    last = np.cumsum(size)
    call, start, end = (last[places] for places in (order.call[last_waiting], order.start, known_from))
    row = np.concatenate([end[awaited], end[others], start[met]])
    lags = np.concatenate([after + model.lasts[awaited], lag + model.lasts[others], np.zeros(met.size, np.int64)])
    called = model.event >= 0
    caller = np.where(model.early, lookup(model.previous, model.event), model.event)
    since_call = model.launch + np.where(model.early, lookup(model.code, model.event, 0), 0) + lookup(since, caller, 0)
    count, previous = 1 + int(size.sum()), model.previous[waits]
    columns = ((np.full(count, value), np.full(count, value)) for value in (0, NEVER))
    table = _Table(last - more, *columns)
    own = (model.code + model.takes)[waits] + lookup(since, previous, 0)
    table.put(order.call[waits], 0, lookup(call, previous, 0), own)
    since_first = np.select([called, model.before < 0], [since_call, model.alone], NEVER)
    table.put(order.start, 0, lookup(call, caller, 0), since_first)
    behind = np.flatnonzero(model.before >= 0)
    before = model.before[behind]
    table.put(order.start[behind], 1, end[before], model.order[behind] + model.lasts[before])
    table.add(place, row, lags)
    times = table.solved()
    ends = times[call] + since
    return Times(np.append(ends, 0)[model.previous] + model.code, ends, times[start], times[end] + model.lasts)


def _since_waiting(model: Tasks) -> tuple[Flags, Rows, Ints]:
    """Which calls wait for more than the row before; for each the last such, and how long after that it ends."""
    rows = np.arange(model.code.size)
    waits = (model.previous != rows - 1) | (rows == 0)
    waits[model.awaited.row] = True
    last = np.maximum.accumulate(np.where(waits, rows, 0))
    since = np.cumsum(np.where(waits, 0, model.code + model.takes))
    return waits, last, since - since[last]


class _Table(NamedTuple):
    """For every row two others and their lags; ``first`` is the first row of each place."""

    first: Rows
    source: tuple[Rows, Rows]
    lag: tuple[Ints, Ints]

    def put(self, place: Rows, which: int, source: Rows, lag: Ints) -> None:
        rows = self.first[place]
        self.source[which][rows], self.lag[which][rows] = source, lag

    def add(self, place: Rows, source: Rows, lag: Ints) -> None:
        """Conditions of places beyond the first two."""
        order = np.argsort(place, kind="stable")
        place = place[order]
        rows = self.first[place] + 1 + np.arange(place.size) - np.searchsorted(place, place)
        self.source[0][rows], self.lag[0][rows] = rows - 1, 0
        self.source[1][rows], self.lag[1][rows] = source[order], lag[order]

    def solved(self) -> Ints:
        times = [0]
        append = times.append
        columns = (column[1:].tolist() for pair in zip(self.source, self.lag, strict=True) for column in pair)
        # Python's integers in lists are read and written faster than single ones of NumPy's.
        for one, lag, other, other_lag in zip(*columns, strict=True):
            time, other_time = times[one] + lag, times[other] + other_lag
            append(time if time > other_time else other_time)  # noqa: FURB136 - a third faster than max
        return np.array(times, np.int64)

"""Which ranks met in each collective, and the clock of every report against that of one of them.

Clocks are known by collectives in the same order, or by recorded starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from tracekit.arrays.groups import maxima, minima
from tracekit.arrays.types import Flags, Floats, Ints, Rows
from tracekit.dataset.opening import Dataset
from tracekit.ranks.collectives import RECORDS_EXACT_TO_NS, Lane, Session, collectives, sessions

#: Clocks drift less against each other, and are slewed by less: half a millisecond in a second.
_MOST_DRIFT = 5e-4
#: Sessions of Nsight Systems on one machine, whose starts it recorded, were apart by what it recorded to 30 us.
_STARTS_EXACT_TO_NS = 200_000
#: So few collectives could fall together by chance.
_LEAST = 8
#: A stream is compared with itself over so many collectives, up to so many later: these must differ by so much more.
_LOOKS, _NEARER = 256, 4
#: How many pairs of streams of two reports are compared.
_PAIRS = 64

#: Why a clock stays apart.
FEW_COLLECTIVES = f"fewer than {_LEAST} collectives"
NOT_CERTAIN = "its collectives are not those of another report in the same order"
NOT_AS_RECORDED = "its collectives contradict when the reports of one machine say they began"
SEVERAL_WAYS = "its steps are too similar: its collectives fit those of another report in several ways"


class Clock(NamedTuple):
    """What to ``add`` to each ``time`` of a report to get that of the reference, known to ``exact_ns``."""

    reference: int
    time: Ints = np.zeros(1, np.int64)
    add: Ints = np.zeros(1, np.int64)
    exact_ns: Ints = np.zeros(1, np.int64)
    drift: float = 0.0  # by which share of the time since it changes at most
    matched: int = 0  # how many collectives show it for certain
    why: str | None = None  # why the clock stays apart

    def at(self, time: Ints) -> Ints:
        """Times of the report on the clock of the reference."""
        changed = np.interp(time - self.time[0], self.time - self.time[0], self.add - self.add[0])
        return np.asarray(time + self.add[0] + np.rint(changed).astype(np.int64))

    def error(self, time: Ints) -> Ints:
        """How far from the truth these may be, in ns."""
        near = np.searchsorted((self.time[1:] + self.time[:-1]) // 2, time)
        changed = self.drift * np.abs(time - self.time[near]) + np.abs(self.at(time) - time - self.add[near])
        return np.asarray(self.exact_ns[near] + np.ceil(changed).astype(np.int64))

    def over(self, anchor: Clock) -> Clock:
        """The clock against the reference of its own reference."""
        time = self.time if self.drift else anchor.time - self.add
        middle = self.at(time)
        exact, drift = self.error(time) + anchor.error(middle), max(self.drift, anchor.drift)
        return Clock(anchor.reference, time, anchor.at(middle) - time, exact, drift, self.matched)

    def agrees(self, other: Clock) -> bool:
        """Whether both may be true of the same clocks."""
        time = self.time if self.drift else other.time
        return bool((np.abs(self.at(time) - other.at(time)) <= self.error(time) + other.error(time)).all())


def aligned(lanes: Sequence[Sequence[Lane]], sessions: Sequence[Session] = ()) -> list[Clock]:
    """The clock of every report, given its streams, and its session if known; the reference has the lowest rank."""
    most = [max((lane.end.size for lane in own), default=0) for own in lanes]
    first = [min((lane.rank for lane in own if lane.rank >= 0), default=1 << 31) for own in lanes]
    why = [NOT_CERTAIN if size >= _LEAST else FEW_COLLECTIVES for size in most]
    clocks: dict[int, Clock] = {}
    order = sorted(range(len(lanes)), key=lambda at: (most[at] < _LEAST, first[at], at))
    for reference in order:
        group = [] if reference in clocks else [reference]
        clocks.setdefault(reference, Clock(reference))
        # The group grows as it is gone through.
        for anchor, at in ((anchor, at) for anchor in group for at in order if at not in clocks):
            found = _between(lanes[anchor], lanes[at], _recorded(sessions, anchor, at))
            if isinstance(found, Clock):
                clocks[at] = found.over(clocks[anchor])
                group.append(at)
            elif found is not None:
                why[anchor] = why[at] = found
        if len(group) == 1 and (len(lanes) > 1 or not lanes[0]):
            clocks[reference] = Clock(reference, why=why[reference])
    return [clocks[at] for at in range(len(lanes))]


def _between(one: Sequence[Lane], other: Sequence[Lane], recorded: Clock | None) -> Clock | str | None:
    """The clock, or why it is not known: what fits all streams in one way alone, or what both recorded."""
    both = [(a, b) for a in one for b in other if (a.communicator, a.name) == (b.communicator, b.name)]
    pairs = [(a, b) for a, b in both if abs(a.end.size - b.end.size) <= 1 and min(a.end.size, b.end.size) >= _LEAST]
    pairs = sorted(pairs, key=lambda pair: -pair[0].end.size)[:_PAIRS]
    fit = [[way for _, *both in in_order(*pair) if (way := _fitted(*both))] for pair in pairs]
    certain = [own[0] for own in ([way for way in ways if way.matched] for ways in fit) if len(own) == 1]
    known = max(certain, key=lambda way: way.matched, default=None)
    if known and recorded and not known.agrees(recorded):
        return NOT_AS_RECORDED
    if known and all(any(map(known.agrees, ways)) for ways in fit if ways):
        return known
    return recorded or (SEVERAL_WAYS if any(fit) else None)


def _recorded(sessions: Sequence[Session], one: int, other: int) -> Clock | None:
    """The clock of another session on the same machine, with no process in common, by when both say that they began."""
    if not sessions or not sessions[one].host or sessions[one].host != sessions[other].host:
        return None
    first, second = sessions[one].started_utc_ns, sessions[other].started_utc_ns
    if first is None or second is None or sessions[one].pids & sessions[other].pids:
        return None
    apart = np.array([second - first], np.int64)
    return Clock(0, -apart, apart, _STARTS_EXACT_TO_NS + np.ceil(np.abs(apart) * _MOST_DRIFT).astype(np.int64))


def in_order(one: Lane, other: Lane) -> Iterator[tuple[int, Lane, Lane]]:
    """By how many the second is ahead, and what both have then, as of one communicator: one at an edge may be lost."""
    for shift in (0, -1, 1):
        begin, until = max(0, -shift), min(other.end.size, one.end.size - shift)
        if max(1, one.end.size - 1, other.end.size - 1) <= until - begin:
            first, last = one.of_rows(slice(begin + shift, until + shift)), other.of_rows(slice(begin, until))
            if np.array_equal(first.size, last.size):
                yield shift, first, last


def _fitted(one: Lane, other: Lane) -> Clock | None:
    """The clock with which no rank ends a collective long after another did, nor before another began it."""
    time, bound, base = other.end, np.minimum(one.apart, other.apart) + RECORDS_EXACT_TO_NS, one.end[0] - other.end[0]
    near, since = one.end - time - base, (time - time[0]).astype(np.float64)
    low, high = _least(since, near - bound), -_least(since, -near - bound)
    if (low > high).any():
        return None
    differ = np.abs(near - np.polyval(np.polyfit(since, near, 1), since)).mean()
    add, exact = (np.ceil(part).astype(np.int64) for part in ((low + high) / 2, 1 + (high - low) / 2))
    nearest = _nearest(*(column[: 2 * _LOOKS].tobytes() for column in (one.end, one.size)))
    return Clock(0, time, base + add, exact, _MOST_DRIFT, 0 if nearest <= _NEARER * differ else near.size)


def _least(since: Floats, low: Ints | Floats) -> Floats:
    """The least at each time, if it is no less than ``low`` at any and changes by no more than clocks drift."""
    drift = _MOST_DRIFT * since
    before = np.maximum.accumulate(low + drift) - drift
    after = np.maximum.accumulate((low - drift)[::-1])[::-1] + drift
    return np.maximum(before, after)


@lru_cache(3 * _PAIRS)
def _nearest(*columns: bytes) -> float:
    """How alike the distances of some later collectives of a stream are at the best; some may be lost."""
    ends, sizes = (np.frombuffer(column, np.int64) for column in columns)
    looks = min(_LOOKS, ends.size // 2)
    end, size = (sliding_window_view(column, looks)[1 : _LOOKS + 1] for column in (ends, sizes))
    later = end[(size == sizes[:looks]).all(axis=1)] - ends[:looks]
    differ = np.median(np.abs(later - np.median(later, axis=1, keepdims=True)), axis=1)
    return float(differ.min(initial=np.inf))


class Participations(NamedTuple):
    """Ranks in collectives, on the clock of the reference with its error; ``proven`` where all ranks are known."""

    proven: Flags
    lanes: list[Lane]
    meeting: Rows
    lane: Rows
    event: Rows
    start: Ints
    end: Ints
    error: Ints

    def of_events(self, name: str) -> Ints:
        """A column of the lanes, such as ``kernel_id``, for each row."""
        first = np.cumsum([0, *(lane.end.size for lane in self.lanes)])
        columns = [np.zeros(0, np.int64), *(getattr(lane, name) for lane in self.lanes)]
        return np.asarray(np.concatenate(columns)[first[self.lane] + self.event])

    def kernels(self) -> tuple[Ints, Rows, Ints]:
        """The kernels of proven collectives, the number of each from 0 on, and how long it waited for the last rank."""
        start, meeting = self.start[self.proven], np.unique(self.meeting[self.proven], return_inverse=True)[1]
        arrived = maxima(meeting, start, int(meeting.max(initial=-1)) + 1)
        return self.of_events("kernel_id")[self.proven], meeting, arrived[meeting] - start


class Ranks(NamedTuple):
    """Everything that is known of the collectives of a dataset."""

    lanes: list[list[Lane]]
    names: list[str]
    clocks: list[Clock]
    meetings: Participations


def ranks_of(dataset: Dataset) -> Ranks:
    """The collectives of a dataset and who met in them: worked out once, since all questions share it."""
    whole = dataset.whole
    key = f"ranks of {whole.reports}, {[session.pids for session in sessions(whole)]}"
    known: dict[str, Ranks] = dataset.known_of_all
    if key not in known:
        lanes, names = collectives(whole)
        clocks = aligned(lanes, sessions(whole))
        known[key] = Ranks(lanes, names, clocks, participations(lanes, clocks))
    return known[key]


#: Without ids, ranks that end something together so often share a communicator.
_LEAST_TOGETHER = 4


def participations(lanes: Sequence[Sequence[Lane]], clocks: Sequence[Clock]) -> Participations:
    """The collectives in which at least two ranks are known to have met, in the order in which all of them ran them."""
    flat = [lane for own in lanes for lane in own]
    times = [(clocks[lane.report].at(lane.start), clocks[lane.report].at(lane.end)) for lane in flat]
    placed = [lane._replace(start=start, end=end) for lane, (start, end) in zip(flat, times, strict=True)]
    groups = _groups(placed, clocks) if len({lane.gpu for lane in flat}) > 1 else []
    columns, size = [(np.empty(0, np.int64),) * 7], 0
    for group in (group for group in groups if len(group) > 1):
        for at, ahead in group.items():
            event, error = np.arange(flat[at].end.size), clocks[flat[at].report].error(flat[at].end)
            ranks = np.where(_others_elsewhere(placed[at], group, groups, placed, clocks), len(group), -1)
            columns.append((size + 1 + ahead + event, np.full(event.size, at), event, *times[at], error, ranks))
        size = max(int(column[0][-1]) for column in columns[-len(group) :]) + 1
    number, *known, ranks = map(np.concatenate, zip(*columns, strict=True))
    joined, start, end = np.bincount(number, minlength=size), *known[2:4]
    # A rank that ends before another begins was in another one.
    kept = ((maxima(number, start, size) <= minima(number, end, size)) & (joined > 1))[number]
    proven = (minima(number, ranks, size) == joined)[number[kept]]
    meeting = np.unique(number[kept], return_inverse=True)[1]
    return Participations(proven, flat, meeting, *(column[kept] for column in known))


def _groups(lanes: Sequence[Lane], clocks: Sequence[Clock]) -> list[dict[int, int]]:
    """The streams of each communicator, and how many collectives each is ahead of the first."""
    groups: dict[tuple[object, ...], list[dict[int, int]]] = {}
    for at, lane in enumerate(lanes):
        own = groups.setdefault((clocks[lane.report].reference, lane.communicator, lane.name), [])
        for group in own:
            ahead = _ahead(lanes[next(iter(group))], lane)
            if ahead is not None and lane.gpu not in {lanes[other].gpu for other in group}:
                group[at] = ahead
                break
        else:
            own.append({at: 0})
    return [group for own in groups.values() for group in own]


def _ahead(one: Lane, other: Lane) -> int | None:
    """How many collectives of the first are before the first of the second, if they are the same in one way alone."""
    found = [
        ahead
        for ahead, first, second in in_order(one, other)
        if (np.abs(first.end - second.end) <= np.minimum(first.apart, second.apart) + RECORDS_EXACT_TO_NS).all()
        and first.end.size >= (_LEAST_TOGETHER if one.communicator is None else 1)
    ]
    return found[0] if len(found) == 1 else None


def _others_elsewhere(
    one: Lane, group: dict[int, int], groups: Sequence[dict[int, int]], lanes: Sequence[Lane], clocks: Sequence[Clock]
) -> Flags:
    """When a rank of a group ended its collectives, whether no GPU outside may have been in them.

    Those of other communicators were elsewhere. Without ids those that have met others of the same clock were, if they
    were recorded before and after, and end nothing then that may be the same.
    """
    gpus, told, elsewhere = {lanes[at].gpu for at in group}, one.communicator, np.ones(one.end.size, bool)
    for ranks, lane in ((len(outside), lanes[at]) for outside in groups for at in outside):
        if lane.name == one.name and lane.gpu not in gpus and (told is None or lane.communicator in (None, told)):
            known = ranks > 1 and clocks[lane.report].reference == clocks[one.report].reference
            known &= told is None or lane.communicator is None
            before, after = np.searchsorted(lane.end, [one.end - one.apart, one.end + one.apart + 1])
            elsewhere &= known & (before == after) & (before > 0) & (after < lane.end.size)
    return elsewhere

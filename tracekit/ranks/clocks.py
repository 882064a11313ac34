"""The clock of every report against that of one of them: by collectives in the same order, or by recorded starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from tracekit.arrays.types import Floats, Ints
from tracekit.ranks.collectives import RECORDS_EXACT_TO_NS, Lane, Session

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
    """What to ``add`` to each ``time`` of a report to get that of the reference, known to ``exact_ns``.

    It changes by up to ``drift`` of the time since. ``matched`` collectives show it for certain; ``why`` is why the
    clock stays apart.
    """

    reference: int
    time: Ints = np.zeros(1, np.int64)
    add: Ints = np.zeros(1, np.int64)
    exact_ns: Ints = np.zeros(1, np.int64)
    drift: float = 0.0
    matched: int = 0
    why: str | None = None

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

"""The clock of every report against that of one of them: by collectives in the same order, or by recorded starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from tracekit.analyses.alignment.collectives import Lane, Session, ends_apart
from tracekit.arrays.types import Floats, Ints

#: What profilers' times of kernels are exact to: they convert the GPU's clock to that of the host.
TIMES_EXACT_TO_NS = 1_000
_SLACK_NS = 4 * TIMES_EXACT_TO_NS
#: Clocks drift less against each other, and are slewed by less: half a millisecond in a second.
_MOST_DRIFT = 5e-4
#: Sessions of Nsight Systems on one machine, whose starts it recorded, were apart by what it recorded to 30 us.
_STARTS_EXACT_TO_NS = 200_000
#: So few collectives could fall together by chance.
_LEAST = 8
#: A stream is compared with itself over so many collectives, and up to so many later.
_LOOKS = 256
#: Ends of others must be by so much farther apart than matched ones.
_NEARER = 4
#: How many pairs of streams of two reports are compared.
_PAIRS = 64

#: Why a clock stays apart.
NO_COLLECTIVES = "no collectives"
FEW_COLLECTIVES = f"fewer than {_LEAST} collectives"
NOT_CERTAIN = "its collectives are not those of another report in the same order"
NOT_AS_RECORDED = "its collectives contradict when the reports of one machine say they began"
SEVERAL_WAYS = "its steps are alike: its collectives fit those of another report in several ways"


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """What to ``add`` to each ``time`` of one clock to get that of another, known to ``exact_ns``.

    It changes by up to ``drift`` of the time since. ``matched`` collectives show it, for ``certain`` if others would
    not as well.
    """

    time: Ints
    add: Ints
    exact_ns: Ints
    drift: float = 0.0
    matched: int = 0
    certain: bool = True

    def at(self, time: Ints) -> Ints:
        """Times on the other clock."""
        first, base = self.time[0], self.add[0]
        changed = np.interp(time - first, self.time - first, self.add - base)
        return np.asarray(time + base + np.rint(changed).astype(np.int64))

    def error(self, time: Ints) -> Ints:
        """How far from the truth these may be."""
        after, add = np.searchsorted(self.time, time), self.at(time) - time
        around = (np.maximum(after - 1, 0), np.minimum(after, self.time.size - 1))
        since = (self.drift * np.abs(time - self.time[at]) + np.abs(add - self.add[at]) for at in around)
        errors = [self.exact_ns[at] + np.ceil(changed) for at, changed in zip(around, since, strict=True)]
        return np.asarray(np.minimum(*errors).astype(np.int64))

    def agrees(self, other: ClockOffset) -> bool:
        """Whether both may be true of the same clocks."""
        time = self.time if self.drift else other.time
        return bool((np.abs(self.at(time) - other.at(time)) <= self.error(time) + other.error(time)).all())


@dataclass(frozen=True, slots=True)
class Clock:
    """The clock of a report, as one of a group of clocks that are known against each other.

    ``offsets`` lead to that of the reference, one after the other; ``why`` is why it stays apart.
    """

    reference: int
    offsets: tuple[ClockOffset, ...] = ()
    matched: int = 0
    why: str | None = None

    def at(self, time: Ints) -> Ints:
        """Times of the report on the clock of the reference."""
        for offset in self.offsets:
            time = offset.at(time)
        return time

    def error(self, time: Ints) -> Ints:
        """How far from the truth these may be, in ns."""
        error = np.zeros(time.size, np.int64)
        for offset in self.offsets:
            error += offset.error(time)
            time = offset.at(time)
        return error


def aligned(lanes: Sequence[Sequence[Lane]], sessions: Sequence[Session] = ()) -> list[Clock]:
    """The clock of every report, given its streams; the reference is the one with the lowest rank.

    Without sessions nothing is known of the reports but their collectives.
    """
    few = [max((lane.end.size for lane in own), default=0) < _LEAST for own in lanes]
    first = [min((lane.rank for lane in own if lane.rank >= 0), default=1 << 31) for own in lanes]
    waiting = sorted(range(len(lanes)), key=lambda at: (few[at], first[at], at))
    why = [(FEW_COLLECTIVES if own else NO_COLLECTIVES) if few[at] else NOT_CERTAIN for at, own in enumerate(lanes)]
    clocks: dict[int, Clock] = {}
    while waiting:
        group = [waiting.pop(0)]
        # The group grows as it is gone through.
        for anchor, at in ((anchor, at) for anchor in group for at in waiting if at not in clocks):
            recorded = _recorded(sessions[anchor], sessions[at]) if sessions else None
            offset, reason = _between(lanes[anchor], lanes[at], recorded)
            if offset is not None:
                offsets = (offset, *(clocks[anchor].offsets if anchor in clocks else ()))
                clocks[at] = Clock(group[0], offsets, offset.matched)
                group.append(at)
            elif reason is not None:
                why[anchor] = why[at] = reason
        waiting = [at for at in waiting if at not in clocks]
        alone = len(group) == 1 and (len(lanes) > 1 or not lanes[0])
        clocks[group[0]] = Clock(group[0], why=why[group[0]] if alone else None)
    return [clocks[at] for at in range(len(lanes))]


def _between(
    one: Sequence[Lane], other: Sequence[Lane], recorded: ClockOffset | None
) -> tuple[ClockOffset | None, str | None]:
    """The offset, or why it is not known: what fits all streams in one way alone, or what both recorded."""
    fit = [[way for _, *both in in_order(*pair) if (way := _fitted(*both))] for pair in _pairs(one, other)]
    certain = [own[0] for own in ([way for way in ways if way.certain] for ways in fit) if len(own) == 1]
    known = max(certain, key=lambda way: way.matched, default=None)
    if known is not None and recorded is not None and not known.agrees(recorded):
        return None, NOT_AS_RECORDED
    if known is not None and all(any(map(known.agrees, ways)) for ways in fit if ways):
        return known, None
    return recorded, None if recorded is not None or not any(fit) else SEVERAL_WAYS


def _recorded(one: Session, other: Session) -> ClockOffset | None:
    """What to add to times of another session on the same machine, and how far from the truth that may be.

    Reports of one machine record its name and when they started on its clock, and have no process in common.
    """
    if not one.host or one.host != other.host or one.pids & other.pids:
        return None
    if one.started_utc_ns is None or other.started_utc_ns is None:
        return None
    apart = other.started_utc_ns - one.started_utc_ns
    exact = _STARTS_EXACT_TO_NS + int(abs(apart) * _MOST_DRIFT)
    return ClockOffset(np.zeros(1, np.int64), np.array([apart], np.int64), np.array([exact], np.int64))


def _pairs(one: Sequence[Lane], other: Sequence[Lane]) -> list[tuple[Lane, Lane]]:
    """Streams of a kernel that may be of one communicator, most collectives first."""
    both = [(a, b) for a in one for b in other if (a.communicator, a.name) == (b.communicator, b.name)]
    alike = [(a, b) for a, b in both if abs(a.end.size - b.end.size) <= 1 and min(a.end.size, b.end.size) >= _LEAST]
    return sorted(alike, key=lambda pair: -pair[0].end.size)[:_PAIRS]


def in_order(one: Lane, other: Lane) -> Iterator[tuple[int, Lane, Lane]]:
    """By how many the second is ahead, and what both have then, as of one communicator: one at an edge may be lost."""
    for shift in (0, -1, 1):
        second = np.arange(max(0, -shift), min(other.end.size, one.end.size - shift))
        if second.size and second.size + 1 >= max(one.end.size, other.end.size):
            first, last = one.of_rows(second + shift), other.of_rows(second)
            if np.array_equal(first.size, last.size):
                yield shift, first, last


def may_end_apart(one: Lane, other: Lane) -> Ints:
    """By how much two records of the same collectives may say that these ended apart."""
    return ends_apart(np.minimum(one.end - one.start, other.end - other.start)) + _SLACK_NS


def _fitted(one: Lane, other: Lane) -> ClockOffset | None:
    """The offsets with which no rank ends a collective long after another did, nor before another began it."""
    time, bound, base = other.end, may_end_apart(one, other), one.end[0] - other.end[0]
    near = one.end - time - base
    since = (time - time[0]).astype(np.float64)
    low, high = _least(since, near - bound), -_least(since, -near - bound)
    if (low > high).any():
        return None
    # Midway between the highest and the lowest that ends around it allow.
    likely = np.clip((_least(since, near) - _least(since, -near)) / 2, low, high)
    differ = np.abs(near - np.polyval(np.polyfit(since, near, 1), since)).mean()
    add, exact = (np.ceil(part).astype(np.int64) for part in (likely, 1 + np.maximum(high - likely, likely - low)))
    return ClockOffset(time, base + add, exact, _MOST_DRIFT, near.size, not _repeats(one, differ))


def _least(since: Floats, low: Ints | Floats) -> Floats:
    """The least at each time, if it is no less than ``low`` at any and changes by no more than clocks drift."""
    drift = _MOST_DRIFT * since
    before = np.maximum.accumulate(low + drift) - drift
    after = np.maximum.accumulate((low - drift)[::-1])[::-1] + drift
    return np.maximum(before, after)


def _repeats(lane: Lane, exact: float) -> bool:
    """Whether some later collectives of a stream have such distances that another stream's could be those.

    Distances differ for certain if they do by several times of what matched ends do. The median counts, since a record
    may be lost.
    """
    looks = min(_LOOKS, lane.end.size // 2)
    end, size = (sliding_window_view(column, looks)[1 : _LOOKS + 1] for column in (lane.end, lane.size))
    later = end[(size == lane.size[:looks]).all(axis=1)] - lane.end[:looks]
    differ = np.median(np.abs(later - np.median(later, axis=1, keepdims=True)), axis=1)
    return bool((differ <= _NEARER * exact).any())

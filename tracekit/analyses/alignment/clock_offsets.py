"""What to add to times of one clock to get those of another, by collectives that two streams ran in the same order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from tracekit.analyses.alignment.collectives import Lane, ends_apart
from tracekit.arrays.types import Floats, Ints

#: What profilers' times of kernels are exact to: they convert the GPU's clock to that of the host.
TIMES_EXACT_TO_NS = 1_000
_SLACK_NS = 4 * TIMES_EXACT_TO_NS
#: Clocks of computers drift less against each other: half a millisecond in a second.
_MOST_DRIFT = 5e-4
#: So few collectives could fall together by chance.
LEAST = 8
#: A stream is compared with itself over so many collectives, and up to so many later.
_LOOKS = 256
#: Ends of others must be by so much farther apart than matched ones.
_NEARER = 4


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """What to add to times of one clock to get those of another.

    At each ``time`` it is likely ``base_ns`` and ``likely``, at least ``low`` and at most ``high``; it changes by up to
    ``drift`` of the time since. ``matched`` collectives show it, for ``certain`` if others would not as well.
    """

    base_ns: int
    time: Ints
    likely: Floats
    low: Floats
    high: Floats
    drift: float = _MOST_DRIFT
    matched: int = 0
    certain: bool = True

    @classmethod
    def recorded(cls, apart_ns: int, error_ns: int) -> ClockOffset:
        """An offset that is known without any collective."""
        none = np.zeros(1)
        return cls(apart_ns, np.zeros(1, np.int64), none, none - error_ns, none + error_ns, drift=0.0)

    def at(self, time: Ints) -> Ints:
        """Times on the other clock."""
        likely = np.interp(time - self.time[0], self.time - self.time[0], self.likely)
        return np.asarray(time + self.base_ns + np.rint(likely).astype(np.int64))

    def error(self, time: Ints) -> Ints:
        """How far from the truth these may be."""
        after = np.searchsorted(self.time, time)
        low, high, likely = np.full(time.size, -np.inf), np.full(time.size, np.inf), self.at(time) - time - self.base_ns
        for near in (np.maximum(after - 1, 0), np.minimum(after, self.time.size - 1)):
            changed = self.drift * np.abs(time - self.time[near])
            low, high = np.maximum(low, self.low[near] - changed), np.minimum(high, self.high[near] + changed)
        return np.asarray(np.ceil(np.maximum(high - likely, likely - low)).astype(np.int64))

    def agrees(self, other: ClockOffset) -> bool:
        """Whether both may be true of the same clocks."""
        time = self.time if self.drift else other.time
        return bool((np.abs(self.at(time) - other.at(time)) <= self.error(time) + other.error(time)).all())


def in_order(one: Lane, other: Lane) -> Iterator[tuple[int, Lane, Lane]]:
    """By how many the second is ahead, and what both have then, as of one communicator: one at an edge may be lost."""
    for shift in (0, -1, 1):
        second = np.arange(max(0, -shift), min(other.end.size, one.end.size - shift))
        if second.size and second.size + 1 >= max(one.end.size, other.end.size):
            first, last = one.of_rows(second + shift), other.of_rows(second)
            if np.array_equal(first.name, last.name) and np.array_equal(first.size, last.size):
                yield shift, first, last


def end_together(one: Lane, other: Lane, apart: Ints | Floats) -> bool:
    """Whether collectives that end so far apart may be the same: no rank ends one before the other begins it."""
    first, second = one.end - one.start, other.end - other.start
    bound = ends_apart(np.minimum(first, second)) + _SLACK_NS
    return bool(
        ((apart <= np.minimum(first + _SLACK_NS, bound)) & (-apart <= np.minimum(second + _SLACK_NS, bound))).all()
    )


def offsets_between(one: Lane, other: Lane, recorded: ClockOffset | None) -> list[ClockOffset]:
    """What may have to be added to times of the second stream, for each way in which it is the first in order.

    Only offsets count that agree with what was recorded, if that is known.
    """
    found = [fit for _, first, second in in_order(one, other) if (fit := _fitted(first, second, recorded))]
    return [fit for fit in found if recorded is None or fit.agrees(recorded)]


def _fitted(one: Lane, other: Lane, recorded: ClockOffset | None) -> ClockOffset | None:
    """The offsets with which no rank ends a collective before another began it, nor long after another ended it."""
    time, bound = other.end, ends_apart(np.minimum(one.end - one.start, other.end - other.start))
    base = int(one.end[0] - time[0])
    near = one.end - time - base
    low = np.maximum(one.start - time - base, near - bound) - _SLACK_NS
    high = np.minimum(one.end - other.start - base, near + bound) + _SLACK_NS
    since = (time - time[0]).astype(np.float64)
    low, high = _least(since, low), -_least(since, -high)
    if (low > high).any():
        return None
    # Midway between the highest and the lowest that ends around it allow.
    likely = np.clip((_least(since, near) - _least(since, -near)) / 2, low, high)
    exact = np.abs(near - np.polyval(np.polyfit(since, near, 1), since)).mean()
    within = None if recorded is None else 2 * int(recorded.error(time[:1])[0])
    return ClockOffset(base, time, likely, low, high, _MOST_DRIFT, near.size, not _repeats(one, exact, within))


def _least(since: Floats, low: Ints | Floats) -> Floats:
    """The least at each time, if it is no less than ``low`` at any and changes by no more than clocks drift."""
    drift = _MOST_DRIFT * since
    before = np.maximum.accumulate(low + drift) - drift
    after = np.maximum.accumulate((low - drift)[::-1])[::-1] + drift
    return np.maximum(before, after)


def _repeats(lane: Lane, exact: float, within_ns: int | None) -> bool:
    """Whether some later collectives of a stream have such distances that another stream's could be those.

    Distances differ for certain if they do by several times of what matched ends do. The median counts, since a record
    may be lost. What is later by more than is left open does not count.
    """
    looks = min(_LOOKS, lane.end.size // 2)
    end, name, size = (
        sliding_window_view(column, looks)[1 : _LOOKS + 1] for column in (lane.end, lane.name, lane.size)
    )
    same = ((name == lane.name[:looks]) & (size == lane.size[:looks])).all(axis=1)
    later = end[same] - lane.end[:looks]
    if within_ns is not None:
        later = later[later[:, 0] <= within_ns]
    differ = np.median(np.abs(later - np.median(later, axis=1, keepdims=True)), axis=1)
    return bool((differ <= _NEARER * exact).any())

"""What to add to times of one clock to get those of another, by collectives that two streams ran in the same order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from tracekit.analyses.alignment.collectives import LONGEST_APART_NS, Lane, ends_apart
from tracekit.arrays.types import Floats, Ints

#: What profilers' times of kernels are exact to: they convert the GPU's clock to that of the host.
TIMES_EXACT_TO_NS = 1_000
_SLACK_NS = 4 * TIMES_EXACT_TO_NS
_NS_PER_S = 1e9
#: Clocks of computers drift less against each other: half a millisecond in a second.
_MOST_DRIFT = 5e-4 * _NS_PER_S
_STRETCHES = 32
#: So few collectives could fall together by chance.
LEAST = 8
#: One in so many may end too far apart.
_SELDOM = 50
#: Ends of two streams must be by so much nearer than those of successive collectives or steps of one of them.
_NEARER, _LOOKS, _LAGS = 4, 256, 512


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """What to add to times of one clock to get those of another: from a base on, and more with every second since.

    ``possible`` are the extremes of offset and drift, as rows; ``matched`` is how many collectives tell it, and
    ``proven`` whether others would not as well.
    """

    middle_ns: int
    base_ns: int
    fit: Floats
    possible: Floats
    matched: int = 0
    proven: bool = True

    @classmethod
    def recorded(cls, apart_ns: int, doubt_ns: int) -> ClockOffset:
        """An offset that is known without any collective."""
        return cls(0, apart_ns, np.zeros(2), np.array([[-doubt_ns, 0.0], [doubt_ns, 0.0]]))

    def at(self, time: Ints) -> Ints:
        """Times on the other clock."""
        shift = self.fit[0] + self.fit[1] * ((time - self.middle_ns) / _NS_PER_S)
        return np.asarray(time + self.base_ns + np.rint(shift).astype(np.int64))

    def error(self, time: Ints) -> Ints:
        """How far from the truth these may be."""
        after_s, error = (time - self.middle_ns) / _NS_PER_S, np.zeros(time.size)
        for offset, drift in self.possible - self.fit:
            np.maximum(error, np.abs(offset + drift * after_s), out=error)
        return np.ceil(error).astype(np.int64)

    def agrees(self, other: ClockOffset) -> bool:
        """Whether both may be true of the same clocks."""
        time = np.array([self.middle_ns or other.middle_ns])
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
    """Whether collectives may be the same, of two ranks that end them so far apart.

    None ends before the other began, and few end later than a collective takes to end everywhere.
    """
    first, second = one.end - one.start, other.end - other.start
    overlap = (apart <= first + _SLACK_NS) & (-apart <= second + _SLACK_NS)
    late = np.count_nonzero(np.abs(apart) > ends_apart(np.minimum(first, second)))
    return bool(overlap.all() and late <= apart.size // _SELDOM)


def offsets_between(one: Lane, other: Lane) -> list[ClockOffset]:
    """What may have to be added to times of the second stream, for each way in which it is the first in order."""
    found = []
    for _, first, second in in_order(one, other):
        near = first.end - second.end
        middle, base = int(second.end[near.size // 2]), int(np.median(near))
        after_s = (second.end - middle) / _NS_PER_S
        fit = _straight(after_s, near - base)
        apart = near - base - fit[0] - fit[1] * after_s
        if end_together(first, second, apart):
            # No rank ends before the other began, nor long before or after it.
            low = np.maximum(first.start - second.end, near - LONGEST_APART_NS) - base - _SLACK_NS
            high = np.minimum(first.end - second.start, near + LONGEST_APART_NS) - base + _SLACK_NS
            possible = _corners(after_s, low, high, fit[1])
            if possible.size:
                found.append(ClockOffset(middle, base, fit, possible, near.size, _is_proof(first, apart)))
    return found


def _is_proof(lane: Lane, apart: Floats) -> bool:
    """Whether ends are so near that another communicator's, or another step's, would not be.

    As different from each other as these are successive collectives or steps of the stream itself.
    """
    looks = min(_LOOKS, lane.end.size // 2)
    later = [sliding_window_view(column, looks)[1 : _LAGS + 1] for column in (lane.end, lane.name, lane.size)]
    same = (later[1] == lane.name[:looks]) & (later[2] == lane.size[:looks])
    shifted = (later[0] - lane.end[:looks])[same.all(axis=1)]
    if not shifted.size:
        return True
    own = np.abs(shifted - np.median(shifted, axis=1)[:, None])
    return bool(_NEARER * np.abs(apart).mean() <= own.mean(axis=1).min())


def _straight(x: Floats, y: Ints) -> Floats:
    """Offset and slope of a line through both halves."""
    (x_first, x_last), (y_first, y_last) = (
        [np.median(half) for half in np.array_split(column, 2)] for column in (x, y)
    )
    slope = np.clip((y_last - y_first) / max(x_last - x_first, 1e-9), -_MOST_DRIFT, _MOST_DRIFT)
    return np.array([np.median(y - slope * x), slope])


def _corners(x: Floats, low: Ints, high: Ints, slope: float) -> Floats:
    """Corners of the polygon of (offset, slope) with ``low <= offset + slope * x <= high``.

    Of each stretch the tightest bounds count: what is left out only widens the rest.
    """
    stretches = np.array_split(np.arange(x.size), min(_STRETCHES, x.size))
    tops = [part[np.argmin((high - slope * x)[part])] for part in stretches]
    bottoms = [part[np.argmax((low - slope * x)[part])] for part in stretches]
    sides = [(1.0, x[at], high[at]) for at in tops] + [(-1.0, -x[at], -low[at]) for at in bottoms]
    rows = np.array([*sides, (0.0, 1.0, _MOST_DRIFT), (0.0, -1.0, _MOST_DRIFT)])
    one, other = rows[np.array([*combinations(range(len(rows)), 2)]).T]
    across = one[:, 0] * other[:, 1] - other[:, 0] * one[:, 1]
    offset = one[:, 2] * other[:, 1] - other[:, 2] * one[:, 1]
    drift = one[:, 0] * other[:, 2] - other[:, 0] * one[:, 2]
    meet = np.abs(across) > 1e-9  # noqa: PLR2004 - sides that are parallel meet nowhere
    corners = np.stack([offset[meet], drift[meet]], axis=1) / across[meet, None]
    return np.asarray(corners[(corners @ rows[:, :2].T - rows[:, 2] <= 1.0).all(axis=1)])

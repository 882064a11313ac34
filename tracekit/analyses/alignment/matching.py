"""Collectives matched over ranks, and the line that maps one clock to another."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple, TypeAlias

import numpy as np

from tracekit.analyses.alignment.collectives import ENDS_APART_NS, LONGEST_APART_NS, Exactness, Lane, Match, together
from tracekit.arrays.types import Flags, Floats, Ints

#: What profilers' times of kernels are exact to: they convert the GPU's clock to that of the host.
TIMES_EXACT_TO_NS = 1_000
#: Clocks of computers drift less against each other than a thousandth.
_MOST_DRIFT = 1e-3
_SLACKS = tuple(TIMES_EXACT_TO_NS * factor for factor in (2, 4, 8))
_BINS, _SMOOTHED = 1_024, 32
_NS_PER_S = 1e9


@dataclass(frozen=True, slots=True)
class Line:
    """What to add to times of one clock to get those of another: base and offset, and a drift from the middle on.

    ``corners`` are all that offset and drift may be, as rows; ``slack_ns`` is by how much the bounds were widened.
    """

    middle_ns: int
    base_ns: int
    offset_ns: float
    drift: float
    corners: Floats
    slack_ns: int

    def at(self, time: Ints) -> Ints:
        """Times on the other clock."""
        shift = self.offset_ns + self.drift * (time - self.middle_ns)
        return np.asarray(time + self.base_ns + np.rint(shift).astype(np.int64))

    def error(self, time: Ints) -> Ints:
        """How far from the truth these may be."""
        after_s = (time - self.middle_ns) / _NS_PER_S
        own = self.offset_ns + self.drift * _NS_PER_S * after_s
        error = np.zeros(time.size)
        for offset, drift in self.corners:
            np.maximum(error, np.abs(offset + drift * after_s - own), out=error)
        return np.ceil(error).astype(np.int64)


def bounded(time: Ints, lower: Ints, upper: Ints, near: Ints) -> Line | None:
    """The line within bounds of the offset that is nearest to an estimate at each time; None if none lies within."""
    middle, base = int(time[time.size // 2]), int(np.median(near))
    after_s = (time - middle) / _NS_PER_S
    low, high, about = (np.asarray(values - base, np.float64) for values in (lower, upper, near))
    for slack in _SLACKS:
        corners = _corners(after_s, low - slack, high + slack)
        if corners.size:
            offset, drift = _within(_fitted(after_s, about), corners, (after_s, low - slack, high + slack))
            return Line(middle, base, offset, drift / _NS_PER_S, corners, slack)
    return None


def _fitted(x: Floats, y: Floats) -> tuple[float, float]:
    """Offset and slope by the medians of stretches, and the median slope between these (Theil and Sen)."""
    order = np.argsort(x, kind="stable")
    stretches = [part for part in np.array_split(order, _SMOOTHED) if part.size]
    at, level = (np.array([np.median(values[part]) for part in stretches]) for values in (x, y))
    one, other = np.triu_indices(at.size, 1)
    apart = at[other] - at[one]
    slopes = (level[other] - level[one])[apart > 0] / apart[apart > 0]
    most = _MOST_DRIFT * _NS_PER_S
    slope = float(np.clip(np.median(slopes), -most, most)) if slopes.size else 0.0
    return float(np.median(y - slope * x)), slope


def _within(line: tuple[float, float], corners: Floats, bounds: tuple[Floats, Floats, Floats]) -> tuple[float, float]:
    """The line, moved towards the middle of what is possible until it lies within all bounds."""
    x, low, high = bounds
    middle = corners.mean(axis=0)
    at_middle, at_line = middle[0] + middle[1] * x, line[0] + line[1] * x
    step = at_line - at_middle
    with np.errstate(divide="ignore", invalid="ignore"):
        reach = np.where(step > 0, (high - at_middle) / step, np.where(step < 0, (low - at_middle) / step, np.inf))
    share = float(np.clip(reach.min(), 0.0, 1.0))
    return float(middle[0] + share * (line[0] - middle[0])), float(middle[1] + share * (line[1] - middle[1]))


def _corners(x: Floats, low: Floats, high: Floats) -> Floats:
    """All corners of the polygon of (offset, slope) with ``low <= offset + slope * x <= high``."""
    at_high, at_low = _hull(x, high), _hull(x, -low)
    rows = [(1.0, x[at], high[at]) for at in at_high] + [(-1.0, -x[at], -low[at]) for at in at_low]
    most = _MOST_DRIFT * _NS_PER_S
    rows += [(0.0, 1.0, most), (0.0, -1.0, most)]
    sides = np.array(rows)
    pairs = np.array([*combinations(range(len(rows)), 2)])
    one, other = sides[pairs[:, 0]], sides[pairs[:, 1]]
    determinant = one[:, 0] * other[:, 1] - other[:, 0] * one[:, 1]
    meet = np.abs(determinant) > 1e-9  # noqa: PLR2004 - sides that are parallel meet nowhere
    one, other, determinant = one[meet], other[meet], determinant[meet]
    offset = (one[:, 2] * other[:, 1] - other[:, 2] * one[:, 1]) / determinant
    slope = (one[:, 0] * other[:, 2] - other[:, 0] * one[:, 2]) / determinant
    beyond = sides[:, :1] * offset + sides[:, 1:2] * slope - sides[:, 2:]
    inside: Flags = (beyond <= 1.0).all(axis=0)
    return np.stack([offset[inside], slope[inside]], axis=1)


def _hull(x: Floats, y: Floats) -> list[int]:
    hull: list[int] = []
    for at in _lowest(x, y):
        while len(hull) > 1 and _is_above(hull[-1], (hull[-2], at), x, y):
            hull.pop()
        hull.append(at)
    return hull


def _is_above(point: int, ends: tuple[int, int], x: Floats, y: Floats) -> bool:
    left, right = ends
    across = (y[point] - y[left]) * (x[right] - x[left]) - (y[right] - y[left]) * (x[point] - x[left])
    return bool(across >= 0)


def _lowest(x: Floats, y: Floats) -> list[int]:
    """The lowest point of each of many short stretches, from the left: bounds that are left out only widen the rest."""
    span = max(float(x.max() - x.min()), 1e-9)
    stretch = np.minimum(((x - x.min()) / span * _BINS).astype(np.int64), _BINS - 1)
    order = np.lexsort((y, stretch))
    first = order[np.flatnonzero(np.diff(stretch[order], prepend=-1))]
    return [*first.tolist()]


#: So few collectives could fall together by chance.
LEAST = 8
#: The share of the collectives of both streams, in the time that both cover, that must be matched.
_MOST_MATCHED = 0.6
#: Another shift is refuted by so many collectives that it leaves without a counterpart.
_REFUTED_BY = 3
#: How many collectives of one stream look for their counterparts at first, around how many places, and how many shifts
#: are followed further.
_PROBE, _PLACES, _SHIFTS = 48, (0.5, 0.2, 0.8), 24
_MOST_PAIRS = 1 << 22
_DRIFT = 1e-4
_NEARLY = 0.75
#: In how many places a stream is compared with itself, and by how much more of two streams must fall together.
_LOOKS, _MORE = 16, 0.15
#: The least part of the shorter stream that must be matched.
_OF_SHORTER = 0.25
_FURTHER = 4


Alike: TypeAlias = tuple[float, ...]


def line_between(one: Lane, other: Lane, alike: Alike) -> tuple[Line, Match] | None:
    """How the clock of the second stream becomes that of the first, given how alike either is; None if uncertain."""
    for apart, share in zip(ENDS_APART_NS, alike, strict=True):
        best = _best_shift(one, other, apart, share) if share + _MORE <= 1 else None
        line = None if best is None else _bounded(one, other, best.match)
        if best is not None and line is not None:
            return line, best.match
    return None


def alike(lane: Lane) -> Alike:
    """The largest share of successive collectives of a stream that fall together with others of it if it is shifted.

    A shift that lets more of two streams fall together is the right one, whatever either has lost. For each of
    :data:`ENDS_APART_NS`.
    """
    if lane.end.size < LEAST:
        return (1.0,) * len(ENDS_APART_NS)
    probe = min(_PROBE, max(LEAST, lane.end.size // 2))
    most = np.zeros(len(ENDS_APART_NS))
    for first in np.unique(np.linspace(0, lane.end.size - probe, _LOOKS).astype(np.int64)).tolist():
        rows = slice(first, first + probe)
        apart = np.sort((lane.end[:, None] - lane.end[None, rows])[lane.name[:, None] == lane.name[None, rows]])
        np.maximum(most, [_together_elsewhere(apart, 2 * width) / probe for width in ENDS_APART_NS], out=most)
    return tuple(most.tolist())


def _together_elsewhere(apart: Ints, width: int) -> int:
    elsewhere = apart[np.abs(apart) > width]
    count = np.searchsorted(elsewhere, elsewhere + width, side="right") - np.arange(elsewhere.size)
    return int(count.max(initial=0))


def _best_shift(one: Lane, other: Lane, apart: int, share: float) -> "_Answer | None":
    """The shift under which most ends fall together, if all others are refuted."""
    least = max(LEAST, int(_OF_SHORTER * min(one.end.size, other.end.size)))
    for starts in _starts(one, other, apart):
        followed = [_followed(one, other, start, apart) for start in starts]
        answers = [answer for answer in followed if answer is not None and answer.is_likely(least, share)]
        if answers:
            return next((best for best in answers if all(best.refutes(it, apart) for it in answers)), None)
    return None


def comparable(one: Lane, other: Lane) -> bool:
    """Whether two streams may be of one communicator and have enough collectives to prove it."""
    if one.communicator is not None and other.communicator is not None and one.communicator != other.communicator:
        return False
    return min(one.end.size, other.end.size) >= LEAST and bool(np.isin(other.name, one.name).any())


def _starts(one: Lane, other: Lane, apart: int) -> Iterator[list[tuple[int, int]]]:
    """Shifts of the clocks under which a few successive collectives of the second stream end with some of the first.

    Yields:
        For successive ones around each place: their time on the clock of the second stream, and what to add to it.
    """
    probe = max(LEAST, min(_PROBE, _MOST_PAIRS // one.end.size, other.end.size))
    firsts = dict.fromkeys(int((other.end.size - probe) * place) for place in _PLACES)
    for first in firsts:
        rows = slice(first, first + probe)
        # By so much the shifts of one pair of clocks differ between these collectives.
        width = 2 * apart + int((other.end[rows][-1] - other.end[first]) * _DRIFT)
        differences = (one.end[:, None] - other.end[None, rows])[one.name[:, None] == other.name[None, rows]]
        middle = int(other.end[first + probe // 2])
        yield [(middle, shift) for shift in _densest(np.sort(differences), width, probe // 2)]


def _densest(values: Ints, width: int, least: int) -> Iterator[int]:
    if not values.size:
        return
    count = np.searchsorted(values, values + width, side="right") - np.arange(values.size)
    fullest = int(count.max())
    for _ in range(_SHIFTS):
        at = int(np.argmax(count))
        if count[at] < max(least, fullest * _NEARLY):
            return
        yield int(np.median(values[at : at + count[at]]))
        count[np.searchsorted(values, values[at] - width) : np.searchsorted(values, values[at] + width, "right")] = 0


class _Shift(NamedTuple):
    """What to add to times: at one time, and how much more with each ns after it."""

    middle: int
    offset: float
    drift: float

    @classmethod
    def through(cls, time: Ints, offset: Ints) -> "_Shift":
        middle, base = int(time[time.size // 2]), int(np.median(offset))
        own, drift = _fitted((time - middle) / _NS_PER_S, np.asarray(offset - base, np.float64))
        return cls(middle, base + own, drift / _NS_PER_S)

    def of(self, time: Ints) -> Ints:
        return np.asarray(time + np.rint(self.offset + self.drift * (time - self.middle)).astype(np.int64))


class _Answer(NamedTuple):
    """A shift, and the collectives that end together under it."""

    shift: _Shift
    match: Match

    def is_likely(self, least: int, alike: float) -> bool:
        """Whether it explains most of both streams, and clearly more than streams that are alike would."""
        count = max(1, self.match.overlapping // 2)
        needed = alike + _MORE + 3 * (alike * (1 - alike) / count) ** 0.5
        enough = self.match.one.size >= least and self.match.matched_share >= max(_MOST_MATCHED, needed)
        return enough and not self.match.contradicts_itself

    def refutes(self, other: "_Answer", apart: int) -> bool:
        """Whether another shift is certainly wrong if this one is right, or about the same."""
        time = np.array([self.shift.middle], np.int64)
        if abs(int(self.shift.of(time)[0] - other.shift.of(time)[0])) <= 2 * apart:
            return True
        mine, its = self.match, other.match
        expected = mine.unmatched * its.overlapping / max(1, mine.overlapping)
        return its.unmatched > _REFUTED_BY + 2 * expected


def _followed(one: Lane, other: Lane, start: tuple[int, int], apart: int) -> _Answer | None:
    time, shift = start
    line = _Shift(time, float(shift), 0.0)
    first, last = int(other.end[0]), int(other.end[-1])
    reach = max(1, int(np.partition(np.abs(other.end - time), min(_PROBE, other.end.size) - 1)[:_PROBE].max()))
    doubt = apart + int(reach * _DRIFT)
    while True:
        near = np.abs(other.end - time) <= reach
        match = together(one, other, (one.end, line.of(other.end)), Exactness(apart, doubt), near)
        if match.one.size < LEAST // 2:
            return None
        at = other.end[match.other]
        line = _Shift.through(at, one.end[match.one] - at)
        if reach >= max(last - time, time - first):
            break
        reach, doubt = _FURTHER * reach, _FURTHER * apart
    final = together(one, other, (one.end, line.of(other.end)), Exactness(apart, 0))
    return _Answer(line, final)


def _bounded(one: Lane, other: Lane, match: Match) -> Line | None:
    first, second = match.one, match.other
    near = one.end[first] - other.end[second]
    # No rank ends before the other began, nor long before or after it.
    lower = np.maximum(one.start[first] - other.end[second], near - LONGEST_APART_NS)
    upper = np.minimum(one.end[first] - other.start[second], near + LONGEST_APART_NS)
    return bounded(other.end[second], lower, upper, near)

"""The line between two clocks, bounded by what cannot be: a collective that ends before all ranks have begun it.

Every collective that two ranks share gives two bounds of ``offset = clock of one - clock of the other`` at its time:
neither rank ends before the other has begun. All lines within all bounds form a convex polygon of offset and drift;
its corners tell how far from the truth an estimate can be. Knows nothing of reports.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tracekit.arrays.types import Flags, Ints

    Floats = NDArray[np.float64]

#: What profilers' times of kernels are exact to: they convert the GPU's clock to that of the host.
TIMES_EXACT_TO_NS = 1_000
#: Clocks of computers drift less against each other than a thousandth.
_MOST_DRIFT = 1e-3
_SLACKS = tuple(TIMES_EXACT_TO_NS * factor for factor in (2, 4, 8))
_BINS, _SMOOTHED = 1_024, 32
_NS_PER_S = 1e9


@dataclass(frozen=True, slots=True)
class Line:
    """What to add to times of one clock to get those of another.

    Attributes:
        middle_ns: The time from which ``drift`` counts.
        base_ns: The offset at that time, about.
        offset_ns: What is missing to the offset.
        drift: How much faster the other clock runs.
        corners: All that offset and drift may be, as rows.
        slack_ns: By how much the bounds were widened.
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
        moved: Ints = time + self.base_ns + np.rint(shift).astype(np.int64)
        return moved

    def error(self, time: Ints) -> Ints:
        """How far from the truth these may be."""
        after_s = (time - self.middle_ns) / _NS_PER_S
        own = self.offset_ns + self.drift * _NS_PER_S * after_s
        error = np.zeros(time.size)
        for offset, drift in self.corners:
            np.maximum(error, np.abs(offset + drift * after_s - own), out=error)
        return np.ceil(error).astype(np.int64)


def bounded(time: Ints, lower: Ints, upper: Ints, near: Ints) -> Line | None:
    """The line within bounds that is nearest to an estimate at each time; None if no line lies within them.

    Args:
        time: When, on the clock that shall be moved.
        lower: The least that the offset can be.
        upper: The most.
        near: What it is, about.
    """
    middle, base = int(time[time.size // 2]), int(np.median(near))
    after_s = (time - middle) / _NS_PER_S
    low, high, about = (np.asarray(values - base, np.float64) for values in (lower, upper, near))
    for slack in _SLACKS:
        corners = _corners(after_s, low - slack, high + slack)
        if corners.size:
            offset, drift = _within(_fitted(after_s, about), corners, (after_s, low - slack, high + slack))
            return Line(middle, base, offset, drift / _NS_PER_S, corners, slack)
    return None


def fitted(time: Ints, offset: Ints) -> tuple[int, float, float]:
    """A robust line through offsets: the time from which it counts, the offset then, and its drift."""
    middle, base = int(time[time.size // 2]), int(np.median(offset))
    own, drift = _fitted((time - middle) / _NS_PER_S, np.asarray(offset - base, np.float64))
    return middle, base + own, drift / _NS_PER_S


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
        room = np.where(step > 0, (high - at_middle) / step, np.where(step < 0, (low - at_middle) / step, np.inf))
    share = float(np.clip(room.min(), 0.0, 1.0))
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
    """Points on the lower convex hull, from the left: a line below these is below all of them."""
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
    lowest: list[int] = first.tolist()
    return lowest

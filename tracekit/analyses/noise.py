"""How much equal runs differ, and which runs differ by more: the model of noise of ``tracekit trend`` and ``diff``.

The value of a module in a run is the logarithm of its time. It is the sum of a level, a shift that all modules share in
that run (clocks), and noise. The scale of a module's noise is how far its successive runs on one machine are usually
apart, and at least what is usual for modules; its tails are those of Student's distribution with few degrees of
freedom, because single runs are often far off. A change is a *gap*: all later runs are beyond all earlier
ones of their machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tracekit.arrays.types import Flags, Floats, Ints

#: So many runs are needed to tell a change from noise between runs.
LEAST_RUNS = 4
#: How likely any change is found in runs of which none changed.
FALSE_ALARMS = 0.05
#: Degrees of freedom of the noise, if there are as many runs to learn it from.
_FREE = 3
#: The least noise that is assumed, as a share: clocks of devices and whole nanoseconds have some.
_LEAST_NOISE = 1e-4
#: Of the distances between successive runs, the one that so large a part does not exceed is the scale of the noise: one
#: change and one outlier do not move it. It is so many standard deviations of a normal distribution, and so many units
#: of Student's one.
_USUAL, _PER_DEVIATION, _PER_UNIT = 0.7, 1.466, 1.94
#: A gap is larger than so many scales, a usual distance and a half: clocks that wander leave smaller ones.
_LEAST_GAP = 3
#: Modules share a shift if half of them follow it up to this part of it, or to so many times what is usual.
_AGREED, _UNUSUAL = 8, 4


class Change(NamedTuple):
    """A row that changed: the first column after it, and how likely any row has one by chance."""

    row: int
    column: int
    chance: float


def machines_of(machines: Sequence[object]) -> Ints:
    """A number for each run: runs of one number are compared."""
    numbers: dict[object, int] = {}
    return np.array([numbers.setdefault(one, len(numbers)) for one in machines], np.int64)


def common_shifts(values: Floats, machine: Ints, least: float) -> tuple[Floats, list[int]]:
    """The shift of each run that all modules share, whose median is 0 for each machine.

    Returns:
        Also the runs from which on most modules changed by more than the least, each in another way: no shift is
        shared between these and the runs before.
    """
    shifts, differing = np.zeros(machine.size), list[int]()
    for columns in (np.flatnonzero(machine == one) for one in np.unique(machine)):
        own = values[:, columns]
        apart = _differing(own, least)
        differing += columns[apart].tolist()
        for low, high in pairwise([0, *apart, columns.size]):
            shifts[columns[low:high]] = _common(own[:, low:high])
    return shifts, sorted(differing)


def _common(values: Floats) -> Floats:
    """The median of all rows, and of one more that never changes: so a lone row that does is not all of them."""
    known = values[~np.isnan(values).all(axis=1)]
    if len(known) <= 1:  # a lone row cannot be told from its runs
        return np.zeros(values.shape[1])
    away = known - np.nanmedian(known, axis=1, keepdims=True)
    common = np.nanmedian(np.vstack([away, np.zeros(values.shape[1])]), axis=0)
    return np.asarray(common - np.median(common))


def _differing(values: Floats, least: float) -> list[int]:
    steps = np.diff(values, axis=1)
    both = np.flatnonzero((~np.isnan(steps)).sum(axis=0) > 1)  # a lone row cannot differ from others
    jump = np.nanmedian(steps[:, both], axis=0)
    apart = np.nanmedian(np.abs(steps[:, both] - jump), axis=0)
    usual = _UNUSUAL * float(np.median(apart)) if both.size else 0.0
    moved = np.nanmedian(np.abs(np.vstack([steps[:, both], np.zeros(both.size)])), axis=0)
    far = (moved > least) & (apart > np.maximum(usual, np.abs(jump) / _AGREED))
    columns: list[int] = (both[far] + 1).tolist()
    return columns


def scales(values: Floats, errors: Floats, machine: Ints) -> Floats:
    """The scale of each row's noise between runs, given the variance of each value that its steps explain, or NaN."""
    apart = [_distances(values[:, machine == one]) for one in np.unique(machine)]
    distances = np.sort(np.concatenate(apart, axis=1), axis=1)  # NaN comes last
    count = (~np.isnan(distances)).sum(axis=1)
    own = np.full(len(values), np.nan)
    some = np.flatnonzero(count)
    own[some] = distances[some, np.ceil(_USUAL * count[some]).astype(np.int64) - 1] / _PER_UNIT
    usual = float(np.median(own[some])) if some.size else 0.0
    known = (~np.isnan(errors)).sum(axis=1)
    error = np.sqrt(np.nansum(errors, axis=1) / np.maximum(known, 1)) * (_PER_DEVIATION / _PER_UNIT)
    return np.asarray(np.fmax(own, np.maximum(error, max(usual, _LEAST_NOISE))))


def _distances(values: Floats) -> Floats:
    """How far the values of each row are from the next ones that are known."""
    in_front = np.argsort(np.isnan(values), axis=1, kind="stable")
    return np.abs(np.diff(np.take_along_axis(values, in_front, axis=1), axis=1))


def outliers(values: Floats, scale: Floats, machine: Ints, least: float) -> Flags:
    """Which values are beyond all others of their row and machine by more than the least and more than noise."""
    found = np.zeros(values.shape, bool)
    for columns in (np.flatnonzero(machine == one) for one in np.unique(machine)):
        for signed in (values[:, columns], -values[:, columns]):
            known = np.where(np.isnan(signed), -np.inf, signed)
            ordered, top = np.sort(known, axis=1), known.argmax(axis=1)
            count = np.isfinite(known).sum(axis=1)
            for row in np.flatnonzero(count >= LEAST_RUNS).tolist():
                gap = ordered[row, -1] - ordered[row, -2]
                number = int(count[row])
                sure = gap > least and 2 * number * chance_of_gap(gap / scale[row], number - 1, 1) <= FALSE_ALARMS
                found[row, columns[top[row]]] |= sure
    return found


def changes(values: Floats, scale: Floats, machine: Ints, least: float) -> list[Change]:
    """The changes of all rows that stay: later runs are beyond earlier ones by more than the least and than noise."""
    sides = [_Gaps(sign * values, machine) for sign in (1, -1)]
    judged = sides[0].judged
    found = []
    for side in sides:
        for row, column in np.argwhere(judged & (side.gap > _LEAST_GAP * scale[:, None])).tolist():
            before, after = np.split(side.values[row], [column])
            if np.nanmedian(after) - np.nanmedian(before) <= least:
                continue
            counts = side.counts(row, column)
            of_machines = (chance_of_gap(side.gap[row, column] / scale[row], *count) for count in counts)
            found.append(Change(row, column, min(1.0, 2 * int(judged.sum()) * math.prod(of_machines))))
    return sorted(one for one in found if one.chance <= FALSE_ALARMS)


class _Gaps:
    """How far the values from each column on are above all earlier ones of their machine, where there are enough."""

    def __init__(self, values: Floats, machine: Ints) -> None:
        known, self.values = ~np.isnan(values), values
        self._before, self._after = [], []
        self.gap = np.full(values.shape, np.inf)
        enough = np.zeros((2, *values.shape), np.int64)
        own = np.zeros(values.shape, bool)
        for one in np.unique(machine).tolist():
            here = known & (machine == one)
            after = np.cumsum(here[:, ::-1], axis=1)[:, ::-1]
            before = np.cumsum(here, axis=1) - here
            highest = np.maximum.accumulate(np.where(here, values, -np.inf), axis=1)
            highest = np.pad(highest[:, :-1], ((0, 0), (1, 0)), constant_values=-np.inf)
            lowest = np.minimum.accumulate(np.where(here, values, np.inf)[:, ::-1], axis=1)[:, ::-1]
            both = (before > 0) & (after > 0)
            self.gap[both] = np.minimum(self.gap, lowest - highest)[both]
            enough += np.stack([before, after]) * both
            own |= here & both
            self._before.append(before * both)
            self._after.append(after * both)
        # One run alone may be an outlier.
        self.judged: Flags = own & (known.sum(axis=1, keepdims=True) >= LEAST_RUNS) & (enough > 1).all(axis=0)

    def counts(self, row: int, column: int) -> list[tuple[int, int]]:
        """For each machine how many of its runs are before and after, if both."""
        sides = zip(self._before, self._after, strict=True)
        counts = [(int(before[row, column]), int(after[row, column])) for before, after in sides]
        return [count for count in counts if count[0]]


def chance_of_gap(gap: float, before: int, after: int, free: int = _FREE) -> float:
    """How likely all later of equal runs are above all earlier ones by a gap, in units of the noise."""
    place, share = _student(free)
    highest = np.diff(share**before, prepend=0.0)
    above = np.interp(place + gap, place, 1 - share)
    return float(highest @ above**after)


@cache
def _student(free: int) -> tuple[Floats, Floats]:
    """Student's distribution: values, and how likely a smaller one is."""
    place = np.sinh(np.linspace(-14, 14, 8_001))
    density = (1 + place**2 / free) ** (-(free + 1) / 2) * np.hypot(1, place)
    total = np.cumsum(density)
    return place, (total - density / 2) / total[-1]

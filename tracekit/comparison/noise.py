"""How much equal runs differ, and which runs differ by more: the model of noise of ``tracekit trend`` and ``diff``.

The value of a module in a run is the logarithm of its time. It is the sum of a level, a part of the shift that modules
share in that run (clocks, which not all follow alike), and noise, whose scale is how far successive runs on one machine
are usually apart. A change *stays*: beside the clocks all later runs are beyond all earlier ones of their machine, and
their means are further apart than noise, what else the module does and the changes of other modules there explain.
"""

from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tracekit.arrays.types import Flags, Floats, Ints

#: Smaller changes than this share do not count.
THRESHOLD = 0.01
#: So many runs are needed to tell a change from noise between runs.
LEAST_RUNS = 4
#: How likely any change is found in runs of which none changed.
FALSE_ALARMS = 0.05
#: Degrees of freedom of the noise, if there are as many runs to learn it from, and of means of it.
_FREE, _FREE_OF_MEANS = 3, 9
#: The least noise that is assumed, as a share: clocks of devices and whole nanoseconds have some.
_LEAST_NOISE = 1e-4
#: The scale of the noise is the distance between successive runs that so large a part of them does not exceed: one
#: change and one outlier do not move it. It is so many units of Student's distribution.
_USUAL, _PER_UNIT = 0.7, 1.94
#: Squares of shifts that are none.
_NONE = 1e-12
#: A change is larger than so many times what rows seem to change by at that place in the median.
_OTHERS = 5
#: Clocks slow modules down by up to so much, as a logarithm, and memory-bound ones less: where half of the modules are
#: off by no more than the shift, they share it; where it is larger, by no more than this part of it. Or if they are off
#: by no more than so many times what is usual.
_CLOCKS, _AGREED, _UNUSUAL = 0.4, 8, 4
#: Beside a shift of clocks, modules differ by up to so many times that.
BESIDE = 3


class Change(NamedTuple):
    """A row that changed: the first column after it, how likely any does by chance, how much more it follows clocks."""

    row: int
    column: int
    chance: float
    follow: float


def common_shifts(values: Floats, machine: Ints) -> tuple[Floats, list[int]]:
    """The shift of each run that all modules share, whose median is 0 for each machine.

    Returns:
        Also the runs from which on most modules changed, each in another way: no shift is shared between these and
        the runs before.
    """
    shifts, differing = np.zeros(machine.size), list[int]()
    for columns in _each(machine):
        own = values[:, columns]
        apart = _differing(own)
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


def _differing(values: Floats) -> list[int]:
    steps = np.diff(values, axis=1)
    both = np.flatnonzero((~np.isnan(steps)).sum(axis=0) > 1)  # a lone row cannot differ from others
    jump = np.nanmedian(steps[:, both], axis=0)
    apart = np.nanmedian(np.abs(steps[:, both] - jump), axis=0)
    usual = _UNUSUAL * float(np.median(apart)) if both.size else 0.0
    moved = np.nanmedian(np.abs(np.vstack([steps[:, both], np.zeros(both.size)])), axis=0)
    shared = np.abs(jump) / np.where(np.abs(jump) > _CLOCKS, _AGREED, 1)
    far = (moved > THRESHOLD) & (apart > np.maximum(usual, shared))
    return [int(column) + 1 for column in both[far]]


def scales(values: Floats, machine: Ints) -> Floats:
    """The scale of each row's noise between runs: its own, and at least what is usual."""
    apart = []
    for own in (values[:, columns] for columns in _each(machine)):
        # How far the values of each row are from the next ones that are known.
        in_front = np.argsort(np.isnan(own), axis=1, kind="stable")
        apart.append(np.abs(np.diff(np.take_along_axis(own, in_front, axis=1), axis=1)))
    distances = np.sort(np.concatenate(apart, axis=1), axis=1)  # NaN comes last
    count = (~np.isnan(distances)).sum(axis=1)
    own = np.full(len(values), np.nan)
    some = np.flatnonzero(count)
    own[some] = distances[some, np.ceil(_USUAL * count[some]).astype(np.int64) - 1] / _PER_UNIT
    usual = float(np.median(own[some])) if some.size else 0.0
    return np.asarray(np.fmax(own, max(usual, _LEAST_NOISE)))


def outliers(values: Floats, scale: Floats, machine: Ints) -> Flags:
    """Which values are beyond all others of their row and machine by more than noise."""
    found = np.zeros(values.shape, bool)
    for columns in _each(machine):
        for signed in (values[:, columns], -values[:, columns]):
            known = np.where(np.isnan(signed), -np.inf, signed)
            ordered, top = np.sort(known, axis=1), known.argmax(axis=1)
            count = np.isfinite(known).sum(axis=1)
            for row in np.flatnonzero(count >= LEAST_RUNS).tolist():
                gap, number = ordered[row, -1] - ordered[row, -2], int(count[row])
                sure = gap > THRESHOLD and 2 * number * chance_of_gap(gap / scale[row], number - 1) <= FALSE_ALARMS
                found[row, columns[top[row]]] |= sure
    return found


def changes(values: Floats, shifts: Floats, usual: float, machine: Ints, differing: list[int]) -> list[Change]:
    """The changes of all rows that stay: of each row the one that explains most, and then those before and after it.

    ``values`` are beside the ``shifts``, NaN where unknown, and ``usual`` is the scale of the noise of most rows.
    """
    found, tests, spans = list[Change](), 0, [(0, machine.size, np.arange(len(values)))]
    while spans:
        low, high, rows = spans.pop()
        inside = np.where((np.arange(machine.size) >= low) & (np.arange(machine.size) < high), values, np.nan)
        steps = [_step(inside, shifts, usual, machine, at, alike=at not in differing) for at in range(low, high)]
        chance, explained, follow = (np.stack(columns, axis=1) for columns in zip(*steps, strict=True))
        tests = tests or int((~np.isnan(chance)).sum())
        chance = np.where(np.isnan(chance), np.inf, chance * tests)
        at = np.where(chance <= FALSE_ALARMS, explained, -1).argmax(axis=1)
        sure = rows[chance[rows, at[rows]] <= FALSE_ALARMS]
        for place in np.unique(at[sure]).tolist():
            own = sure[at[sure] == place]
            found += [Change(row, low + place, chance[row, place], follow[row, place]) for row in own.tolist()]
            spans += [(low, low + place, own), (low + place, high, own)]
    return sorted(found)


def _step(
    values: Floats, shifts: Floats, usual: float, machine: Ints, column: int, *, alike: bool
) -> tuple[Floats, Floats, Floats]:
    """How likely each row seems to change at a column by chance, how much that explains, how far it follows the shifts.

    Change and shifts are fitted together by least squares, so that none is found where the clocks may be its cause, nor
    where others seem to change as much. The chance is NaN where there are too few runs: one alone may be an outlier.
    """
    later, known = np.arange(machine.size) >= column, ~np.isnan(values)
    for columns in _each(machine):
        sides = columns[later[columns]], columns[~later[columns]]
        known[:, columns] &= np.all([known[:, side].any(axis=1) for side in sides], axis=0)[:, None]
    judged = known[:, column] & (known[:, later].sum(axis=1) > 1) & (known[:, ~later].sum(axis=1) > 1)
    value, shift, step = (_deviations(one, known, machine) for one in (values, shifts, later))
    alone = step - _slope(step, shift) * shift
    change = _slope(value, alone)
    follow = _slope(value - change * step, shift)
    rest = value - change * step - follow * shift
    size, weight = np.abs(change[:, 0]), np.maximum((alone**2).sum(axis=1), _NONE)
    others = float(np.sort(np.append(size[judged], 0.0))[judged.sum() // 2]) if alike else 0.0
    stays, signed = size > max(THRESHOLD, _OTHERS * others), np.sign(change) * value
    stays &= np.abs(_slope(value, step)[:, 0]) > BESIDE * _jump(shifts, machine, column)
    for columns in _each(machine):
        here = np.isin(np.arange(machine.size), columns) & known
        lowest, highest = np.where(here & later, signed, np.inf), np.where(here & ~later, signed, -np.inf)
        stays &= lowest.min(axis=1) > highest.max(axis=1)
    noise = np.maximum(np.sqrt((rest**2).sum(axis=1) / np.maximum(known.sum(axis=1) - 2, 1)), usual)
    place, share = _student(_FREE_OF_MEANS)
    chance = 2 - 2 * np.interp(size * np.sqrt(weight) / noise, place, share)
    return np.where(judged, np.where(stays, chance, 1.0), np.nan), size**2 * weight, follow[:, 0]


def _jump(shifts: Floats, machine: Ints, column: int) -> float:
    """How far the shifts of a machine jump at a column at most."""
    at = [(columns, int(np.searchsorted(columns, column))) for columns in _each(machine)]
    return max(
        abs(float(np.diff(shifts[columns[place - 1 : place + 1]]).sum())) if place else 0.0 for columns, place in at
    )


def _each(machine: Ints) -> list[Ints]:
    return [np.flatnonzero(machine == one) for one in np.unique(machine)]


def _deviations(values: Floats | Flags, known: Flags, machine: Ints) -> Floats:
    """How far the known values of each row are from their mean on their machine; 0 for others."""
    result = np.where(known, values, 0.0)
    for columns in _each(machine):
        count = np.maximum(known[:, columns].sum(axis=1, keepdims=True), 1)
        result[:, columns] -= result[:, columns].sum(axis=1, keepdims=True) / count * known[:, columns]
    return result


def _slope(values: Floats, along: Floats) -> Floats:
    squares = (along**2).sum(axis=1, keepdims=True)
    products = (values * along).sum(axis=1, keepdims=True)
    return np.asarray(np.where(squares > _NONE, products / np.maximum(squares, _NONE), 0.0))


def chance_of_gap(gap: float, others: int, free: int = _FREE) -> float:
    """How likely one of equal runs is above all others by a gap, in units of the noise."""
    place, share = _student(free)
    highest = np.diff(share**others, prepend=0.0)
    return float(highest @ np.interp(place + gap, place, 1 - share))


@cache
def _student(free: int) -> tuple[Floats, Floats]:
    """Student's distribution: values, and how likely a smaller one is."""
    place = np.sinh(np.linspace(-14, 14, 8_001))
    density = (1 + place**2 / free) ** (-(free + 1) / 2) * np.hypot(1, place)
    total = np.cumsum(density)
    return place, (total - density / 2) / total[-1]

"""Where series of noisy values changed for good, given that all of them share a factor that varies too.

A series is a row of logarithms, one for each run, NaN where it has no value. Its value is the sum of a level that is
constant but for changes, a shift that all series have in common in that run, and noise. How much noise there is follows
from the values themselves: a variance between runs that all series share, beside the known error of each value; how
far single series depart from that decides how much their own spread counts (Smyth 2004, moderated t-statistics).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tracekit.arrays.types import Flags, Floats, Rows

#: So many values are needed to tell a change from noise between runs.
LEAST_RUNS = 4
#: How likely any change is found in series that did not change.
FALSE_ALARMS = 0.05
#: The least noise that is assumed, as a standard deviation: clocks of devices and whole nanoseconds have some.
_LEAST_NOISE = 1e-4
#: Lengths of the spans before and after a change that are compared.
_SPANS = tuple(length << power for power in range(20) for length in (2, 3))
#: Series share a shift if half of them follow it up to this part of it, or to so many times what is usual between runs.
_AGREED, _UNUSUAL = 8, 4
#: How often noise is learned anew without the changes found so far.
_ROUNDS = 4


class Change(NamedTuple):
    """A series that changed: its row, the first column after it, and how likely that is in any series by chance."""

    row: int
    column: int
    chance: float


class Changes(NamedTuple):
    """What changed.

    Attributes:
        found: The changes, by row and column.
        common: The shift of each column that all series have in common; its median is 0.
        differing: Columns from which on most series changed, each in another way.
        noise: The standard deviation of a value of most series between runs, beside the common shift.
    """

    found: list[Change]
    common: Floats
    differing: list[int]
    noise: float


class _Noise(NamedTuple):
    """The variance that each series is expected to have, and how many values of its own that is worth."""

    variance: Floats
    free: float


def changes(values: Floats, errors: Floats, least: float) -> Changes:
    """Finds the changes of all series that are larger than the least, and larger than noise explains.

    Args:
        values: A row for each series, a column for each run.
        errors: The variance of each value that is known; NaN where it is not.
        least: The least change that counts.
    """
    enough = np.flatnonzero((~np.isnan(values)).sum(axis=1) >= LEAST_RUNS)
    rows, found, noise = values[enough], list[Change](), _Noise(np.zeros(1), 0.0)
    common, apart = np.zeros(values.shape[1]), np.zeros(rows.shape, bool)
    differing = _differing(rows, least)
    apart[:, differing] = True
    for _ in range(_ROUNDS if enough.size else 0):
        cuts = apart.copy()
        cuts[[one.row for one in found], [one.column for one in found]] = True
        common = _common(rows - _levels(rows - common, cuts))
        noise = _learned(rows - common, errors[enough], cuts)
        before, found = found, _found(rows - common, noise, least)
        if [one[:2] for one in found] == [one[:2] for one in before]:
            break
    named = [one._replace(row=int(enough[one.row])) for one in found]
    return Changes(named, common, differing, math.sqrt(np.median(noise.variance)))


def segments(found: list[Change], row: int, columns: int) -> Iterator[tuple[int, int]]:
    """The spans of columns between the changes of a row."""
    bounds = [0, *(one.column for one in found if one.row == row), columns]
    yield from pairwise(bounds)


def _levels(values: Floats, cuts: Flags) -> Floats:
    """The mean of each series between its cuts, each of which is before a column."""
    part, levels = np.cumsum(cuts, axis=1), np.zeros(values.shape)
    for number in range(int(part.max(initial=0)) + 1):
        inside = (part == number) & ~np.isnan(values)
        total, count = np.where(inside, values, 0.0).sum(axis=1), inside.sum(axis=1)
        levels += np.where(inside, (total / np.maximum(count, 1))[:, None], 0.0)
    return levels


def _common(residuals: Floats) -> Floats:
    """The median of all series, and of one more that never changes: so a lone series that does is not all of them."""
    if len(residuals) <= 1:  # a lone series cannot be told from its runs
        return np.zeros(residuals.shape[1])
    common = np.asarray(np.nanmedian(np.vstack([residuals, np.zeros(residuals.shape[1])]), axis=0))
    return np.asarray(common - np.median(common))


def _differing(values: Floats, least: float) -> list[int]:
    """The columns from which on most series changed, but not by the shift that is their median."""
    steps = np.diff(values, axis=1)
    both = np.flatnonzero((~np.isnan(steps)).sum(axis=0) > 1)  # a lone series cannot differ from others
    jump = np.nanmedian(steps[:, both], axis=0)
    apart = np.nanmedian(np.abs(steps[:, both] - jump), axis=0)
    usual = _UNUSUAL * float(np.median(apart)) if both.size else 0.0
    moved = np.nanmedian(np.abs(np.vstack([steps[:, both], np.zeros(both.size)])), axis=0)
    far = (moved > least) & (apart > np.maximum(usual, np.abs(jump) / _AGREED))
    columns: list[int] = (both[far] + 1).tolist()
    return columns


def _learned(values: Floats, errors: Floats, cuts: Flags) -> _Noise:
    known, levels = ~np.isnan(values), _levels(values, cuts)
    parts = 1 + cuts.sum(axis=1)
    free = np.maximum(known.sum(axis=1) - parts, 1)
    spread = np.maximum(np.nansum((values - levels) ** 2, axis=1) / free, _LEAST_NOISE**2)
    error = _means(errors)
    between = np.median(spread / (1 - 2 / (9 * free)) ** 3 - error)  # of a chi-square distribution
    expected = np.maximum(between, _LEAST_NOISE**2) + error
    # The logarithm of a variance with n degrees of freedom has the mean -1/n - 1/3n^2, and trigamma(n/2) as variance.
    off = np.log(spread / expected) + 1 / free + 1 / (3 * free**2)
    apart = off.var(ddof=1) - np.mean(_trigamma(free / 2)) if off.size > 1 else 0.0
    worth = min((1 + math.sqrt(1 + 2 * apart)) / apart if apart > 0 else math.inf, float(free.sum()) / 2)
    return _Noise(expected * math.exp(off.mean() - 1 / worth - 1 / (3 * worth**2)), worth)


def _means(errors: Floats) -> Floats:
    """The mean known error of each series, that of a typical one where none is known."""
    count = (~np.isnan(errors)).sum(axis=1)
    mean = np.nansum(errors, axis=1) / np.maximum(count, 1)
    return np.where(count > 0, mean, np.median(mean[count > 0]) if count.any() else 0.0)


def _trigamma(x: Floats) -> Floats:
    return 1 / x + 1 / (2 * x**2) + 1 / (6 * x**3)


def _found(values: Floats, noise: _Noise, least: float) -> list[Change]:
    count = (~np.isnan(values)).sum(axis=1)
    families = [0, 0]
    for number, series in zip(*np.unique(count, return_counts=True), strict=True):
        sizes = _tests(int(number)).sizes
        families = [family + int(series) * size for family, size in zip(families, sizes, strict=True)]
    found: list[Change] = []
    for number in np.unique(count).tolist():
        rows = np.flatnonzero(count == number)
        columns = np.argsort(np.isnan(values[rows]), axis=1, kind="stable")[:, :number]
        series = np.take_along_axis(values[rows], columns, axis=1)
        of_rows = noise._replace(variance=noise.variance[rows])
        first = _surest(series, of_rows, least, families)
        for at in np.flatnonzero(first.chance <= FALSE_ALARMS).tolist():
            own = noise._replace(variance=noise.variance[rows[at : at + 1]])
            places = _divided(series[at : at + 1], own, least, families)
            found += [Change(int(rows[at]), int(columns[at, place]), chance) for place, chance in places]
    return sorted(found)


def _divided(series: Floats, noise: _Noise, least: float, families: list[int]) -> list[tuple[int, float]]:
    """The changes of one series: the surest, then those before and after it; each moved to where it fits best."""
    found: dict[int, float] = {}
    spans = [(0, series.shape[1])]
    while spans:
        low, high = spans.pop()
        if high - low == 1:
            continue
        place, chance = (column[0] for column in _surest(series[:, low:high], noise, least, families))
        if chance <= FALSE_ALARMS:
            found[low + int(place)] = float(chance)
            spans += [(low, low + int(place)), (low + int(place), high)]
    bounds = [*sorted(found), series.shape[1]]
    moved: list[tuple[int, float]] = []
    for at, high in pairwise(bounds):
        low = moved[-1][0] if moved else 0
        moved.append((low + _best_place(series[0, low:high]), found[at]))
    return moved


def _best_place(values: Floats) -> int:
    """Where to divide values so that both parts vary least around their means."""
    before = np.arange(1, values.size)
    step = np.cumsum(values - values.mean())[:-1]
    return 1 + int((step**2 / (before * (values.size - before))).argmax())


class _Tests:
    """The places at which a series of some length may have changed, with the spans before and after that are compared.

    They are of two families: all of the series before and after each place, and shorter spans of at least two values.
    """

    def __init__(self, number: int) -> None:
        at, end = np.arange(1, number), np.full(number - 1, number)
        lengths = [length for length in _SPANS if length < number - 1]
        pairs = [(one, other) for one in lengths for other in lengths if one + other < number]
        inner = [np.arange(before, number - after + 1) for before, after in pairs]
        self.batches = [(0, 0 * at, at, end)]
        self.batches += [(1, at - pair[0], at, at + pair[1]) for pair, at in zip(pairs, inner, strict=True)]
        self.sizes = [number - 1, sum(at.size for at in inner)]


_tests = cache(_Tests)


class _Surest(NamedTuple):
    """Of each series the place after its surest change, and how likely any series has one as sure by chance."""

    place: Rows
    chance: Floats


def _surest(series: Floats, noise: _Noise, least: float, families: list[int]) -> _Surest:
    place, sure = np.zeros((2, len(series)), np.int64), np.zeros((2, len(series)))
    for family, low, at, high in _tests(series.shape[1]).batches:
        z = _certainty(series, noise, least, (low, at, high))
        surest = z.argmax(axis=1)
        highest = np.take_along_axis(z, surest[:, None], axis=1)[:, 0]
        place[family] = np.where(highest > sure[family], at[surest], place[family])
        sure[family] = np.maximum(sure[family], highest)
    # Half of the false alarms are allowed to each family.
    chance = np.array([2 * max(size, 1) * _chance(z) for size, z in zip(families, sure, strict=True)])
    better = chance.argmin(axis=0)
    return _Surest(*(np.take_along_axis(both, better[None], axis=0)[0] for both in (place, chance)))


def _certainty(series: Floats, noise: _Noise, least: float, spans: tuple[Rows, Rows, Rows]) -> Floats:
    """For each series and place, how far the means before and after it are apart, as a quantile of the normal."""
    number = series.shape[1]
    padded = np.pad(series - series.mean(axis=1, keepdims=True), ((0, 0), (1, 0)))
    total, squares = np.cumsum(padded, axis=1), (padded**2).sum(axis=1, keepdims=True)
    low, at, high = spans
    bounds = [0 * at, low, at, high, 0 * at + number]
    sums = [total[:, end] - total[:, start] for start, end in pairwise(bounds)]
    sizes = [end - start for start, end in pairwise(bounds)]
    unexplained = squares - sum(part**2 / np.maximum(size, 1) for part, size in zip(sums, sizes, strict=True))
    free = number - sum((size > 0).astype(np.int64) for size in sizes)
    variance = (noise.free * noise.variance[:, None] + np.maximum(unexplained, 0.0)) / (noise.free + free)
    step = np.abs(sums[2] / sizes[2] - sums[1] / sizes[1])
    t = step / np.sqrt(variance * (1 / sizes[1] + 1 / sizes[2]))
    return np.asarray(_normal(t, noise.free + free) * (step > least))


def _normal(t: Floats, free: Floats) -> Floats:
    """Student's distribution as a normal one (Wallace 1959)."""
    return (8 * free + 1) / (8 * free + 3) * np.sqrt(free * np.log1p(t**2 / free))


def _chance(z: Floats) -> Floats:
    return np.array([math.erfc(one / math.sqrt(2)) for one in z.tolist()])

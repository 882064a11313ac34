"""Medians over steps, the intervals that contain them, and how steps of different sizes are made comparable."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from tracekit.arrays.groups import counts, distinct
from tracekit.arrays.types import Flags, Floats, Ints, Rows
from tracekit.comparison.step_metrics import KeyTimes

#: How many binomial standard deviations of ranks an interval reaches to each side of the median.
_DEVIATIONS = 2.5
#: How many standard errors it reaches at most, and the number of steps from which on these are known.
_MOST_ERRORS, _ERRORS_FROM = 4.0, 5
#: For a normal distribution: its standard deviation in median absolute deviations; and the standard error of its median
#: in standard deviations divided by the square root of the number of values.
_PER_MAD, _PER_DEVIATION = 1.4826, 1.2533
#: One in so many of the values is left out at either end.
_TRIMMED = 5
#: The columns of medians that :func:`chance_of` takes.
OF_MEANS = ("trimmed_ns", "variance", "free")


class MatchedTimes(NamedTuple):
    """The times of two runs, restricted to steps that both have.

    A *key* is a thing that is compared; a *cell* is a key in steps of one kind and size.

    Attributes:
        times: For each side: ``key``, ``sizes``, ``partly``, ``ns``, ``kernels``. A key with steps of several sizes has
            as many values of each size as both sides have, levelled: divided by the median of their size. ``sizes`` is
            the number of these sizes, 0 if the key is not levelled; ``partly`` is whether some of its steps were
            ignored.
        keys: The thing of each key.
        share: For each side, the weights of cells within their keys per step of that side, by ``key`` (a thing) and
            ``alike``; without those that are ignored.
        unlike: Which keys both sides have, but in no steps that are alike; they are not compared.
    """

    times: tuple[pd.DataFrame, pd.DataFrame]
    keys: Ints
    share: tuple[pd.Series, ...]
    unlike: Flags


class _Cells(NamedTuple):
    """The cells of two runs; ``kept`` are those that both sides have, or whose key has nothing in common."""

    key: Rows
    steps: tuple[Ints, Ints]
    kept: Flags
    levelled: Flags


def matched_times(before: KeyTimes, after: KeyTimes) -> MatchedTimes:
    """The times of steps of like kind and size; all times of things that only one side has."""
    count = max(len(before.alikes), 1)
    codes, cell = distinct(np.concatenate([side.key.astype(np.int64) * count + side.alike for side in (before, after)]))
    keys, key = distinct(codes // count)
    later = np.arange(cell.size) >= before.key.size
    steps = counts(cell[~later], key.size), counts(cell[later], key.size)
    shared = (steps[0] > 0) & (steps[1] > 0)
    shared_sizes = np.bincount(key, shared)[key] if key.size else np.zeros(0)
    cells = _Cells(key, steps, shared | (shared_sizes == 0), shared & (shared_sizes > 1))
    weights = [np.where(shared, steps[0] + steps[1], own) * cells.kept for own in steps]
    portion = [_shares(weight, key) / np.maximum(own, 1) for weight, own in zip(weights, steps, strict=True)]
    values = [np.concatenate(columns) for columns in zip(before[-2:], after[-2:], strict=True)]
    times = _comparable((values[0], values[1]), cell, later, cells)
    later = later[times.index]
    with_steps = [np.bincount(key, own) > 0 for own in (*steps, np.minimum(*steps))]
    unlike: Flags = with_steps[0] & with_steps[1] & ~with_steps[2]
    of_cells = pd.MultiIndex.from_arrays([keys[key], codes % count], names=["key", "alike"])
    shares = (pd.Series(share, of_cells, name="share").dropna() for share in portion)
    return MatchedTimes((times[~later], times[later]), keys, (*shares,), unlike)


def _comparable(values: tuple[Ints, Ints], cell: Rows, later: Flags, cells: _Cells) -> pd.DataFrame:
    rows = np.flatnonzero(cells.kept[cell] & _chosen(values[0], cell, later, cells))
    times = pd.DataFrame({"key": cells.key[cell[rows]]}, index=rows)
    for name, value in zip(("ns", "kernels"), values, strict=True):
        times[name] = _normalized(value[rows].astype(np.float64), cell[rows], later[rows], cells)
    of_key = times["key"].to_numpy()
    times["sizes"] = np.bincount(cells.key, cells.levelled)[of_key] if len(times) else 0
    times["partly"] = (np.bincount(cells.key, ~cells.kept) > 0)[of_key] if len(times) else False
    return times


def _chosen(value: Ints, cell: Rows, later: Flags, cells: _Cells) -> Flags:
    """All rows of other cells; of levelled ones as many of each side as both have, evenly by rank."""
    order = np.lexsort((value, later, cell))
    count = np.where(later, cells.steps[1][cell], cells.steps[0][cell])
    start = np.concatenate((np.zeros(1, np.int64), np.cumsum(np.stack(cells.steps, axis=1).ravel())))
    rank = np.empty(order.size, np.int64)
    rank[order] = np.arange(order.size)
    rank -= start[2 * cell + later]
    wanted = np.minimum(*cells.steps)[cell]
    # How many of the wanted rows are at or below a rank, if each is in the middle of one of equal parts.
    up_to, before = (-((count - 2 * ranks * wanted) // (2 * count)) for ranks in (rank + 1, rank))
    chosen: Flags = ~cells.levelled[cell] | (np.maximum(up_to, 0) > np.maximum(before, 0))
    return chosen


def _normalized(value: Floats, cell: Rows, later: Flags, cells: _Cells) -> Floats:
    """Values divided by the mean of both sides' medians in their cell, times the mean of these over the key's cells."""
    count = cells.key.size
    middle = np.zeros(count)
    for side in (~later, later):
        middle += pd.Series(value[side]).groupby(cell[side]).median().reindex(range(count)).to_numpy() / 2
    weight = np.where(cells.levelled, np.minimum(*cells.steps), 0)
    level = np.bincount(cells.key, np.nan_to_num(_shares(weight, cells.key) * middle))[cells.key]
    change = (cells.levelled & (middle > 0))[cell]
    divisor = np.where(change, middle[cell], 1.0)
    # Divided first, so that equal values stay equal to the last digit.
    return np.where(change, value / divisor * level[cell], value)


def _shares(weight: Ints, key: Rows) -> Floats:
    total = np.bincount(key, weight)[key] if key.size else weight
    return np.asarray(np.divide(weight, total, out=np.full(weight.size, np.nan), where=weight > 0))


def medians(times: pd.DataFrame) -> pd.DataFrame:
    """The median of every key over its steps, and the interval that contains it; NaN where that is unknown."""
    rows = times.groupby("key", sort=True).agg(
        ns=("ns", "median"),
        kernels=("kernels", "median"),
        steps=("ns", "size"),
        sizes=("sizes", "first"),
        partly=("partly", "first"),
    )
    steps, sizes = rows["steps"].to_numpy(np.int64), rows.pop("sizes").to_numpy(np.float64)
    ordered, first = times.sort_values(["key", "ns"], kind="stable")["ns"].to_numpy(), np.cumsum(steps) - steps
    # Levelling reduces the spread: two values of a size always lie on both sides of their middle.
    free = steps - sizes / 2
    middle, away = (steps - 1) / 2, _DEVIATIONS * np.sqrt(steps) / 2
    low = np.maximum(np.floor(middle - away), 0).astype(np.int64)
    high = np.minimum(np.ceil(middle + away), steps - 1).astype(np.int64)
    lowest, highest = (ordered[first + low], ordered[first + high]) if ordered.size else (low, high)
    apart = (times["ns"] - times.groupby("key")["ns"].transform("median")).abs()
    spread = apart.groupby(times["key"], sort=True).median().to_numpy()
    errors = _MOST_ERRORS * _PER_DEVIATION * _PER_MAD * spread / np.sqrt(free)
    reach = np.where(free < _ERRORS_FROM, np.inf, errors)
    rows.insert(1, "low_ns", np.floor(np.maximum(lowest, np.floor(rows["ns"] - reach))))
    rows.insert(2, "high_ns", np.ceil(np.minimum(highest, np.ceil(rows["ns"] + reach))))
    bounds = ["low_ns", "high_ns"]
    unknown = ((sizes > 0) & (free < _ERRORS_FROM)) | (rows.pop("partly") & (steps == 1))
    rows[bounds] = rows[bounds].mask(unknown)
    rows[[*OF_MEANS]] = np.stack(_trimmed(ordered, first, steps), axis=1)
    rows["free"] = np.where(unknown, np.nan, rows["free"] - sizes / 2)
    return rows if unknown.any() else rows.astype(dict.fromkeys(bounds, np.int64))


def _trimmed(value: Floats, first: Ints, steps: Ints) -> tuple[Floats, Floats, Floats]:
    """For every key: the mean without the lowest and highest fifth, its variance (Yuen), and how many remain.

    Steps that are outliers, such as those in which clocks change, move neither.
    """
    cut = steps // _TRIMMED
    left, last = steps - 2 * cut, max(value.size - 1, 0)
    bounds = [np.minimum(at, last) for at in (first + cut, first + steps - cut - 1)]
    key = np.repeat(np.arange(steps.size), steps)
    winsorized = np.clip(value, value[bounds[0]][key], value[bounds[1]][key]) if value.size else value
    inside = np.arange(value.size) - first[key]
    mean = np.bincount(key, value * ((inside >= cut[key]) & (inside < (steps - cut)[key])), steps.size) / left
    middle = np.bincount(key, winsorized, steps.size) / steps
    squares = np.bincount(key, (winsorized - middle[key]) ** 2, steps.size)
    return mean, squares / np.maximum(left * (left - 1), 1), left.astype(np.float64)


def chance_of(sides: Sequence[pd.DataFrame], scale: float = 1.0) -> Floats:
    """How likely two sides of equal distribution differ as much as they do (Yuen's test); NaN where that is unknown.

    The first side is multiplied by the scale. A side with a single step has the spread of the other; of two such sides
    it is unknown.
    """
    mean, variance, free = ([side[name].to_numpy(np.float64) for side in sides] for name in OF_MEANS)
    mean[0], variance[0] = mean[0] * scale, variance[0] * scale**2
    for one, other in ((0, 1), (1, 0)):
        variance[one] = np.where(free[one] == 1, variance[other] * free[other], variance[one])
    whole = variance[0] + variance[1]
    apart = np.abs(mean[0] - mean[1])
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(apart > 0, apart / np.sqrt(whole), 0.0)
        shares = (np.nan_to_num(part**2 / np.maximum(count - 1, 1)) for part, count in zip(variance, free, strict=True))
        degrees = np.where(whole > 0, whole**2 / sum(shares), 1.0)
        # Student's distribution as a normal one (Wallace 1959).
        normal = (8 * degrees + 1) / (8 * degrees + 3) * np.sqrt(degrees * np.log1p(t**2 / degrees))
    chance = np.array([math.erfc(one / math.sqrt(2)) for one in normal.tolist()])
    return np.where(free[0] + free[1] > 2, chance, np.nan)  # noqa: PLR2004 - a step of either side


def discoveries(chance: Floats, weight: Floats, rate: float) -> Flags:
    """Which changes are real, so that at most a share of these is chance: Benjamini and Hochberg, with weights."""
    is_known = ~np.isnan(chance)
    weighed = chance / weight * (weight[is_known].sum() / max(int(is_known.sum()), 1))
    known = np.sort(weighed[is_known])
    below = np.flatnonzero(known <= rate * np.arange(1, known.size + 1) / max(known.size, 1))
    return np.asarray(weighed <= (known[below[-1]] if below.size else -1.0))

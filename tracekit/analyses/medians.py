"""Medians over steps, the intervals in which they lie, and times of steps that are not alike made comparable."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from tracekit.analyses.step_times import KEYS

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Floats, Ints, Rows

_DEVIATIONS = 2.5
#: How many standard errors of a median its interval reaches at most, and from how many steps on these are known.
_MOST_ERRORS, _ERRORS_FROM = 4.0, 5
#: Of a normal distribution: its standard deviation, in median absolute deviations; the standard error of its median, in
#: standard deviations over the root of the number of values.
_PER_MAD, _PER_DEVIATION = 1.4826, 1.2533


class Like(NamedTuple):
    """Times of two runs in steps that both have.

    Attributes:
        times: Of each side: ``key``, ``sizes``, ``partly``, ``ns``, ``kernels``. Of a key with steps of several sizes
            there are as many values of each size as both sides have, levelled: divided by the median of their size.
            ``sizes`` is how many of these the key has, 0 if it is not levelled; ``partly`` whether it also has steps
            that are left out.
        keys: ``KEYS`` of every key, in their order.
        cells: ``KEYS`` and ``alike`` of every cell: a thing in steps of one kind and size.
        share: Of each side, the weight of every cell among those of its key, by how many steps it has on that side; NaN
            where it is left out.
        unlike: Keys of which both sides have times, but in no steps that are alike; these are compared with nothing.
    """

    times: tuple[pd.DataFrame, pd.DataFrame]
    keys: pd.DataFrame
    cells: pd.DataFrame
    share: tuple[Floats, Floats]
    unlike: Flags


class _Cells(NamedTuple):
    """The key of every cell, how many rows of each side it has, and whether its rows are made comparable."""

    key: Rows
    steps: tuple[Ints, Ints]
    levelled: Flags


def like(before: pd.DataFrame, after: pd.DataFrame) -> Like:
    """The times of steps of like kind and size; of what only one side has, all."""
    both = pd.concat([before, after], ignore_index=True)
    both = both.assign(shapes=both["shapes"].fillna(""))
    grouped = both.groupby([*KEYS, "alike"], sort=True)
    cell = np.asarray(grouped.ngroup(), np.int64)
    named = grouped.size().reset_index()[[*KEYS, "alike"]]
    of_keys = named.groupby(KEYS, sort=True)
    key = np.asarray(of_keys.ngroup(), np.int64)
    keys = of_keys.size().reset_index()[KEYS]
    later = np.arange(len(both)) >= len(before)
    one, other = (np.bincount(cell[its], minlength=len(named)) for its in (~later, later))
    common = (one > 0) & (other > 0)
    of_one, of_other, shared = (np.bincount(key, its, len(keys)) for its in (one, other, common))
    kept = common | ~(shared > 0)[key]
    cells = _Cells(key, (one, other), common & (shared > 1)[key])
    rows = kept[cell] & _chosen(both["ns"].to_numpy(), cell, later, cells)
    times = both[["ns", "kernels"]].astype(np.float64).assign(key=key[cell])[rows]
    for name in ("ns", "kernels"):
        times[name] = _levelled(times[name].to_numpy(), cell[rows], later[rows], cells)
    times["sizes"] = np.bincount(key, cells.levelled)[times["key"]] if len(times) else 0
    times["partly"] = (np.bincount(key, ~kept) > 0)[times["key"]] if len(times) else False
    weights = [np.where(common, one + other, count) * kept for count in (one, other)]
    return Like(
        (times[~later[rows]], times[later[rows]]),
        keys,
        named,
        (
            _shares(weights[0], key) / np.maximum(one, 1),
            _shares(weights[1], key) / np.maximum(other, 1),
        ),
        (of_one > 0) & (of_other > 0) & (shared == 0),
    )


def _chosen(value: Ints, cell: Rows, later: Flags, cells: _Cells) -> Flags:
    """Of cells that are levelled, as many rows of each side as the other has, evenly from the least to the most."""
    order = np.lexsort((value, later, cell))
    count = np.where(later, cells.steps[1][cell], cells.steps[0][cell])
    start = np.concatenate((np.zeros(1, np.int64), np.cumsum(np.stack(cells.steps, axis=1).ravel())))
    rank = np.empty(order.size, np.int64)
    rank[order] = np.arange(order.size)
    rank -= start[2 * cell + later]
    wanted = np.minimum(*cells.steps)[cell]
    # How many of the wanted lie up to a rank, if they stand in the middle of equal parts.
    up_to, before = (-((count - 2 * ranks * wanted) // (2 * count)) for ranks in (rank + 1, rank))
    found: Flags = ~cells.levelled[cell] | (np.maximum(up_to, 0) > np.maximum(before, 0))
    return found


def _levelled(value: Floats, cell: Rows, later: Flags, cells: _Cells) -> Floats:
    """Values by the middle of both sides' medians in their cell, times the mean of these over the cells of the key."""
    count = cells.key.size
    middle = np.zeros(count)
    for side in (~later, later):
        middle += pd.Series(value[side]).groupby(cell[side]).median().reindex(range(count)).to_numpy() / 2
    weight = np.where(cells.levelled, np.minimum(*cells.steps), 0)
    level = np.bincount(cells.key, np.nan_to_num(_shares(weight, cells.key) * middle))[cells.key]
    change = (cells.levelled & (middle > 0))[cell]
    divisor = np.where(change, middle[cell], 1.0)
    # First divided, so that equal values stay equal to the last digit.
    return np.where(change, value / divisor * level[cell], value)


def _shares(weight: Ints, key: Rows) -> Floats:
    total = np.bincount(key, weight)[key] if key.size else weight
    found: Floats = np.divide(weight, total, out=np.full(weight.size, np.nan), where=weight > 0)
    return found


def medians(times: pd.DataFrame) -> pd.DataFrame:
    """Of every key the median over its steps, and between which values it lies; NaN where nothing tells that."""
    grouped = times.groupby("key", sort=True)
    found = grouped.agg(
        ns=("ns", "median"),
        kernels=("kernels", "median"),
        steps=("ns", "size"),
        sizes=("sizes", "first"),
        partly=("partly", "first"),
    )
    steps, sizes = found["steps"].to_numpy(np.float64), found.pop("sizes").to_numpy(np.float64)
    # Levelling takes from the spread: two values of a size lie on both sides of their middle, whatever they are.
    free = steps - sizes / 2
    low, high = _interval(found["steps"].to_numpy())
    first = np.cumsum(found["steps"].to_numpy()) - found["steps"].to_numpy()
    ordered = times.sort_values(["key", "ns"], kind="stable")["ns"].to_numpy()
    lowest, highest = (ordered[first + rank] if len(ordered) else rank for rank in (low, high))
    reach = _reach(times, free)
    unknown = ((sizes > 0) & (free < _ERRORS_FROM)) | (found.pop("partly") & (steps == 1))
    found.insert(1, "low_ns", np.floor(np.maximum(lowest, np.floor(found["ns"] - reach))))
    found.insert(2, "high_ns", np.ceil(np.minimum(highest, np.ceil(found["ns"] + reach))))
    bounds = ["low_ns", "high_ns"]
    found[bounds] = found[bounds].mask(unknown)
    return found if unknown.any() else found.astype(dict.fromkeys(bounds, np.int64))


def _reach(times: pd.DataFrame, steps: Floats) -> Floats:
    """How far from each median, in ns, the true one may be by the spread of the values around it."""
    away = (times["ns"] - times.groupby("key")["ns"].transform("median")).abs()
    spread = away.groupby(times["key"], sort=True).median().to_numpy()
    errors = _MOST_ERRORS * _PER_DEVIATION * _PER_MAD * spread / np.sqrt(steps)
    return np.where(steps < _ERRORS_FROM, np.inf, errors)


def _interval(steps: Ints) -> tuple[Ints, Ints]:
    """The ranks between which the median of so many values lies."""
    reach = _DEVIATIONS * np.sqrt(steps) / 2
    middle = (steps - 1) / 2
    low = np.maximum(np.floor(middle - reach), 0).astype(np.int64)
    high = np.minimum(np.ceil(middle + reach), steps - 1).astype(np.int64)
    return low, high

"""Sums and extremes over many slices of one array, in time that does not grow with the slices' lengths.

Knows no traces. A slice ``[low, high)`` with ``high <= low`` is empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tracekit.arrays import Ints


_BLOCK = 32


def sums(values: Ints, low: Ints, high: Ints) -> Ints:
    """The sum of ``values[low:high]`` for every slice."""
    running = np.concatenate(([0], np.cumsum(values)))
    return np.asarray(np.where(high > low, running[np.maximum(high, low)] - running[low], 0), dtype=np.int64)


def minima(values: Ints, low: Ints, high: Ints, empty: int) -> Ints:
    """The least of ``values[low:high]`` for every slice, ``empty`` for empty slices."""
    return _extremes(np.minimum, values, low, high, empty, np.iinfo(np.int64).max)


def maxima(values: Ints, low: Ints, high: Ints, empty: int) -> Ints:
    """The greatest of ``values[low:high]`` for every slice, ``empty`` for empty slices."""
    return _extremes(np.maximum, values, low, high, empty, np.iinfo(np.int64).min)


def _extremes(better: np.ufunc, values: Ints, low: Ints, high: Ints, empty: int, neutral: int) -> Ints:
    result = np.full(low.size, empty, dtype=np.int64)
    some = np.flatnonzero(high > low)
    if not some.size:
        return result
    low, high = low[some], high[some]
    short = high - low <= _BLOCK
    found = np.empty(some.size, dtype=np.int64)
    found[short] = _scanned(better, values, low[short], high[short], neutral)
    far_low, far_high = low[~short], high[~short]
    first, last = -(-far_low // _BLOCK), far_high // _BLOCK
    blocks = _sparse_table(better, values, neutral)
    far = _from_table(better, blocks, first, last, neutral)
    far = better(far, _scanned(better, values, far_low, first * _BLOCK, neutral))
    found[~short] = better(far, _scanned(better, values, last * _BLOCK, far_high, neutral))
    result[some] = found
    return result


def _scanned(better: np.ufunc, values: Ints, low: Ints, high: Ints, neutral: int) -> Ints:
    """Extremes of slices short enough to look at every value."""
    result = np.full(low.size, neutral, dtype=np.int64)
    single = np.flatnonzero(high == low + 1)
    result[single] = values[low[single]]
    some = np.flatnonzero(high > low + 1)
    if some.size:
        padded = np.append(values, neutral)
        edges = np.column_stack((low[some], high[some])).ravel()
        result[some] = better.reduceat(padded, edges)[::2]
    return result


def _sparse_table(better: np.ufunc, values: Ints, neutral: int) -> list[Ints]:
    """``table[k][b]`` is the extreme of the 2^k blocks from block b on."""
    padding = -values.size % _BLOCK
    level = better.reduce(np.append(values, np.full(padding, neutral)).reshape(-1, _BLOCK), axis=1)
    table = [np.asarray(level, dtype=np.int64)]
    while table[-1].size > 1 << (len(table) - 1):
        half = 1 << (len(table) - 1)
        table.append(better(table[-1][:-half], table[-1][half:]))
    return table


def _from_table(better: np.ufunc, table: list[Ints], first: Ints, last: Ints, neutral: int) -> Ints:
    result = np.full(first.size, neutral, dtype=np.int64)
    length = last - first
    power = np.zeros(first.size, dtype=np.int64)
    power[length > 0] = np.floor(np.log2(length[length > 0])).astype(np.int64)
    for k in np.unique(power[length > 0]):
        rows = np.flatnonzero((power == k) & (length > 0))
        result[rows] = better(table[k][first[rows]], table[k][last[rows] - (1 << int(k))])
    return result

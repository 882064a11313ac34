"""Sums and extremes over many slices of one array, in time that does not grow with their lengths.

Knows no traces. A slice ``[low, high)`` with ``high <= low`` is empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.arrays.types import Flags, Ints

_BLOCK = 32
_PIECE = 131_072


def sums(values: Ints, low: Ints, high: Ints) -> Ints:
    """The sum of ``values[low:high]`` for every slice."""
    running = np.concatenate(([0], np.cumsum(values)))
    return np.asarray(np.where(high > low, running[np.maximum(high, low)] - running[low], 0), dtype=np.int64)


def minima(values: Ints, low: Ints, high: Ints, empty: int) -> Ints:
    """The least of ``values[low:high]`` for every slice, ``empty`` for empty slices."""
    return least_of(values)(low, high, empty)


def maxima(values: Ints, low: Ints, high: Ints, empty: int) -> Ints:
    """The greatest of ``values[low:high]`` for every slice, ``empty`` for empty slices."""
    return greatest_of(values)(low, high, empty)


def least_of(values: Ints) -> Callable[[Ints, Ints, int], Ints]:
    """:func:`minima` of one array, whose slices are asked for in turn."""
    if _rising(values):
        return lambda low, high, empty: _chosen(values, low, high > low, empty)
    return _extremes(np.minimum, values, np.iinfo(np.int64).max)


def greatest_of(values: Ints) -> Callable[[Ints, Ints, int], Ints]:
    """:func:`maxima` of one array, whose slices are asked for in turn."""
    if _rising(values):
        return lambda low, high, empty: _chosen(values, high - 1, high > low, empty)
    return _extremes(np.maximum, values, np.iinfo(np.int64).min)


def _rising(values: Ints) -> bool:
    """Whether no value is less than the one before it, as times of work that one queue ran in order."""
    return bool((values[1:] >= values[:-1]).all())


def _chosen(values: Ints, at: Ints, some: Flags, empty: int) -> Ints:
    """The value at one place of every slice that is not empty."""
    result = np.full(at.size, empty, dtype=np.int64)
    result[some] = values[at[some]]
    return result


def _extremes(better: np.ufunc, values: Ints, neutral: int) -> Callable[[Ints, Ints, int], Ints]:
    padded = np.append(values, neutral)
    table = _sparse_table(better, values, neutral)

    def of(low: Ints, high: Ints, empty: int) -> Ints:
        result = np.full(low.size, empty, dtype=np.int64)
        # In pieces, so that intermediate arrays fit into the cache.
        for begin in range(0, low.size, _PIECE):
            piece = slice(begin, begin + _PIECE)
            some = np.flatnonzero(high[piece] > low[piece])
            first, last = low[piece][some], high[piece][some]
            result[begin + some] = _piece_extremes(better, padded, table, (first, last), neutral)
        return result

    return of


def _piece_extremes(better: np.ufunc, padded: Ints, table: list[Ints], slices: tuple[Ints, Ints], neutral: int) -> Ints:
    """Extremes of slices that are not empty: short ones value by value, long ones by whole blocks and the rest."""
    low, high = slices
    extremes = np.empty(low.size, dtype=np.int64)
    short = high - low <= _BLOCK
    extremes[short] = _scanned(better, padded, low[short], high[short], neutral)
    low, high = low[~short], high[~short]
    first, last = -(-low // _BLOCK), high // _BLOCK
    far = _from_table(better, table, first, last, neutral)
    far = better(far, _scanned(better, padded, low, first * _BLOCK, neutral))
    extremes[~short] = better(far, _scanned(better, padded, last * _BLOCK, high, neutral))
    return extremes


def _scanned(better: np.ufunc, padded: Ints, low: Ints, high: Ints, neutral: int) -> Ints:
    """Extremes of short slices, value by value."""
    result = np.full(low.size, neutral, dtype=np.int64)
    single = np.flatnonzero(high == low + 1)
    result[single] = padded[low[single]]
    some = np.flatnonzero(high > low + 1)
    if some.size:
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

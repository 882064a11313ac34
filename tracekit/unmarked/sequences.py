"""Two sequences side by side: what all alignments that match the most agree on.

An alignment pairs equal elements in order. Among all that reach the greatest sum of weights, those that pass through a
cell are known from two tables: the best sum up to the cell, and the best sum from there on. Only cells near the
diagonal can be on one of them, so both tables are bands.
"""

from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from tracekit.arrays.types import Flags, Ints, Rows

#: More cells of a band are not worth the time: such sequences have little in common.
MOST_CELLS = 10_000_000
_FIRST_BAND = 32
#: If one of many identical layers is missing, chance decides which alignment matches best. One that pairs an element so
#: many places away for each pair that it lacks is as good, if it lacks at most this share of the pairs.
_SHIFTED, _FEW = 3, 0.1
#: A label that no row has.
_NEVER = np.iinfo(np.int32).max


class Agreement(NamedTuple):
    """What all best alignments of two sequences agree on."""

    matched: int  # how many pairs the best alignments have
    place: Rows  # for every left element the only right one that it is ever paired with, if it always is; else -1
    some: Rows  # one that it is paired with in some best alignment, or -1
    label: Rows  # the label of all that it is ever paired with, where they are the same and it always is; else -1
    used: Flags  # which right elements are paired in some best alignment


def comparable(left: int, right: int) -> bool:
    """Whether sequences of such sizes can be compared at all."""
    return left * (abs(right - left) + 2 * _FIRST_BAND + 1) <= MOST_CELLS


def agreement(left: Ints, right: Ints, labels: Rows, exact: tuple[Ints, Ints] | None = None) -> Agreement | None:
    """Compares two sequences; None if they have too little in common to compare.

    ``labels`` are those of the right elements, at least -1. If two alignments match equally much, ``exact``, if
    given, decides: finer signatures of both, of which as many as possible shall be equal, too.
    """
    if not left.size or not right.size:
        return None
    if np.array_equal(left, right):
        # Each other alignment lacks a pair for each place that it is shifted by.
        every = np.arange(left.size)
        return Agreement(left.size, every, every, labels, np.ones(left.size, dtype=bool))
    unit = min(left.size, right.size) + 1 if exact else 1
    reach = _FIRST_BAND
    while True:
        low, high = min(0, right.size - left.size) - reach, max(0, right.size - left.size) + reach
        if left.size * (high - low + 1) > MOST_CELLS:
            return None
        weights = _weights(left, right, low, high, unit)
        if exact:
            weights += _weights(*exact, low, high, 1) * (weights > 0)
        forward = _sums(weights)
        matched = int(forward[-1, right.size - left.size - low]) // unit
        if left.size - matched <= -low and right.size - matched <= high:
            return _agreed(weights, forward, labels, low, unit)._replace(matched=matched)
        reach = 4 * reach + 1


def _weights(left: Ints, right: Ints, low: int, high: int, weight: int) -> Ints:
    """The weight of pairing each left element with the right ones of its band; 0 where they differ."""
    at = _places(left.size, low, high)
    inside = (at >= 0) & (at < right.size)
    equal = right[np.where(inside, at, 0)] == left[:, None] if right.size else np.zeros(at.shape, dtype=bool)
    return np.where(inside & equal, np.int64(weight), 0)


def _places(rows: int, low: int, high: int) -> Rows:
    return sliding_window_view(np.arange(low, rows + high), high - low + 1)[:rows]


def _sums(weights: Ints) -> Ints:
    """The best sum of pairs before each cell, where cell t of row i is that of the left i and the right i + low + t."""
    sums = np.zeros((weights.shape[0] + 1, weights.shape[1]), dtype=np.int64)
    for row, own in enumerate(weights):
        before, after = sums[row], sums[row + 1]
        np.add(before, own, out=after)
        np.maximum(after[:-1], before[1:], out=after[:-1])
        np.maximum.accumulate(after, out=after)
    return sums


def _agreed(weights: Ints, forward: Ints, labels: Rows, low: int, unit: int) -> Agreement:
    backward = _sums(weights[::-1, ::-1])[::-1, ::-1]
    (lefts, width), rights = weights.shape, labels.size
    best = int(forward[-1, rights - lefts - low])
    lost = best - (forward[:-1] + weights + backward[1:])
    skipped = (forward[:-1, 1:] + backward[1:, :-1] == best).any(axis=1)
    at = _places(lefts, low, low + width - 1)
    last = np.where((weights > 0) & (lost == 0), at, -1).max(axis=1, initial=-1)
    apart = np.where(last >= 0, np.abs(at.T - last), 0).T
    shifted = (apart >= _SHIFTED) & (_SHIFTED * lost <= unit * apart) & (lost <= _FEW * best)
    paired = (weights > 0) & ((lost == 0) | shifted)
    first = np.where(paired, at, _NEVER).min(axis=1, initial=_NEVER)
    last = np.where(paired, at, -1).max(axis=1, initial=-1)
    of = np.append(labels, -1)[np.where(paired, at, rights)]
    lowest = np.where(paired, of, _NEVER).min(axis=1, initial=_NEVER)
    highest = of.max(axis=1, initial=-1)
    used = np.zeros(rights, dtype=bool)
    used[at[paired]] = True
    always = ~skipped & (last >= 0)
    return Agreement(
        matched=best,
        place=np.where(always & (first == last), last, -1),
        some=last,
        label=np.where(always & (lowest == highest), highest, -1),
        used=used,
    )

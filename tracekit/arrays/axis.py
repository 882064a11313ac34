"""One axis for the times of many groups (threads, devices), laid end to end: with their distances, or as ranks."""

from collections.abc import Sequence

import numpy as np

from tracekit.arrays.types import Ints

#: The number of places on a 64-bit axis, with some to spare for rounding.
_ROOM = 2.0**64 - 2.0**16


def measured_axis(groups: Sequence[Ints], times: Sequence[Ints]) -> list[Ints] | None:
    """Lays groups end to end, so that they never touch, and keeps the distances within each.

    ``groups`` holds the group (0, 1, …) of every entry of each array. Returns the arrays on the common axis, in the
    order given; None if all groups together span more than 64 bits.
    """
    filled = [(g, t) for g, t in zip(groups, times, strict=True) if t.size]
    if not filled:
        return list(times)
    first = min(int(g.min()) for g, _ in filled)
    lines = max(int(g.max()) for g, _ in filled) - first + 1
    if lines == 1:
        return list(times)
    low, high = min(int(t.min()) for _, t in filled), max(int(t.max()) for _, t in filled)
    # Groups at about the same time all fit into spans of one length, which is fastest.
    if (span := high - low + 2) * lines < _ROOM / 4:
        return [(np.asarray(g, np.int64) - first) * span + (t - low) for g, t in zip(groups, times, strict=True)]
    lowest = np.full(lines, np.iinfo(np.int64).max)
    highest = np.full(lines, np.iinfo(np.int64).min)
    for g, t in filled:
        np.minimum.at(lowest, g - first, t)
        np.maximum.at(highest, g - first, t)
    shift = _shifts(lowest, highest)
    return None if shift is None else [t + shift[g - first] for g, t in zip(groups, times, strict=True)]


def ranked_axis(groups: Sequence[Ints], times: Sequence[Ints]) -> list[Ints]:
    """The same with ranks in place of times: they always fit, but only their order has a meaning."""
    distinct = np.unique(np.concatenate(times))
    return [
        np.asarray(g, np.int64) * (distinct.size + 1) + np.searchsorted(distinct, t)
        for g, t in zip(groups, times, strict=True)
    ]


def _shifts(low: Ints, high: Ints) -> Ints | None:
    used = low <= high
    total = float(np.where(used, high.astype(np.float64) - low + 2.0, 0.0).sum())
    if total >= _ROOM:
        return None
    first = low.astype(np.uint64)  # two's complement: intermediate sums may wrap around
    length = np.where(used, high.astype(np.uint64) - first + np.uint64(2), np.uint64(0))
    begin = np.uint64(0 if total < _ROOM / 2 else 2**63)
    return (begin + np.cumsum(length) - length - first).astype(np.int64)

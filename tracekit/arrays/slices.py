"""Sums, extremes and lengths of unions over slices of one array, such as subtrees in pre-order."""

from collections.abc import Callable
from functools import partial

import numpy as np

from tracekit.arrays.types import Flags, Ints, Rows


def members(low: Ints, high: Ints) -> tuple[Rows, Rows]:
    """The members of all slices ``low:high`` in turn: the number of the slice, and the place."""
    number = np.repeat(np.arange(low.size), high - low)
    return number, np.arange(number.size) + (high - np.cumsum(high - low))[number]


def sums_to(values: Ints, end: Ints) -> Ints:
    """The sum of ``values[row:end[row]]`` for every row."""
    running = np.concatenate(([0], np.cumsum(values)))
    total: Ints = running[end]
    total -= running[:-1]
    return total


def least_of(values: Ints) -> Callable[[Ints, Ints, int], Ints]:
    """Gives the least of ``values[low:high]`` for every slice, ``empty`` for empty slices."""
    return partial(_extremes, np.minimum, values)


def greatest_of(values: Ints) -> Callable[[Ints, Ints, int], Ints]:
    """Gives the greatest of ``values[low:high]`` for every slice, ``empty`` for empty slices."""
    return partial(_extremes, np.maximum, values)


def _extremes(better: np.ufunc, values: Ints, low: Ints, high: Ints, empty: int) -> Ints:
    extremes = np.full(low.size, empty, dtype=np.int64)
    some = np.flatnonzero(high > low)
    if bool((values[1:] >= values[:-1]).all()):
        extremes[some] = values[low[some] if better is np.minimum else high[some] - 1]
        return extremes
    # NumPy also walks over what lies between one slice and the next. Inside a slice it takes 0.1 ns for each value.
    some = some[np.argsort(low[some], kind="stable")]
    edges = np.column_stack((low[some], high[some])).ravel()
    extremes[some] = better.reduceat(np.append(values, 0), edges)[::2]
    return extremes


def union_within(owner: Rows, forest: tuple[Rows, Ints, Rows], start: Ints, end: Ints) -> Ints:
    """For every node of a forest, the length of the union of the intervals that it and its descendants own.

    ``forest`` holds for each node, in pre-order, the node above it, or -1; its depth; and the end of its subtree.
    """
    parent, _, subtree_end = forest
    total = np.zeros(parent.size, dtype=np.int64)
    order = _by_start(start, owner)
    overlaps, again = _overlaps(start[order], end[order])
    simple = order[~overlaps]
    np.add.at(total, owner[simple], (end - start)[simple])
    # What several nodes own counts once for those that all of them are part of: the nodes are in pre-order.
    twice = np.flatnonzero(again)
    both = _around(owner[order[twice - 1]], owner[order[twice]], parent, subtree_end)
    np.subtract.at(total, both[both >= 0], (end - start)[order[twice]][both >= 0])
    running = np.concatenate(([0], np.cumsum(total)))
    total = running[subtree_end] - running[:-1]
    _merge(total, (owner, start, end), order[overlaps], forest)
    return total


def _by_start(start: Ints, owner: Rows) -> Rows:
    order = np.argsort(start, kind="stable")
    starts, owners = start[order], owner[order]
    ascending = (owners[1:] >= owners[:-1]) | (starts[1:] > starts[:-1])
    return order if bool(ascending.all()) else np.lexsort((owner, start))


def _overlaps(start: Ints, end: Ints) -> tuple[Flags, Flags]:
    """Which intervals, ordered by start, share time with others that are not equal; and which follow an equal one.

    A chain of intervals that overlap is one cluster: all of its members are equal, or none counts as equal.
    """
    touches = start[1:] < np.maximum.accumulate(end)[:-1]
    if not touches.any():
        return np.zeros(start.size, dtype=bool), np.zeros(start.size, dtype=bool)
    equal = touches & (start[1:] == start[:-1]) & (end[1:] == end[:-1])
    cluster = np.concatenate(([0], np.cumsum(~touches)))[: start.size]
    uneven = np.zeros(start.size, dtype=bool)
    uneven[cluster[1:][touches & ~equal]] = True
    overlaps = uneven[cluster]
    return overlaps, np.append(False, equal)[: start.size] & ~overlaps


def _around(node: Rows, later: Rows, parent: Rows, subtree_end: Rows) -> Rows:
    around = node.copy()
    outside = np.flatnonzero(subtree_end[around] <= later)
    while outside.size:
        around[outside] = parent[around[outside]]
        outside = outside[around[outside] >= 0]
        outside = outside[subtree_end[around[outside]] <= later[outside]]
    return around


def _merge(total: Ints, owned: tuple[Rows, Ints, Ints], order: Rows, forest: tuple[Rows, Ints, Rows]) -> None:
    parent, depth, _ = forest
    at, start, end = (column[order] for column in owned)
    ends = np.sort(end)
    rank = np.searchsorted(ends, end)
    for level in range(int(depth[at].max(initial=-1)), -1, -1):
        rows = np.flatnonzero(depth[at] == level)
        rows = rows[np.argsort(at[rows], kind="stable")]
        _add_unions(total, at[rows], start[rows], end[rows], (rank[rows], ends))
        at[rows] = np.where(level > 0, parent[at[rows]], at[rows])


def _add_unions(total: Ints, group: Rows, start: Ints, end: Ints, ranked: tuple[Ints, Ints]) -> None:
    if group.size:
        fresh = np.concatenate(([True], group[1:] != group[:-1]))
        rank, ends = ranked
        lift = (np.cumsum(fresh) - 1) * ends.size
        reach = ends[np.maximum.accumulate(rank + lift) - lift]
        covered = np.where(fresh, start, np.concatenate((start[:1], reach[:-1])))
        np.add.at(total, group, np.maximum(end - np.maximum(start, covered), 0))

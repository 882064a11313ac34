"""Lengths of unions of intervals, for every node of a forest over what it and its descendants own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints, Rows


def union_within(owner: Rows, forest: tuple[Rows, Ints, Rows], start: Ints, end: Ints) -> Ints:
    """For every node of a forest, the length of the union of the intervals that it and its descendants own.

    Args:
        owner: The node that owns each interval.
        forest: The node above each node, or -1; its depth; and the end of its subtree. Nodes are in pre-order.
        start: Starts of the intervals.
        end: Ends of the intervals.
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
    """The order of intervals by start, and by owner where starts are equal."""
    order = np.argsort(start, kind="stable")
    starts, owners = start[order], owner[order]
    ascending = (owners[1:] >= owners[:-1]) | (starts[1:] > starts[:-1])
    return order if bool(ascending.all()) else np.lexsort((owner, start))


def _overlaps(start: Ints, end: Ints) -> tuple[Flags, Flags]:
    """Which intervals, ordered by start, share time with others that are not equal; and which follow an equal one.

    A chain of intervals that overlap is one cluster: all of its members are equal, or none counts as equal.
    """
    touches = start[1:] < np.maximum.accumulate(end)[:-1]
    equal = touches & (start[1:] == start[:-1]) & (end[1:] == end[:-1])
    cluster = np.concatenate(([0], np.cumsum(~touches)))[: start.size]
    uneven = np.zeros(start.size, dtype=bool)
    uneven[cluster[1:][touches & ~equal]] = True
    overlaps = uneven[cluster]
    return overlaps, np.append(False, equal)[: start.size] & ~overlaps


def _around(node: Rows, later: Rows, parent: Rows, subtree_end: Rows) -> Rows:
    """The innermost node that each of some nodes is, or is part of, as is the same or a later one; or -1."""
    around = node.copy()
    outside = np.flatnonzero(subtree_end[around] <= later)
    while outside.size:
        around[outside] = parent[around[outside]]
        outside = outside[around[outside] >= 0]
        outside = outside[subtree_end[around[outside]] <= later[outside]]
    return around


def _merge(total: Ints, owned: tuple[Rows, Ints, Ints], order: Rows, forest: tuple[Rows, Ints, Rows]) -> None:
    """Adds the unions of intervals that overlap others, which are merged anew at every node above them.

    Args:
        total: What it adds to.
        owned: Owners, starts and ends of all intervals.
        order: Those to add, ordered by start.
        forest: The nodes.
    """
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
    """Adds the length of the union of each group's intervals, which are sorted by (group, start)."""
    if group.size:
        fresh = np.concatenate(([True], group[1:] != group[:-1]))
        rank, ends = ranked
        lift = (np.cumsum(fresh) - 1) * ends.size
        reach = ends[np.maximum.accumulate(rank + lift) - lift]
        covered = np.where(fresh, start, np.concatenate((start[:1], reach[:-1])))
        np.add.at(total, group, np.maximum(end - np.maximum(start, covered), 0))

"""Arithmetic of intervals: how they nest, what they cover, and lanes to draw them in. It knows no traces.

Intervals of many lines (such as threads) are first laid end to end on one axis (:func:`one_axis`), so that everything
after it deals with a single sequence sorted by ``(start, -end)``. An interval contains another that starts after it
(or with it) and does not outlast it. On one axis, ``parent[i]`` is the latest interval before ``i`` that contains
it, or -1. Along the chain of parents the ends never decrease: this holds for properly nested intervals and for
overlapping ones alike, and is what :func:`innermost` relies on.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tracekit.arrays.slices import members
from tracekit.arrays.types import Flags, Ints, Rows

_PLAIN_CLIMBS = 64
#: The number of places that an axis has.
_ROOM = 2.0**62


def one_axis(groups: Sequence[Ints], times: Sequence[Ints]) -> list[Ints]:
    """Lays the times of several groups end to end, so that groups never touch and order within each is kept.

    Only the order and equality of the results have a meaning, not their distances; for lengths, use
    :func:`measured_axis` or subtract the times themselves.

    ``groups`` holds the group (0, 1, …) of every entry of each array. The arrays come back in the order given.
    """
    placed = measured_axis(groups, times)
    if placed is not None:
        return placed
    distinct = np.unique(np.concatenate(times))  # their ranks always fit
    return [
        np.asarray(g, np.int64) * (distinct.size + 1) + np.searchsorted(distinct, t)
        for g, t in zip(groups, times, strict=True)
    ]


def measured_axis(groups: Sequence[Ints], times: Sequence[Ints]) -> list[Ints] | None:
    """As :func:`one_axis`, and keeps the distances within each group; None if the longest is too long for that."""
    filled = [(g, t) for g, t in zip(groups, times, strict=True) if t.size]
    if not filled:
        return list(times)
    first = min(int(g.min()) for g, _ in filled)
    lines = max(int(g.max()) for g, _ in filled) - first + 1
    if lines == 1:
        return list(times)
    low, high = min(int(t.min()) for _, t in filled), max(int(t.max()) for _, t in filled)
    # Groups at about the same time all fit into spans of one length, which is fastest.
    if (span := high - low + 2) * lines < _ROOM:
        return [(np.asarray(g, np.int64) - first) * span + (t - low) for g, t in zip(groups, times, strict=True)]
    # Others may be decades apart: each is measured from its own first time.
    lowest = np.full(lines, np.iinfo(np.int64).max)
    for g, t in filled:
        np.minimum.at(lowest, g - first, t)
    since = [t.astype(np.uint64) - lowest[g - first].astype(np.uint64) for g, t in zip(groups, times, strict=True)]
    if (span := max(int(t.max(initial=0)) for t in since) + 2) * lines >= _ROOM:
        return None
    return [(np.asarray(g, np.int64) - first) * span + t.astype(np.int64) for g, t in zip(groups, since, strict=True)]


def nesting_order(start: Ints, end: Ints, *ties: Ints | Flags) -> Rows:
    """The permutation that sorts by ``(start, -end)``, then by the values in ``ties``; others keep their order."""
    order = np.argsort(start, kind="stable")
    starts = start[order]
    tied = np.zeros(start.size, dtype=bool)
    tied[1:] = starts[1:] == starts[:-1]
    tied[:-1] |= tied[1:]
    places = np.flatnonzero(tied)
    rows = order[places]
    order[places] = rows[np.lexsort((rows, *(tie[rows] for tie in reversed(ties)), -end[rows], start[rows]))]
    return order


def parents(start: Ints, end: Ints) -> tuple[Rows, Ints]:
    """For every interval the latest one before it that contains it, or -1; and how many contain it, by that chain.

    An interval that starts where another ends lies outside of it, unless it is empty: an empty one lies inside
    whatever touches it, as NVIDIA has it. Empty ones contain nothing.

    Intervals are sorted by ``(start, -end)``.
    """
    lasts = end > start
    if lasts.all():
        return _parents_of_lasting(start, end)
    lasting = np.flatnonzero(lasts)
    s, e = start[lasting], end[lasting]
    around, level = _parents_of_lasting(s, e)
    parent = np.full(start.size, -1, dtype=np.int32)
    depth = np.zeros(start.size, dtype=np.int32)
    parent[lasting], depth[lasting] = np.append(lasting, -1)[around], level
    empty = np.flatnonzero(end == start)
    touched = innermost(s, e, around, start[empty], end[empty])
    parent[empty], depth[empty] = np.append(lasting, -1)[touched], np.append(level, -1)[touched] + 1
    return parent, depth


def _parents_of_lasting(start: Ints, end: Ints) -> tuple[Rows, Ints]:
    # Most end before the next one starts. The ends of the others must be searched for.
    open_at_next = np.flatnonzero(end[:-1] > start[1:])
    change = np.bincount(np.searchsorted(start, end[open_at_next]), minlength=start.size + 1)[:-1]
    change[open_at_next + 1] -= 1
    level = -np.cumsum(change, dtype=np.int32)
    parent = _parents_if_nested(end, level)
    if parent is None:
        parent = _parents_of_any(start, end)
        level = depths(parent)
    return parent, level


def _parents_if_nested(end: Ints, level: Ints) -> Rows | None:
    """The parents, if intervals nest or are apart; None if some overlap in part."""
    runs = _runs(level)
    # A run one level down lies in the interval right before it; any other goes on where the one before it left off.
    above = np.empty(runs.begin.size, dtype=np.int32)
    down = np.flatnonzero(runs.down)
    above[runs.order] = np.repeat(runs.begin[runs.order[down]] - 1, np.diff(down, append=runs.order.size))
    reach = np.maximum.reduceat(end, runs.begin)
    nested = bool(((above < 0) | (end.take(above) >= reach)).all())
    return np.repeat(above, np.diff(runs.begin, append=level.size)) if nested else None


class _Runs(NamedTuple):
    """Rows of one level that follow each other in pre-order, and so have one parent: one look for all of them.

    ``down`` marks whether each lies right inside the row before it; any other has the parent of the one before it here.
    """

    begin: Rows
    order: Rows
    down: Flags


def _runs(level: Ints) -> _Runs:
    begin = np.flatnonzero(np.append(True, level[1:] != level[:-1])[: level.size])
    order = _order_by_level(level[begin])
    return _Runs(begin, order, (np.diff(level[begin], prepend=-1) > 0)[order])


def siblings_before(depth: Ints) -> Rows:
    """For every row of a forest in pre-order the row before it that has the same parent, or -1. Roots are siblings."""
    before = np.arange(-1, depth.size - 1, dtype=np.int32)
    runs = _runs(depth)
    last = np.append(runs.begin[1:], depth.size) - 1
    before[runs.begin[runs.order]] = np.where(runs.down, -1, np.roll(last[runs.order], 1))
    return before


def _parents_of_any(start: Ints, end: Ints) -> Rows:
    """The parents of intervals that may overlap in part.

    What stands between an interval and its parent so far ends before it does. If that holds of the parent too, so it
    does of all up to the parent's own: all go up at once, until the parent ends no earlier.
    """
    parent = np.arange(-1, start.size - 1, dtype=np.int32)
    parent[1:][start[1:] >= np.maximum.accumulate(end)[:-1]] = -1  # nothing before it is still open
    active = np.flatnonzero(parent >= 0)
    while active.size:
        active = active[end[parent[active]] < end[active]]
        parent[active] = parent[parent[active]]
        active = active[parent[active] >= 0]
    return parent


def depths(parent: Rows) -> Ints:
    """How many intervals contain each one, following ``parent``."""
    depth = (parent >= 0).astype(np.int32)
    above, reached = parent.copy(), np.flatnonzero(parent >= 0)
    # Pointer doubling: depth[i] is the way from i to above[i], which doubles every round.
    while reached.size:
        at = above[reached]
        depth[reached] += depth[at]
        above[reached] = at = above[at]
        reached = reached[at >= 0]
    return depth


def firsts(parent: Rows) -> Rows:
    """For every interval the outermost one above it, following ``parent``; itself if there is none."""
    first = np.where(parent >= 0, parent, np.arange(parent.size, dtype=parent.dtype))
    while not np.array_equal(further := first[first], first):
        first = further
    return first


def by_level(level: Ints) -> list[Rows]:
    """The rows of each level 0, 1, …, each list in order."""
    return np.split(_order_by_level(level), np.cumsum(np.bincount(level))[:-1]) if level.size else []


def _order_by_level(level: Ints) -> Rows:
    few = int(level.max(initial=-1)) < np.iinfo(np.int16).max
    return np.argsort(level.astype(np.int16) if few else level, kind="stable")


def subtree_ends(parent: Rows, depth: Ints) -> Rows:
    """For every row of a forest in pre-order, the row after its last descendant."""
    end = np.full(parent.size, parent.size, dtype=np.int64)
    for rows in by_level(depth):
        following = np.append(rows[1:], parent.size)
        end[rows] = np.minimum(following, np.where(parent[rows] >= 0, end[parent[rows]], parent.size))
    return end


def innermost(start: Ints, end: Ints, parent: Rows, first: Ints, last: Ints) -> Rows:
    """For every query ``[first, last]`` the latest interval that contains it, or -1. Both ends are inclusive.

    Intervals are sorted by ``(start, -end)``, and ``parent`` is the result of :func:`parents` for them.
    """
    if not start.size:
        return np.full(first.size, -1, dtype=np.int64)
    at = np.searchsorted(start, first, side="right") - 1
    active = np.flatnonzero((end.take(at) < last) & (at >= 0))
    for _ in range(_PLAIN_CLIMBS):
        if not active.size:
            return at
        at[active] = above = parent[at[active]]
        active = active[(above >= 0) & (end[above] < last[active])]
    at[active] = _leap(end, parent, at[active], last[active])
    return at


def _leap(end: Ints, parent: Rows, at: Rows, last: Ints) -> Rows:
    for leap in reversed(ancestors(parent)):
        target = leap[at]
        short = (target >= 0) & (end[target] < last)
        at = np.where(short, target, at)
    return np.where(end[at] >= last, at, parent[at])


def ancestors(parent: Rows) -> list[Rows]:
    """For every row its parent, then the one two above, four above, and so on; -1 for none."""
    leaps = [parent]
    while bool((leaps[-1] >= 0).any()):
        above = leaps[-1]
        leaps.append(np.where(above >= 0, above[above], -1))
    return leaps


def highest(leaps: list[Rows], at: Rows, holds: Callable[[Rows, Rows], Flags]) -> Rows:
    """For every query the highest row, from ``at`` upwards, up to which a condition holds; -1 if there is none.

    ``leaps`` is the result of :func:`ancestors` for the rows. ``holds`` is given some rows and the numbers of their
    queries; above a row for which the condition does not hold, it holds for none.
    """
    at = at.copy()
    active = np.flatnonzero(at >= 0)
    at[active[~holds(at[active], active)]] = -1
    active = np.flatnonzero(at >= 0)
    for leap in reversed(leaps):
        target = leap[at[active]]
        there = np.flatnonzero(target >= 0)
        there = there[holds(target[there], active[there])]
        at[active[there]] = target[there]
    return at


def cut(start: Ints, end: Ints, edges: Ints) -> tuple[Rows, Rows, Ints, Ints]:
    """Intervals cut at all edges in them: for each piece the row of its interval, the edge before it, start and end.

    Edges ascend; the edge is -1 before the first, and may be where the piece starts.
    """
    row, edge = members(np.searchsorted(edges, start, "right") - 1, np.searchsorted(edges, end))
    again = np.flatnonzero(row[1:] == row[:-1])
    start, end = start[row], end[row]
    start[again + 1] = end[again] = edges[edge[again + 1]]
    return row, edge, start, end


def distinct_times(times: Sequence[Ints]) -> Ints:
    """All times in order, each once; sorting what is nearly in order is fast."""
    ordered = np.sort(np.concatenate(times), kind="stable")
    return ordered[np.append(True, ordered[1:] > ordered[:-1])] if ordered.size else ordered


#: The largest number of lanes; further intervals overlap on the last one.
MOST_LANES = 128


class Covered(NamedTuple):
    """Disjoint intervals in order, and how much lies before each."""

    start: Ints
    end: Ints
    before: Ints

    def until(self, time: Ints) -> Ints:
        """How much of them lies before a time."""
        if not self.start.size:
            return np.zeros(time.size, dtype=np.int64)
        at = np.maximum(np.searchsorted(self.start, time, side="right") - 1, 0)
        partly = np.clip(time - self.start[at], 0, self.end[at] - self.start[at])
        until: Ints = self.before[at] + partly
        return until

    def hold(self, time: Ints) -> Flags:
        """Which times lie in some of them."""
        at = np.searchsorted(self.start, time, side="right") - 1
        return np.asarray((at >= 0) & (time < np.append(self.end, 0)[at]))


def reach(end: Ints) -> tuple[Ints, Rows]:
    """The greatest end up to each interval, and the first interval that has it."""
    greatest = np.maximum.accumulate(end)
    fresh = np.append(True, greatest[1:] > greatest[:-1])[: end.size]
    return greatest, np.maximum.accumulate(np.where(fresh, np.arange(end.size), 0))


def covered(start: Ints, end: Ints) -> Covered:
    """What intervals cover, each moment once."""
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    fresh = np.concatenate((np.ones(min(start.size, 1), bool), start[1:] > end[:-1]))
    first = np.flatnonzero(fresh)
    last = np.append(first[1:], start.size) - 1 if first.size else first
    start, end = start[first], end[last]
    return Covered(start, end, np.cumsum(end - start) - (end - start))


def lanes(track: Ints, start: Ints, end: Ints, parent: Rows | None = None) -> Ints:
    """The lane of every interval, the lowest that is free, so that none overlap on a lane of a track.

    With ``parent``, the row of the interval that contains each, or -1, those on one lane may also be nested: an
    interval with a parent on its track is on the parent's lane if it fits there, and never below any other interval.
    """
    lane = np.zeros(track.size, np.int64)
    begin, stop = one_axis([track, track], [start, end])
    if parent is None:
        # If no interval overlaps the one before it, none overlap at all.
        order = np.lexsort((stop, begin))
        crowded = track[order[1:]][begin[order[1:]] < stop[order[:-1]]]
        above = np.full(track.size, -1)
    else:
        order = nesting_order(begin, stop)
        lasting = order[stop[order] > begin[order]]
        crowded = _crossed(track[lasting], begin[lasting], stop[lasting])
        above = np.where((parent >= 0) & (track[parent] == track), parent, -1)
    rows = order[np.isin(track[order], crowded)]
    lane[rows] = _lanes(*(column.tolist() for column in (rows, begin[rows], stop[rows], above[rows])))
    return lane


def _crossed(track: Ints, start: Ints, end: Ints) -> Ints:
    open_ = np.arange(start.size) - np.searchsorted(np.sort(end), start, side="right")
    return np.unique(track[open_ != parents(start, end)[1]])


def _lanes(rows: list[int], start: list[int], end: list[int], parent: list[int]) -> list[int]:
    """The lanes of some rows in order; an interval that ends where another starts makes room for it."""
    lane: dict[int, int] = {}
    open_: list[list[tuple[int, int]]] = [[]]
    for row, begin, stop, above in zip(rows, start, end, parent, strict=True):
        for stack in open_:
            while stack and stack[-1][1] <= begin:
                stack.pop()
        at = lane.get(above, 0)
        if not open_[at] or open_[at][-1][0] != above:
            free = (at for at, stack in enumerate(open_) if not stack)
            at = min(next(free, len(open_)), MOST_LANES - 1)
        if at == len(open_):
            open_.append([])
        open_[at].append((row, stop))
        lane[row] = at
    return [lane[row] for row in rows]

"""Lanes for drawing intervals side by side: flat ones apart from each other, nested ones inside each other."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

from tracekit.arrays.intervals import nesting_order, one_axis, parents

if TYPE_CHECKING:
    from tracekit.arrays.types import Ints, Rows


#: The largest number of lanes; further intervals overlap on the last one.
MOST_LANES = 128


def lanes(stream: Ints, start_ns: Ints, end_ns: Ints) -> Ints:
    """The lane of every interval, so that none overlap on a lane of a stream: 0 unless an earlier one still runs.

    Args:
        stream: The stream of each.
        start_ns: Its start.
        end_ns: Its end.
    """
    lane = np.zeros(stream.size, np.int64)
    order = np.lexsort((end_ns, start_ns, stream))
    same = stream[order][1:] == stream[order][:-1]
    # If no interval overlaps the one before it, none overlap at all.
    overlapping = same & (start_ns[order][1:] < end_ns[order][:-1])
    crowded = np.unique(stream[order][1:][overlapping])
    rows = order[np.isin(stream[order], crowded)]
    open_: list[tuple[int, int]] = []
    free: list[int] = []
    last = None
    for row, stream_of_row, start, end in zip(
        rows.tolist(),
        stream[rows].tolist(),
        start_ns[rows].tolist(),
        end_ns[rows].tolist(),
        strict=True,
    ):
        if stream_of_row != last:
            open_, free, last = [], [], stream_of_row
        while open_ and open_[0][0] <= start:
            heapq.heappush(free, heapq.heappop(open_)[1])
        lane[row] = heapq.heappop(free) if free else min(len(open_), MOST_LANES - 1)
        heapq.heappush(open_, (end, int(lane[row])))
    return lane


def nested_lanes(track: Ints, start: Ints, end: Ints, parent: Rows) -> Ints:
    """The lane of every interval, so that those on one lane of a track are nested or apart; the lowest that is free.

    An interval with a parent on its track is on the parent's lane if it fits there, and never below any other interval.

    Args:
        track: The track of each: 0, 1, ….
        start: Its start.
        end: Its end.
        parent: The row of the interval that contains it, or -1.
    """
    lane = np.zeros(track.size, np.int64)
    begin, stop = one_axis([track, track], [start, end])
    order = nesting_order(begin, stop)
    lasting = order[stop[order] > begin[order]]
    rows = order[np.isin(track[order], _crossed(track[lasting], begin[lasting], stop[lasting]))]
    if rows.size:
        beside = (parent >= 0) & (track[parent] == track)
        lane[rows] = _lanes(rows, begin, stop, np.where(beside, parent, -1))
    return lane


def _crossed(track: Ints, start: Ints, end: Ints) -> Ints:
    """The tracks on which some intervals overlap in part; they come in nesting order."""
    open_ = np.arange(start.size) - np.searchsorted(np.sort(end), start, side="right")
    _, around = parents(start, end)
    return np.unique(track[open_ != around])


def _lanes(rows: Rows, start: Ints, end: Ints, parent: Rows) -> list[int]:
    """The lanes of some rows in nesting order; an interval that ends where another starts makes room for it."""
    lane: dict[int, int] = {}
    open_: list[list[int]] = [[]]
    for row in rows.tolist():
        for stack in open_:
            while stack and end[stack[-1]] <= start[row]:
                stack.pop()
        at = lane.get(parent[row], 0)
        if open_[at][-1:] != [parent[row]]:
            free = (at for at, stack in enumerate(open_) if not stack)
            at = min(next(free, len(open_)), MOST_LANES - 1)
        if at == len(open_):
            open_.append([])
        open_[at].append(row)
        lane[row] = at
    return [lane[row] for row in rows.tolist()]

"""Lanes for intervals that should nest and sometimes only overlap. Knows no traces."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracekit.arrays.intervals import MOST_LANES, nesting_order, one_axis, parents

if TYPE_CHECKING:
    from tracekit.arrays.types import Ints, Rows


def nested_lanes(track: Ints, start: Ints, end: Ints, parent: Rows) -> Ints:
    """The lane of every interval, so that those of one lane of a track nest or are apart: 0 for all that can be there.

    Whatever has a parent on its track is on the parent's lane if it fits there, and never below a stranger.

    Args:
        track: Which track each is on: 0, 1, ….
        start: When it begins.
        end: When it ends.
        parent: Row of the interval that it belongs into, or -1.
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
    """The tracks on which some intervals, in nesting order, overlap in part."""
    open_ = np.arange(start.size) - np.searchsorted(np.sort(end), start, side="right")
    _, around = parents(start, end)
    return np.unique(track[open_ != around])


def _lanes(rows: Rows, start: Ints, end: Ints, parent: Rows) -> list[int]:
    """The lanes of some rows in nesting order; those that end where others begin leave room for them."""
    lane: dict[int, int] = {}
    open_: list[list[int]] = [[]]
    for row in rows.tolist():
        for its in open_:
            while its and end[its[-1]] <= start[row]:
                its.pop()
        at = lane.get(parent[row], 0)
        if open_[at][-1:] != [parent[row]]:
            free = (at for at, its in enumerate(open_) if not its)
            at = min(next(free, len(open_)), MOST_LANES - 1)
        if at == len(open_):
            open_.append([])
        open_[at].append(row)
        lane[row] = at
    return [lane[row] for row in rows.tolist()]

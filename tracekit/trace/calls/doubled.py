"""Calls that two sets of hooks marked: one range directly inside another of the same text, for one call.

A module that calls itself looks alike. But hooks that were registered twice mark every call twice, also those of the
modules below, and nothing happens between the two ranges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.groups import counts
from tracekit.arrays.intervals import depths

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints, Rows

#: Where no doubled module calls another, the inner ranges fill this share of the outer ones.
_FILLED = 0.9
#: Nobody registers hooks more often than this.
_MOST_TIMES = 4


class MarkedCalls(NamedTuple):
    """Marked ranges that are no second ranges, by (start, -end).

    Attributes:
        start: Start on the axis.
        end: End on the axis.
        parent: The one around it, or -1.
        marker: Row of the decoded markers.
        path: A number for every path in every process; -1 where the marker says none.
        process: Row of processes.
        worked: When each launch of work began, on the axis; not one for every range.
    """

    start: Ints
    end: Ints
    parent: Rows
    marker: Rows
    path: Ints
    process: Rows
    worked: Ints

    def launches(self, rows: Rows) -> Ints:
        """How many launches of work lie inside each of some ranges."""
        return np.searchsorted(self.worked, self.end[rows]) - np.searchsorted(self.worked, self.start[rows])


class _Callees(NamedTuple):
    """Which path calls which, once for every call that is not itself an inner range; -1 for no caller's path."""

    caller: Ints
    callee: Ints


def inner_of_doubles(calls: MarkedCalls) -> Flags:
    """Which ranges mark the same call as the range around them."""
    inner = _alone_in_an_equal(calls)
    if not inner.any():
        return inner
    doubled = _always_doubled(calls, inner)
    return np.asarray(inner & np.append(doubled, False)[calls.path])


def _alone_in_an_equal(calls: MarkedCalls) -> Flags:
    """Which ranges lie in a range of the same text with nothing else in it."""
    parent = calls.parent
    children = counts(parent, parent.size)
    inner: Flags = (parent >= 0) & (np.append(calls.marker, -1)[parent] == calls.marker) & (calls.path >= 0)
    rows = np.flatnonzero(inner)
    alone = (children[parent[rows]] == 1) & (calls.launches(rows) == calls.launches(parent[rows]))
    inner[rows[~alone]] = False
    return inner


def _always_doubled(calls: MarkedCalls, inner: Flags) -> Flags:
    """For every path whether all of its calls are doubled, and so are those of all modules called by it."""
    outer = (calls.path >= 0) & ~inner
    called = np.flatnonzero(outer & (calls.parent >= 0))
    callees = _Callees(np.append(calls.path, -1)[calls.parent[called]], calls.path[called])
    doubled = _every_call_doubled(calls, inner, outer)
    while True:
        single = callees.caller[(callees.caller >= 0) & ~doubled[callees.callee]]
        if not doubled[single].any():
            break
        doubled[single] = False
    doubled[_loosely_filled(calls, inner, doubled, callees)] = False
    return doubled


def _every_call_doubled(calls: MarkedCalls, inner: Flags, outer: Flags) -> Flags:
    """For every path whether each of its calls is marked equally often, and more than once."""
    paths = int(calls.path.max()) + 1
    known = calls.path >= 0
    times = np.zeros(paths, dtype=np.int64)
    chain = depths(np.where(inner, calls.parent, -1))
    np.maximum.at(times, calls.path[known], chain[known] + 1)
    outers, inners = (np.bincount(calls.path[chosen], minlength=paths) for chosen in (outer, inner))
    return np.asarray((inners > 0) & (times <= _MOST_TIMES) & (inners == (times - 1) * outers))


def _loosely_filled(calls: MarkedCalls, inner: Flags, doubled: Flags, callees: _Callees) -> Ints:
    """Paths that call nothing doubled and whose inner ranges leave room in the outer ones: such a module calls itself.

    Where modules that call others are doubled with them, hooks are certain to be, in all modules of the process.
    """
    leaf = doubled.copy()
    leaf[callees.caller[callees.caller >= 0]] = False
    leaf[callees.callee[np.append(doubled, False)[callees.caller]]] = False
    rows = np.flatnonzero(inner)
    certain = np.unique(calls.process[rows[(doubled & ~leaf)[calls.path[rows]]]])
    rows = rows[~np.isin(calls.process[rows], certain)]
    length, room = (calls.end[at] - calls.start[at] for at in (rows, calls.parent[rows]))
    loose = calls.path[rows[length < _FILLED * room]]
    return loose[leaf[loose]]

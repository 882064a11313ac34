"""Calls that two sets of hooks marked: one range directly inside another of the same text, for one call.

A module that calls itself looks alike. But hooks that were registered twice mark every call twice, also those of the
modules below, and nothing happens between the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.intervals import depths

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints, Rows

#: Where no doubled module calls another, the inner ranges fill this share of the outer ones.
_FILLED = 0.9
#: Nobody registers hooks more often than this.
_MOST_TIMES = 4


class Marked(NamedTuple):
    """Ranges that are calls, in the order of (start, -end).

    Attributes:
        start: Start on the axis.
        end: End on the axis.
        parent: The one around it, or -1.
        marker: Row of the decoded markers.
        path: A number for every path in every process; -1 where the marker says none.
        process: Row of processes.
        launches: How many launches of work lie inside.
    """

    start: Ints
    end: Ints
    parent: Rows
    marker: Rows
    path: Ints
    process: Rows
    launches: Ints


def inner_of_doubles(marked: Marked) -> Flags:
    """Which ranges mark the same call as the range around them."""
    parent = marked.parent
    children = np.bincount(parent + 1, minlength=parent.size + 1)[1:]
    around = np.append(marked.marker, -1)[parent]
    inner: Flags = (parent >= 0) & (around == marked.marker) & (marked.path >= 0)
    rows = np.flatnonzero(inner)
    alone = (children[parent[rows]] == 1) & (marked.launches[rows] == marked.launches[parent[rows]])
    inner[rows[~alone]] = False
    if not inner.any():
        return inner
    doubled = _always_doubled(marked, inner)
    found: Flags = inner & np.append(doubled, False)[marked.path]
    return found


def _always_doubled(marked: Marked, inner: Flags) -> Flags:
    """For every path whether all of its calls are doubled, and so are those of all modules called by it."""
    paths = int(marked.path.max()) + 1
    known = marked.path >= 0
    times = np.zeros(paths, dtype=np.int64)
    chain = depths(np.where(inner, marked.parent, -1))
    np.maximum.at(times, marked.path[known], chain[known] + 1)
    calls, inside = (np.bincount(marked.path[chosen], minlength=paths) for chosen in (known & ~inner, inner))
    doubled: Flags = (inside > 0) & (times <= _MOST_TIMES) & (inside == (times - 1) * calls)
    called = known & ~inner & (marked.parent >= 0)
    caller, callee = np.append(marked.path, -1)[marked.parent[called]], marked.path[called]
    while True:
        single = caller[(caller >= 0) & ~doubled[callee]]
        if not doubled[single].any():
            break
        doubled[single] = False
    leaf = doubled.copy()
    leaf[caller[caller >= 0]] = False
    leaf[callee[np.append(doubled, False)[caller]]] = False
    # Where modules that call others are doubled with them, hooks are: then they are of all modules.
    rows = np.flatnonzero(inner)
    certain = np.unique(marked.process[rows[(doubled & ~leaf)[marked.path[rows]]]])
    rows = rows[~np.isin(marked.process[rows], certain)]
    length, whole = (marked.end[at] - marked.start[at] for at in (rows, marked.parent[rows]))
    loose = marked.path[rows[length < _FILLED * whole]]
    doubled[loose[leaf[loose]]] = False
    return doubled

"""From when to when a plain range counts as a node, so that the nodes of a thread nest.

Ranges of one domain that are pushed and popped nest by themselves. One that was never popped is believed only until its
thread contradicts it: until the range around it ends, or the next range of its place begins. Start/end ranges may
overlap others in part; the one that began last counts, and a range that is popped counts whole, as calls of modules do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.columns import integers
from tracekit.arrays.intervals import ancestors, highest, innermost, nesting_order, parents
from tracekit.arrays.lookups import lookup
from tracekit.recording.tables import PUSH_POP

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.recording.axis import ThreadAxis
    from tracekit.recording.tables import Recording

_LAST = np.iinfo(np.int64).max


class Extents(NamedTuple):
    """Ranges that nest, by (start, -end).

    Attributes:
        row: Row of the recording's ranges.
        start: Start on the axis.
        end: End on the axis.
    """

    row: Rows
    start: Ints
    end: Ints


def extents_of(recording: Recording, axis: ThreadAxis, rows: Rows, place: Ints, calls: Extents) -> Extents:
    """Where some ranges begin and end so that they nest.

    Args:
        recording: The recording.
        axis: Its ranges on one axis.
        rows: Rows of ranges that end on the thread on which they began, ascending.
        place: For each of them a number, the same for ranges of one name in one domain.
        calls: Calls of modules, which count whole.
    """
    start, end = axis.range_start[rows], axis.range_end[rows].copy()
    never_ended = np.asarray(recording.ranges.column("open"))[rows]
    popped = (integers(recording.ranges, "kind")[rows] == PUSH_POP) & ~never_ended
    if popped.all():
        return Extents(rows, start, end)
    loose = np.flatnonzero(~popped)
    end[loose] = np.minimum(end[loose], _next_of_its_place(start, place, never_ended)[loose])
    whole_start, whole_end = np.append(start[popped], calls.start), np.append(end[popped], calls.end)
    order = nesting_order(whole_start, whole_end)
    end[loose] = _nested_in(whole_start[order], whole_end[order], start[loose], end[loose])
    end[loose] = _apart_from_each_other(start[loose], end[loose])
    order = nesting_order(start, end)
    return Extents(rows[order], start[order], end[order])


def _next_of_its_place(start: Ints, place: Ints, which: Flags) -> Ints:
    """For some ranges when the next one of its place begins; for the others, and where there is none, never."""
    order = np.lexsort((start, place))
    follows = np.full(start.size, _LAST)
    same = place[order[1:]] == place[order[:-1]]
    follows[order[:-1][same]] = start[order[1:][same]]
    return np.where(which, follows, _LAST)


def _nested_in(start: Ints, end: Ints, first: Ints, last: Ints) -> Ints:
    """When each of some intervals ends at the latest so that it lies in, around or beside those that count whole.

    Args:
        start: Starts of intervals that count whole, by (start, -end).
        end: Their ends.
        first: Starts of the intervals.
        last: Their ends.
    """
    parent, _ = parents(start, end)
    leaps = ancestors(parent)
    around = innermost(start, end, parent, first, first)
    # A range that began at the very same time and is shorter lies inside.
    inside = highest(leaps, around, lambda at, row: (start[at] == first[row]) & (end[at] < last[row]))
    around = np.where(inside >= 0, lookup(parent, inside), around)
    last = np.where(around >= 0, np.minimum(lookup(end, around), last), last)
    # A range that began inside and outlasts the interval ends it: the outermost of these.
    across = innermost(start, end, parent, last, last)
    over = highest(leaps, across, lambda at, row: end[at] <= last[row])
    across = np.where(over >= 0, lookup(parent, over), across)
    across = highest(leaps, across, lambda at, row: start[at] > first[row])
    return np.where(across >= 0, np.minimum(lookup(start, across), last), last)


def _apart_from_each_other(start: Ints, end: Ints) -> Ints:
    """The ends of loose intervals, each cut where a later one begins that outlasts it."""
    end = end.copy()
    starts, ends = start.tolist(), end.tolist()
    pending: list[int] = []
    for row in nesting_order(start, end).tolist():
        while pending and ends[pending[-1]] < ends[row]:
            last = pending.pop()
            if ends[last] > starts[row]:
                ends[last] = starts[row]
        pending.append(row)
    return np.array(ends, dtype=np.int64)

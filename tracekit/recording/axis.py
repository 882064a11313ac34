"""Ranges and launches of all threads on one axis, so that nesting is computed once, not thread by thread."""

from dataclasses import dataclass

import numpy as np

from tracekit.arrays.intervals import innermost, one_axis, parents
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.recording.tables import NO_TIME, PUSH_POP, Recording


@dataclass(frozen=True, slots=True)
class ThreadAxis:
    """Starts and ends on an axis on which threads lie end to end: positions, of which only the order is meaningful."""

    range_start: Ints  # starts of ranges, in their order: sorted by (start, -end)
    range_end: Ints
    launch_start: Ints  # starts of launches, in their order: sorted by (start, -end)
    launch_end: Ints
    ends_here: Flags  # which ranges end on the thread on which they began; the others contain nothing
    node_at: Ints  # times of the recording's graph nodes; rows without a time stand at 0
    graph_at: Ints


@dataclass(frozen=True, slots=True)
class Nesting:
    """How ranges that are pushed and popped on one thread nest: the one around each, as a place in ``rows``, or -1."""

    rows: Rows
    parent: Rows
    depth: Rows

    def others(self, axis: ThreadAxis) -> Rows:
        """The other ranges that end on the thread on which they began; these may overlap."""
        rest = axis.ends_here.copy()
        rest[self.rows] = False
        return np.flatnonzero(rest)


def nesting(recording: Recording, axis: ThreadAxis) -> Nesting:
    """Nests the push/pop ranges; others may overlap, and those that end on another thread contain nothing."""
    rows = np.flatnonzero((recording.ranges.kind == PUSH_POP) & axis.ends_here)
    parent, depth = parents(axis.range_start[rows], axis.range_end[rows])
    return Nesting(rows.astype(np.int32), parent.astype(np.int32), depth.astype(np.int32))


def thread_axis(recording: Recording) -> ThreadAxis:
    """Lays a recording's threads end to end."""
    ranges, launches, records = recording.ranges, recording.launches, (recording.graph_nodes, recording.graphs)
    threads = [ranges.thread, ranges.thread, launches.thread, launches.thread, *(table.thread for table in records)]
    times = [ranges.start_ns, ranges.end_ns, launches.start_ns, launches.end_ns]
    times += [np.where(table.start_ns == NO_TIME, 0, table.start_ns) for table in records]
    start, end, launch_start, launch_end, node_at, graph_at = one_axis(threads, times)
    return ThreadAxis(start, end, launch_start, launch_end, ranges.end_thread == -1, node_at, graph_at)


def range_around(axis: ThreadAxis, nest: Nesting, first: Ints, last: Ints) -> Rows:
    """The range around each ``[first, last]`` that began last and ends on its thread; -1 for none."""
    start, end = axis.range_start[nest.rows], axis.range_end[nest.rows]
    push_pop: Rows = np.append(nest.rows, np.int32(-1))[innermost(start, end, nest.parent, first, last)]
    loose_rows = nest.others(axis)
    if not loose_rows.size:
        return push_pop
    # Ranges that are not pushed and popped may overlap; the one that began last counts as the innermost.
    start, end = axis.range_start[loose_rows], axis.range_end[loose_rows]
    loose = np.append(loose_rows, -1)[innermost(start, end, parents(start, end)[0], first, last)]
    return np.asarray(np.maximum(push_pop, loose))

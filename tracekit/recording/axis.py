"""Ranges and launches of all threads on one axis, so that nesting is asked for once and not thread by thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tracekit.arrays.columns import integers
from tracekit.arrays.intervals import innermost, one_axis, parents
from tracekit.recording.tables import PUSH_POP

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.recording.tables import Recording


@dataclass(frozen=True, slots=True)
class Timeline:
    """Starts and ends on an axis on which threads lie end to end: places, of which only the order means anything.

    Attributes:
        range_start: Starts of ranges, in their order: sorted by (start, -end).
        range_end: Their ends.
        launch_start: Starts of launches, in their order: sorted by (start, -end).
        launch_end: Their ends.
        ends_here: Which ranges end on the thread they began on; no other contains anything.
        node_at: When the recording's rows of graph nodes were recorded; what has no time stands at 0.
        graph_at: When its rows of graphs were.
    """

    range_start: Ints
    range_end: Ints
    launch_start: Ints
    launch_end: Ints
    ends_here: Flags
    node_at: Ints
    graph_at: Ints


@dataclass(frozen=True, slots=True)
class Nesting:
    """How ranges that are pushed and popped on one thread nest.

    Attributes:
        rows: Their rows in the recording.
        parent: For each of them the one around it, as a position in ``rows``, or -1.
        depth: How many are around it.
    """

    rows: Rows
    parent: Rows
    depth: Rows

    def others(self, line: Timeline) -> Rows:
        """The rest of the ranges that end where they began: these overlap at will."""
        rest = line.ends_here.copy()
        rest[self.rows] = False
        return np.flatnonzero(rest)


def nesting(recording: Recording, line: Timeline) -> Nesting:
    """Nests the push/pop ranges; others overlap at will, and those that end on another thread have no place."""
    rows = np.flatnonzero((integers(recording.ranges, "kind") == PUSH_POP) & line.ends_here)
    parent, depth = parents(line.range_start[rows], line.range_end[rows])
    return Nesting(rows.astype(np.int32), parent.astype(np.int32), depth.astype(np.int32))


def timeline(recording: Recording) -> Timeline:
    """Lays a recording's threads end to end."""
    tables = (recording.ranges, recording.launches, recording.graph_nodes, recording.graphs)
    ranged, launched, noded, graphed = (integers(table, "thread") for table in tables)
    times = [integers(table, column) for table in tables[:2] for column in ("start_ns", "end_ns")] + [
        integers(table, "start_ns", null=0) for table in tables[2:]
    ]
    ends_here = np.asarray(recording.ranges.column("end_thread").is_null())
    starts, ends, launch_starts, launch_ends, node_at, graph_at = one_axis(
        [ranged, ranged, launched, launched, noded, graphed], times
    )
    return Timeline(starts, ends, launch_starts, launch_ends, ends_here, node_at, graph_at)


def range_around(line: Timeline, nest: Nesting, first: Ints, last: Ints) -> Rows:
    """The range around each ``[first, last]`` that began last, of those that end on their thread; -1 for none."""
    start, end = line.range_start[nest.rows], line.range_end[nest.rows]
    nested: Rows = np.append(nest.rows, np.int32(-1))[innermost(start, end, nest.parent, first, last)]
    rows = nest.others(line)
    if not rows.size:
        return nested
    # Ranges that are not pushed and popped overlap at will; whichever began last is the innermost.
    start, end = line.range_start[rows], line.range_end[rows]
    loosely = np.append(rows, -1)[innermost(start, end, parents(start, end)[0], first, last)]
    return np.asarray(np.maximum(nested, loosely))

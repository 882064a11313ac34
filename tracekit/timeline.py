"""Ranges and launches of all threads on one axis, so that nesting is asked for once and not thread by thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tracekit.intervals import one_axis, parents
from tracekit.recording import PUSH_POP, integers

if TYPE_CHECKING:
    from tracekit.arrays import Flags, Ints, Rows
    from tracekit.recording import Recording


@dataclass(frozen=True, slots=True)
class Timeline:
    """Starts and ends on an axis on which threads lie end to end.

    Attributes:
        range_start: Starts of ranges, in their order: sorted by (start, -end).
        range_end: Their ends.
        launch_start: Starts of launches, in their order: sorted by (start, -end).
        launch_end: Their ends.
        ends_here: Which ranges end on the thread they began on; no other contains anything.
    """

    range_start: Ints
    range_end: Ints
    launch_start: Ints
    launch_end: Ints
    ends_here: Flags


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
    on, launched_on = integers(recording.ranges, "thread"), integers(recording.launches, "thread")
    times = [
        integers(table, column)
        for table in (recording.ranges, recording.launches)
        for column in ("start_ns", "end_ns")
    ]
    ends_here = np.asarray(recording.ranges.column("end_thread").is_null())
    starts, ends, launch_starts, launch_ends = one_axis([on, on, launched_on, launched_on], times)
    return Timeline(starts, ends, launch_starts, launch_ends, ends_here)

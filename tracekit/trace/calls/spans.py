"""Spans: ranges with module markers, and what happened before, inside and after them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.columns import integers
from tracekit.arrays.intervals import nesting_order, parents
from tracekit.markers.base import ModuleMarker, StepMarker, Unreadable

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.markers.base import Marker
    from tracekit.recording.axis import ThreadAxis
    from tracekit.recording.tables import Recording
    from tracekit.trace.calls.endings import Endings
    from tracekit.trace.decoding import Decoded


class Spans(NamedTuple):
    """Marked ranges that ended on their thread, by (start, -end), outer ones first.

    Attributes:
        range_row: Row of the recording's ranges.
        start: Start on the axis.
        end: End on the axis.
        thread: Row of threads.
        process: Row of processes.
        marker: Row of the decoded markers.
        parent: The span around it, or -1.
        depth: How many spans are around it.
        encloses: Whether a call or the launch of some work lies inside.
        happened: When, of all before it began, the last launch of work or marked step began, on the axis.
        excused: Whether it was left open or never ended, so that a second range may be missing.
        worked: When each launch of work began, on the axis; not one for every span.
    """

    range_row: Rows
    start: Ints
    end: Ints
    thread: Rows
    process: Rows
    marker: Rows
    parent: Rows
    depth: Ints
    encloses: Flags
    happened: Ints
    excused: Flags
    worked: Ints


def spans_of(
    recording: Recording, decoded: Decoded, axis: ThreadAxis, endings: Endings, marker: Ints, works: Flags
) -> Spans:
    """Finds the marked ranges.

    Args:
        recording: The recording.
        decoded: Its markers.
        axis: Its ranges and launches on one axis.
        endings: When its ranges ended.
        marker: Row of the marker of every range.
        works: Which launches put work on the device, or into a graph.
    """
    marked = decoded.rows(ModuleMarker, Unreadable)[marker] & axis.ends_here
    rows, start, end = _outer_first(np.flatnonzero(marked), axis, endings, marker, decoded.markers)
    parent, depth = parents(start, end)
    thread = integers(recording.ranges, "thread")[rows]
    worked = axis.launch_start[works]
    step_start = np.sort(axis.range_start[decoded.ranges(recording, StepMarker) & axis.ends_here])
    last_worked, next_worked = _around(start, worked)
    last_step, _ = _around(start, step_start)
    never_ended = np.asarray(recording.ranges.column("open"))[rows]
    return Spans(
        range_row=rows,
        start=start,
        end=end,
        thread=thread,
        process=recording.threads.process.take(thread),
        marker=marker[rows],
        parent=parent,
        depth=depth,
        encloses=(next_worked < end) | _with_a_call_inside(start, end, parent),
        happened=np.maximum(last_worked, last_step),
        excused=never_ended | endings.in_doubt(end),
        worked=worked,
    )


def _outer_first(
    rows: Ints, axis: ThreadAxis, endings: Endings, marker: Ints, markers: list[Marker]
) -> tuple[Rows, Ints, Ints]:
    """Orders ranges of the very same extent by their paths: the shorter path is the outer call.

    Returns:
        The rows in order, their starts and their ends.
    """
    if not endings.as_recorded:
        rows = rows[nesting_order(axis.range_start[rows], endings.end[rows])]
    start, end = axis.range_start[rows], endings.end[rows]
    if not bool(((start[1:] == start[:-1]) & (end[1:] == end[:-1])).any()):
        return rows, start, end
    parts = [len(item.path.split(".")) if isinstance(item, ModuleMarker) else 0 for item in markers]
    order = np.lexsort((rows, np.asarray(parts, dtype=np.int64)[marker[rows]], -end, start))
    return rows[order], start[order], end[order]


def _around(start: Ints, times: Ints) -> tuple[Ints, Ints]:
    """For every start the last of some times before it, and the next one from it on; all ascending."""
    never = np.iinfo(np.int64)
    # Times are fewer than spans, so each is looked for among the starts, not the other way round.
    began = np.diff(np.searchsorted(start, times, side="right"), prepend=0, append=start.size)
    return np.repeat(np.append(never.min, times), began), np.repeat(np.append(times, never.max), began)


def _with_a_call_inside(start: Ints, end: Ints, parent: Rows) -> Flags:
    within = parent >= 0
    # With a coarse clock, an empty range right after a call seems to lie at the end of the call.
    empty = np.flatnonzero(start == end)
    within[empty[end[parent[empty]] == end[empty]]] = False
    inside = np.zeros(start.size, dtype=bool)
    inside[parent[within]] = True
    return inside

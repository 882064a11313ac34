"""Ranges with module markers as calls: nested, each with its outputs, each in its place in the hierarchy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.columns import integers
from tracekit.arrays.intervals import nesting_order, parents, subtree_ends
from tracekit.causes import (
    CAUSES,
    ENDED_ELSEWHERE,
    LEFT_OPEN,
    MODULE_UNCLEAR,
    MODULE_UNREADABLE,
    ORPHAN_OUTPUTS,
)
from tracekit.markers.base import ModuleMarker, StepMarker, Unreadable
from tracekit.trace.calls.doubled import Marked, inner_of_doubles
from tracekit.trace.calls.second_ranges import Spans, second_ranges
from tracekit.trace.decoding import paths_of
from tracekit.trace.hierarchy.modules import Nested, hierarchy

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.causes import Cause
    from tracekit.graphs.captures import Captures
    from tracekit.markers.base import Marker
    from tracekit.recording.axis import Timeline
    from tracekit.recording.tables import Recording
    from tracekit.trace.calls.endings import Endings
    from tracekit.trace.decoding import Decoded
    from tracekit.trace.hierarchy.modules import Module


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls of modules on all threads, sorted by (start, -end) on the recording's axis.

    What is of no known module is among them with module -1: calls whose markers name none that can be read, ranges that
    ended on another thread, and stretches in which it is not known which call was open. They own the launches inside,
    so that nobody else is given them.

    Attributes:
        range_row: Row of the recording's ranges; of a stretch some row of its thread.
        start: Start on the axis.
        end: End on the axis.
        parent: Row of the enclosing call, or -1.
        depth: How many calls enclose it.
        marker: Row of the decoded markers; -1 for what ended elsewhere and for stretches.
        outputs: Row of the marker that tells its outputs, or -1.
        cause: Position in ``coverage.CAUSES`` of why its module is not known, if it is not.
        module: Row of modules, or -1.
        captured: Whether it ran while its thread captured a CUDA graph.
        modules: The hierarchy, in pre-order.
    """

    range_row: Rows
    start: Ints
    end: Ints
    parent: Rows
    depth: Rows
    marker: Rows
    outputs: Rows
    cause: Rows
    module: Rows
    captured: Flags
    modules: list[Module]

    @property
    def known(self) -> Flags:
        """Which calls are of a known module."""
        return self.module >= 0


class _Marked(NamedTuple):
    """Calls without their places; the columns are those of :class:`Calls`."""

    range_row: Rows
    start: Ints
    end: Ints
    marker: Rows
    outputs: Rows
    cause: Rows

    def chosen(self, rows: Flags | Rows) -> _Marked:
        """Some of them."""
        return _Marked(*(column[rows] for column in self))


def calls_of(
    recording: Recording, decoded: Decoded, line: Timeline, endings: Endings, works: Flags, captures: Captures
) -> Calls:
    """Finds the calls among a recording's ranges.

    Args:
        recording: The recording.
        decoded: Its markers.
        line: Its ranges and launches on one axis.
        endings: When its ranges ended.
        works: Which launches put work on the device, or into a graph.
        captures: What was captured.
    """
    marker = np.append(decoded.of_text, -1)[integers(recording.ranges, "text")]
    marked = decoded.rows(ModuleMarker, Unreadable)[marker]
    rows = _outer_first(np.flatnonzero(marked & line.ends_here), line, endings, marker, decoded.markers)
    steps = decoded.rows(StepMarker)[marker] & line.ends_here
    events = line.launch_start[works], np.sort(line.range_start[steps])
    spans = _spans(recording, (line, endings), rows, marker[rows], events)
    found = second_ranges(spans, decoded)
    recording.tally.add("ranges", ORPHAN_OUTPUTS, int((found.second & (found.call < 0)).sum()))
    outputs = np.full(rows.size, -1, dtype=np.int64)
    told = np.flatnonzero(found.call >= 0)
    outputs[found.call[told]] = found.marker[told]
    unreadable = np.full(rows.size, CAUSES.index(MODULE_UNREADABLE))
    calls = _Marked(rows, spans.start, spans.end, found.marker, outputs, unreadable)
    calls, forest = _once_each(calls, spans, found.second, decoded.markers)
    elsewhere = np.flatnonzero(marked & ~line.ends_here)
    unknown = [
        _nobodys(ENDED_ELSEWHERE, line.range_start[elsewhere], line.range_end[elsewhere], elsewhere),
        _nobodys(LEFT_OPEN, *_doubtful(endings, calls)),
    ]
    if any(some.range_row.size for some in unknown):
        calls, forest = _together([calls, *unknown])
    thread = integers(recording.ranges, "thread")[calls.range_row]
    began = integers(recording.ranges, "start_ns")[calls.range_row]
    nested = Nested(*forest, calls.marker, recording.threads.process[thread], began)
    modules, module, unclear = hierarchy(nested, decoded.markers, recording.tally)
    calls.cause[unclear] = CAUSES.index(MODULE_UNCLEAR)
    return Calls(
        **{name: column.astype(np.int32) for name, column in calls._asdict().items() if name not in {"start", "end"}},
        start=calls.start,
        end=calls.end,
        parent=forest[0].astype(np.int32),
        depth=forest[1].astype(np.int32),
        module=module.astype(np.int32),
        captured=_ran_in_capture(captures, line, (calls.start, calls.end), forest),
        modules=modules,
    )


def _outer_first(rows: Ints, line: Timeline, endings: Endings, marker: Ints, markers: list[Marker]) -> Ints:
    """Orders ranges of the very same extent by what their markers say: the shorter path is the outer call."""
    if not endings.as_recorded:
        rows = rows[nesting_order(line.range_start[rows], endings.end[rows])]
    start, end = line.range_start[rows], endings.end[rows]
    if not bool(((start[1:] == start[:-1]) & (end[1:] == end[:-1])).any()):
        return rows
    parts = [len(found.path.split(".")) if isinstance(found, ModuleMarker) else 0 for found in markers]
    return rows[np.lexsort((rows, np.asarray(parts, dtype=np.int64)[marker[rows]], -end, start))]


def _spans(
    recording: Recording,
    axis: tuple[Timeline, Endings],
    rows: Rows,
    marker: Rows,
    events: tuple[Ints, Ints],
) -> Spans:
    """What is to know of marked ranges; ``events`` are the starts of launches of work and of marked steps."""
    line, endings = axis
    at_work, at_step = events
    start, end = line.range_start[rows], endings.end[rows]
    parent, depth = parents(start, end)
    thread = integers(recording.ranges, "thread")[rows]
    before, until = np.searchsorted(at_work, start), np.searchsorted(at_work, end)
    encloses = until > before
    # In coarse time what comes right after a call seems to lie at its end.
    behind = (start == end) & (end[parent] == end)
    encloses[parent[(parent >= 0) & ~behind]] = True
    never_ended = np.asarray(recording.ranges.column("open"))[rows]
    return Spans(
        start=start,
        end=end,
        thread=thread,
        process=recording.threads.process[thread],
        marker=marker,
        parent=parent,
        depth=depth,
        encloses=encloses,
        launched_before=before,
        launched_until=until,
        steps_before=np.searchsorted(at_step, start),
        steps_until=np.searchsorted(at_step, end),
        excused=never_ended | endings.in_doubt(end),
    )


def _once_each(calls: _Marked, spans: Spans, second: Flags, markers: list[Marker]) -> tuple[_Marked, tuple[Rows, Ints]]:
    """Leaves out second ranges, and inner ones of calls that are marked twice; also tells what is around each call.

    Args:
        calls: The marked ranges.
        spans: The same.
        second: Which of them are second ranges.
        markers: The decoded markers.
    """
    row = np.append(np.cumsum(~second) - 1, -1)
    parent, depth = row[spans.parent][~second], spans.depth[~second]
    calls = calls.chosen(~second)
    said = np.append(paths_of(markers), -1)[calls.marker]
    process = spans.process[~second]
    inner = inner_of_doubles(
        Marked(
            start=calls.start,
            end=calls.end,
            parent=parent,
            marker=calls.marker,
            process=process,
            path=np.where(said < 0, -1, said + process * (said.max(initial=0) + 1)),
            launches=(spans.launched_until - spans.launched_before)[~second],
        )
    )
    if not inner.any():
        return calls, (parent, depth)
    # From the inside out, so that of many the outermost learns what any of them says.
    for one in np.flatnonzero(inner)[::-1].tolist():
        if calls.outputs[parent[one]] < 0:
            calls.outputs[parent[one]] = calls.outputs[one]
    calls = calls.chosen(~inner)
    return calls, parents(calls.start, calls.end)


def _nobodys(cause: Cause, start: Ints, end: Ints, range_row: Rows) -> _Marked:
    """Stretches of time as calls of unknown modules."""
    none = np.full(start.size, -1, dtype=np.int64)
    return _Marked(range_row, start, end, none, none, none * 0 + CAUSES.index(cause))


def _doubtful(endings: Endings, calls: _Marked) -> tuple[Ints, Ints, Rows]:
    """The stretches in which it is not known what was open, cut where calls begin and end."""
    since, until, row = endings.doubts
    if not since.size:
        return since, until, row
    order = np.argsort(since, kind="stable")
    since, until, row = since[order], until[order], row[order]
    reach = np.maximum.accumulate(until)
    edges = np.unique(np.concatenate((calls.start, calls.end, since, until)))
    at = np.searchsorted(since, edges[:-1], side="right") - 1
    inside = (at >= 0) & (reach[at] >= edges[1:])
    return edges[:-1][inside], edges[1:][inside], row[at[inside]]


def _together(some: list[_Marked]) -> tuple[_Marked, tuple[Rows, Ints]]:
    """All of several; of those of the same extent the later are inside. And the call around each."""
    calls = _Marked(*(np.concatenate(columns) for columns in zip(*some, strict=True)))
    calls = calls.chosen(nesting_order(calls.start, calls.end))
    return calls, parents(calls.start, calls.end)


def _ran_in_capture(captures: Captures, line: Timeline, span: tuple[Ints, Ints], forest: tuple[Rows, Ints]) -> Flags:
    """Which calls ran while their thread captured.

    A call did if it lies between the begin and the end of a capture. Where these were not recorded, it did if it
    launched something and every launch inside it became a node.

    Args:
        captures: What was captured.
        line: The recording's threads on one axis.
        span: Starts and ends of the calls, in pre-order.
        forest: The call around each one, or -1; and how many are around it.
    """
    start, end = span
    if not captures.asked.size:
        return np.zeros(start.size, dtype=bool)
    found = captures.windows.at(start, end) >= 0
    edged = _between(captures.edges, start, end)
    began = line.launch_start[captures.asked]
    launched = _between(began, start, end)
    noded = _between(began[captures.by_node], start, end)
    found |= (edged == 0) & (launched > 0) & (noded == launched)
    rows = np.flatnonzero(found)
    # Whatever is called by such a call captures too, even if it launches nothing.
    change = np.zeros(start.size + 1, dtype=np.int64)
    np.add.at(change, rows, 1)
    np.add.at(change, subtree_ends(*forest)[rows], -1)
    return np.cumsum(change[:-1]) > 0


def _between(times: Ints, start: Ints, end: Ints) -> Ints:
    """How many of some sorted times lie in each ``[start, end)``."""
    return np.searchsorted(times, end) - np.searchsorted(times, start)

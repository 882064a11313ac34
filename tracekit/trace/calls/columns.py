"""Columns of calls before they have their place in the hierarchy: from marked ranges to nested calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.intervals import nesting_order, parents
from tracekit.causes import CAUSES
from tracekit.causes.work import ENDED_ELSEWHERE, LEFT_OPEN, MODULE_UNREADABLE, RECOMPUTED
from tracekit.markers.base import Unreadable
from tracekit.trace.calls.doubled import MarkedCalls, inner_of_doubles
from tracekit.trace.decoding import paths_of

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.causes.base import Cause
    from tracekit.recording.axis import ThreadAxis
    from tracekit.recording.tally import Tally
    from tracekit.trace.calls.endings import Endings
    from tracekit.trace.calls.second_ranges import SecondRanges
    from tracekit.trace.calls.spans import Spans
    from tracekit.trace.decoding import Decoded
    from tracekit.trace.plain.extents import Extents


class CallColumns(NamedTuple):
    """Calls by (start, -end); the columns are those of :class:`~tracekit.trace.calls.calls.Calls`."""

    range_row: Rows
    start: Ints
    end: Ints
    marker: Rows
    outputs: Rows
    cause: Rows

    def chosen(self, rows: Flags | Rows) -> CallColumns:
        """Some of the calls."""
        return CallColumns(*(column[rows] for column in self))


class Forest(NamedTuple):
    """How calls nest.

    Attributes:
        parent: Row of the enclosing call, or -1.
        depth: How many calls enclose it.
    """

    parent: Rows
    depth: Rows


def with_outputs(spans: Spans, seconds: SecondRanges, decoded: Decoded) -> CallColumns:
    """Every span that is no second range as a call, with the marker of the second range that tells its outputs."""
    outputs = np.full(spans.start.size, -1, dtype=np.int64)
    closing = np.flatnonzero(seconds.call >= 0)
    outputs[seconds.call[closing]] = seconds.marker[closing]
    again = [isinstance(marker, Unreadable) and marker.cause is RECOMPUTED for marker in decoded.bare]
    cause = np.where([*again, False], CAUSES.index(RECOMPUTED), CAUSES.index(MODULE_UNREADABLE))
    told = cause[decoded.bare_row[spans.marker]]
    columns = CallColumns(spans.range_row, spans.start, spans.end, seconds.marker, outputs, told)
    return columns.chosen(np.flatnonzero(~seconds.second))


#: A look at the whole recording, as ``Tally.looks`` names it.
DOUBLED = "calls marked twice"


def once_each(
    calls: CallColumns, spans: Spans, second: Flags, decoded: Decoded, tally: Tally
) -> tuple[CallColumns, Forest]:
    """How calls nest, without second ranges; and the calls without the inner ranges of those that are marked twice.

    Args:
        calls: The spans as calls, without second ranges.
        spans: The spans.
        second: Which of them are second ranges.
        decoded: The markers.
        tally: Where looks at the whole recording are noted.
    """
    row = np.append(np.cumsum(~second) - 1, -1)
    rows = np.flatnonzero(~second)
    forest = Forest(row[spans.parent[rows]], spans.depth[rows])
    process = spans.process[rows]
    path = paths_of(decoded)[calls.marker]
    inner = inner_of_doubles(
        MarkedCalls(
            start=calls.start,
            end=calls.end,
            parent=forest.parent,
            marker=calls.marker,
            process=process,
            path=np.where(path < 0, -1, path + process * (path.max(initial=0) + 1)),
            worked=spans.worked,
        )
    )
    tally.look(DOUBLED, decides=bool(inner.any()))
    return _without(inner, calls, forest) if inner.any() else (calls, forest)


def _without(inner: Flags, calls: CallColumns, forest: Forest) -> tuple[CallColumns, Forest]:
    """Leaves out the inner of doubled ranges; the outer ones keep their outputs."""
    # From the inside out, so that of many ranges the outermost learns the outputs that any of them tells.
    for row in np.flatnonzero(inner)[::-1].tolist():
        outer = forest.parent[row]
        if calls.outputs[outer] < 0:
            calls.outputs[outer] = calls.outputs[row]
    calls = calls.chosen(~inner)
    return calls, Forest(*parents(calls.start, calls.end))


def with_plain(calls: CallColumns, forest: Forest, extents: Extents, marker: Rows) -> tuple[CallColumns, Forest]:
    """Adds plain ranges that are nodes of the hierarchy.

    Args:
        calls: The calls of modules.
        forest: How they nest.
        extents: The plain ranges.
        marker: For each of them the row of its marker.
    """
    if not extents.row.size:
        return calls, forest
    none = np.full(extents.row.size, -1, dtype=np.int64)
    plain = CallColumns(extents.row, extents.start, extents.end, marker, none, none)
    # Of a range and a call of one extent the range is the outer one.
    calls = CallColumns(*(np.concatenate(columns) for columns in zip(plain, calls, strict=True)))
    calls = calls.chosen(nesting_order(calls.start, calls.end))
    return calls, Forest(*parents(calls.start, calls.end))


def with_unknown(
    calls: CallColumns,
    forest: Forest,
    axis: ThreadAxis,
    endings: Endings,
    elsewhere: Rows,
    again: Flags,
) -> tuple[CallColumns, Forest]:
    """Adds calls of unknown modules, so that launches inside them are given to nobody else.

    Args:
        calls: The calls.
        forest: How they nest.
        axis: The recording's ranges on one axis.
        endings: When these ended.
        elsewhere: Rows of marked ranges that ended on another thread.
        again: Which calls run again for a backward pass, and are no part of the call around them.
    """
    unknown = [
        _of_no_module(RECOMPUTED, *_recomputed_stretches(calls, forest, again)),
        _of_no_module(ENDED_ELSEWHERE, axis.range_start[elsewhere], axis.range_end[elsewhere], elsewhere),
        _of_no_module(LEFT_OPEN, *_doubtful_stretches(endings, calls)),
    ]
    if not any(part.start.size for part in unknown):
        return calls, forest
    calls = CallColumns(*(np.concatenate(columns) for columns in zip(calls, *unknown, strict=True)))
    # Calls of one extent keep their order: the later one is inside.
    calls = calls.chosen(nesting_order(calls.start, calls.end))
    return calls, Forest(*parents(calls.start, calls.end))


def _of_no_module(cause: Cause, start: Ints, end: Ints, range_row: Rows) -> CallColumns:
    none = np.full(start.size, -1, dtype=np.int64)
    return CallColumns(range_row, start, end, none, none, np.full(start.size, CAUSES.index(cause), dtype=np.int64))


def _recomputed_stretches(calls: CallColumns, forest: Forest, apart: Flags) -> tuple[Ints, Ints, Rows]:
    """Stretches of several calls that run again, with what runs again between them: start, end, row of ranges.

    The function that runs again need not be a module, and what it computes is not of the call that runs backward.
    """
    if not apart.any():
        return calls.start[:0], calls.end[:0], calls.range_row[:0]
    by_parent = np.argsort(forest.parent, kind="stable")
    again, parent = apart[by_parent], forest.parent[by_parent]
    follows = np.zeros(again.size, dtype=bool)
    follows[1:] = again[1:] & again[:-1] & (parent[1:] == parent[:-1])
    first = np.flatnonzero(again & ~follows & np.append(follows[1:], False))
    last = np.flatnonzero(follows & ~np.append(follows[1:], False))
    return calls.start[by_parent[first]], calls.end[by_parent[last]], calls.range_row[by_parent[first]]


def _doubtful_stretches(endings: Endings, calls: CallColumns) -> tuple[Ints, Ints, Rows]:
    """Stretches in which it is not known what was open, cut where calls begin and end: start, end, row of ranges."""
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

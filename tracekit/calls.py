"""Ranges with module markers as calls: nested, each with its outputs, each in its place in the hierarchy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tracekit.coverage import ORPHAN_OUTPUTS, Tally
from tracekit.hierarchy import Module, hierarchy
from tracekit.intervals import parents
from tracekit.markers.base import ModuleMarker, Unreadable
from tracekit.recording import integers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tracekit.decode import Decoded
    from tracekit.markers.base import Marker
    from tracekit.recording import Recording
    from tracekit.timeline import Timeline

    Ints = NDArray[np.int64]
    Rows = NDArray[np.int32]
    Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls of modules on all threads, sorted by (start, -end) on the recording's axis.

    A call whose marker names no readable module is among them with module -1: it owns its launches, so that nobody
    else is given them.

    Attributes:
        range_row: Row of the recording's ranges.
        start: Start on the axis.
        end: End on the axis.
        parent: Row of the enclosing call, or -1.
        depth: How many calls enclose it.
        marker: Row of the decoded markers.
        outputs: Row of the marker that tells its outputs, or -1.
        module: Row of modules, or -1.
        modules: The hierarchy, in pre-order.
    """

    range_row: Rows
    start: Ints
    end: Ints
    parent: Rows
    depth: Rows
    marker: Rows
    outputs: Rows
    module: Rows
    modules: list[Module]

    @property
    def known(self) -> Flags:
        """Which calls are of a known module."""
        return self.module >= 0


def calls_of(recording: Recording, decoded: Decoded, line: Timeline, tally: Tally) -> Calls:
    """Finds the calls among a recording's ranges."""
    text = integers(recording.ranges, "text")
    marker = np.append(decoded.of_text, -1)[text]
    same_thread = np.asarray(recording.ranges.column("end_thread").is_null())
    rows = np.flatnonzero(decoded.rows(ModuleMarker, Unreadable)[marker] & same_thread)
    rows = _outer_first(rows, line, marker, decoded.markers)
    start, end, marker = line.range_start[rows], line.range_end[rows], marker[rows]
    parent, depth = parents(start, end)
    before = _previous_sibling(parent, integers(recording.ranges, "thread")[rows])
    is_result, result_of, marker = _results(start, end, parent, before, marker, decoded, line)
    tally.add("ranges", ORPHAN_OUTPUTS, int((is_result & (result_of < 0)).sum()))
    keep = ~is_result
    row = np.append(np.cumsum(keep) - 1, -1)
    outputs = np.full(rows.size, -1, dtype=np.int64)
    told = is_result & (result_of >= 0)
    outputs[result_of[told]] = marker[told]
    parent = row[parent][keep]
    depth = depth[keep]
    modules, module = hierarchy(parent, depth, marker[keep], decoded.markers, tally)
    columns = (parent, depth, marker[keep], outputs[keep], module)
    return Calls(
        rows[keep].astype(np.int32), start[keep], end[keep], *(column.astype(np.int32) for column in columns), modules
    )


def _outer_first(rows: Ints, line: Timeline, marker: Ints, markers: list[Marker]) -> Ints:
    """Orders ranges of the very same extent by what their markers say: the shorter path is the outer call."""
    start, end = line.range_start[rows], line.range_end[rows]
    if not bool(((start[1:] == start[:-1]) & (end[1:] == end[:-1])).any()):
        return rows
    parts = [len(found.path.split(".")) if isinstance(found, ModuleMarker) else 0 for found in markers]
    return rows[np.lexsort((rows, np.asarray(parts, dtype=np.int64)[marker[rows]], -end, start))]


def _results(
    start: Ints, end: Ints, parent: Ints, before: Ints, marker: Ints, decoded: Decoded, line: Timeline
) -> tuple[Flags, Ints, Ints]:
    """Tells the ranges that only bring the outputs of a call from the calls themselves.

    Returns:
        Which ranges are no calls of their own; for these the call whose outputs they tell, or -1; and the markers,
        in which a call that could not be read has got the name that its outputs say.
    """
    only_result = np.array([isinstance(m, ModuleMarker) and m.only_result for m in decoded.markers] + [False])
    path = _said_paths(decoded.markers)
    bare = only_result[marker] & ~_encloses(start, end, parent, line)
    call = _call_before(start, end, before, bare, line)
    # On a coarse clock the next call may begin in the same tick as the outputs of the one before.
    shared_tick = np.flatnonzero(bare & (parent >= 0) & (call < 0))
    shared_tick = shared_tick[start[parent[shared_tick]] == start[shared_tick]]
    call[shared_tick] = before[parent[shared_tick]]
    known = call >= 0
    same = np.zeros(start.size, dtype=bool)
    same[known] = (path[marker[known]] == path[marker[call[known]]]) & ~bare[call[known]]
    nameless = np.zeros(start.size, dtype=bool)
    unreadable = decoded.rows(Unreadable)
    nameless[known] = unreadable[marker[call[known]]] & ~same[known]
    named = np.flatnonzero(bare & nameless)
    marker = marker.copy()
    marker[call[named]] = marker[named]
    return bare, np.where(bare & (same | nameless), call, -1), marker


def _said_paths(markers: list[Marker]) -> Ints:
    """A number for every marker, the same for those that say the same path; -1 for those that say none."""
    numbers: dict[str, int] = {}
    said = [numbers.setdefault(m.path, len(numbers)) if isinstance(m, ModuleMarker) else -1 for m in markers]
    return np.array([*said, -1], dtype=np.int64)


def _encloses(start: Ints, end: Ints, parent: Ints, line: Timeline) -> Flags:
    """Which ranges have calls or launches inside."""
    encloses = np.zeros(start.size, dtype=bool)
    encloses[parent[parent >= 0]] = True
    launched = np.searchsorted(line.launch_start, end, "left") > np.searchsorted(line.launch_start, start, "left")
    return encloses | launched


def _call_before(start: Ints, end: Ints, before: Ints, bare: Flags, line: Timeline) -> Ints:
    """For every bare range the call right before it under the same parent, if nothing was launched in between."""
    before = np.where(bare, before, -1)
    rows = np.flatnonzero(before >= 0)
    until = np.searchsorted(line.launch_start, start[rows], "left")
    since = np.searchsorted(line.launch_start, end[before[rows]], "left")
    before[rows[until > since]] = -1
    return before


def _previous_sibling(parent: Ints, thread: Ints) -> Ints:
    """For every row the row before it on its thread that has the same parent, or -1."""
    order = np.argsort(parent, kind="stable")
    previous = np.full(parent.size, -1, dtype=np.int64)
    same = (parent[order[1:]] == parent[order[:-1]]) & (thread[order[1:]] == thread[order[:-1]])
    previous[order[1:][same]] = order[:-1][same]
    return previous

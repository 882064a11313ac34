"""Ranges with module markers as calls: nested, each with its outputs, each in its place in the hierarchy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.coverage import ORPHAN_OUTPUTS
from tracekit.hierarchy import hierarchy
from tracekit.intervals import one_axis, parents, subtree_ends
from tracekit.markers.base import ModuleMarker, Unreadable
from tracekit.recording import integers

if TYPE_CHECKING:
    from tracekit.arrays import Flags, Ints, Rows
    from tracekit.captures import Captures
    from tracekit.decode import Decoded
    from tracekit.hierarchy import Module
    from tracekit.markers.base import Marker
    from tracekit.recording import Recording
    from tracekit.timeline import Timeline


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
    module: Rows
    captured: Flags
    modules: list[Module]

    @property
    def known(self) -> Flags:
        """Which calls are of a known module."""
        return self.module >= 0


def calls_of(
    recording: Recording, decoded: Decoded, line: Timeline, works: Flags, captures: Captures
) -> Calls:
    """Finds the calls among a recording's ranges.

    Args:
        recording: The recording.
        decoded: Its markers.
        line: Its ranges and launches on one axis.
        works: Which launches put work on the device, or into a graph.
        captures: What was captured.
    """
    tally = recording.tally
    text = integers(recording.ranges, "text")
    marker = np.append(decoded.of_text, -1)[text]
    rows = np.flatnonzero(decoded.rows(ModuleMarker, Unreadable)[marker] & line.ends_here)
    rows = _outer_first(rows, line, marker, decoded.markers)
    start, end, marker = line.range_start[rows], line.range_end[rows], marker[rows]
    parent, depth = parents(start, end)
    thread = integers(recording.ranges, "thread")[rows]
    before = _previous_sibling(parent, thread)
    at_work = line.launch_start[works]
    launched = np.searchsorted(at_work, start), np.searchsorted(at_work, end)
    encloses = launched[1] > launched[0]
    encloses[parent[parent >= 0]] = True
    bare = _tells_result(decoded, marker) & ~encloses
    spans = _Spans(start, end, thread, before, *launched)
    is_result, result_of, marker = _results(spans, bare, marker, decoded)
    tally.add("ranges", ORPHAN_OUTPUTS, int((is_result & (result_of < 0)).sum()))
    keep = ~is_result
    row = np.append(np.cumsum(keep) - 1, -1)
    outputs = np.full(rows.size, -1, dtype=np.int64)
    told = is_result & (result_of >= 0)
    outputs[result_of[told]] = marker[told]
    parent = row[parent][keep]
    depth = depth[keep]
    start, end = start[keep], end[keep]
    modules, module = hierarchy(parent, depth, marker[keep], decoded.markers, tally)
    return Calls(
        range_row=rows[keep].astype(np.int32),
        start=start,
        end=end,
        parent=parent.astype(np.int32),
        depth=depth.astype(np.int32),
        marker=marker[keep].astype(np.int32),
        outputs=outputs[keep].astype(np.int32),
        module=module.astype(np.int32),
        captured=_ran_in_capture(captures, line, (start, end), (parent, depth)),
        modules=modules,
    )


def _outer_first(rows: Ints, line: Timeline, marker: Ints, markers: list[Marker]) -> Ints:
    """Orders ranges of the very same extent by what their markers say: the shorter path is the outer call."""
    start, end = line.range_start[rows], line.range_end[rows]
    if not bool(((start[1:] == start[:-1]) & (end[1:] == end[:-1])).any()):
        return rows
    parts = [
        len(found.path.split(".")) if isinstance(found, ModuleMarker) else 0 for found in markers
    ]
    return rows[np.lexsort((rows, np.asarray(parts, dtype=np.int64)[marker[rows]], -end, start))]


class _Spans(NamedTuple):
    """Marked ranges.

    Attributes:
        start: Start on the axis.
        end: End on the axis.
        thread: Row of threads.
        before: The one before under the same parent, or -1.
        launched_before: How many launches of work began before it began.
        launched_until: How many launches of work began before it ended.
    """

    start: Ints
    end: Ints
    thread: Ints
    before: Rows
    launched_before: Ints
    launched_until: Ints


def _tells_result(decoded: Decoded, marker: Rows) -> Flags:
    """Which ranges say nothing but outputs."""
    tells = [isinstance(found, ModuleMarker) and found.only_result for found in decoded.markers]
    return np.array([*tells, False])[marker]


def _results(
    spans: _Spans, bare: Flags, marker: Rows, decoded: Decoded
) -> tuple[Flags, Rows, Rows]:
    """Tells the ranges that only bring the outputs of a call from the calls themselves.

    Args:
        spans: The marked ranges.
        bare: Those that say nothing but outputs and have no call and no work inside.
        marker: Row of each one's marker.
        decoded: The markers.

    Returns:
        Which ranges are no calls of their own; for these the call whose outputs they tell, or -1; and the markers,
        in which a call that could not be read has got the name that its outputs say.
    """
    path = np.append(_said_paths(decoded.markers), -1)[marker]
    call = np.where(bare, spans.before, -1)
    unreadable = decoded.rows(Unreadable)[marker]
    fits = (call >= 0) & ~bare[call] & ((path[call] == path) | unreadable[call])
    call[~fits] = -1
    missed = np.flatnonzero(bare & (call < 0))
    call[missed] = _last_of_path(spans, bare, path, missed)
    rows = np.flatnonzero(call >= 0)
    call[rows[spans.launched_before[rows] > spans.launched_until[call[rows]]]] = -1
    call = _first_claims(call)
    named = np.flatnonzero((call >= 0) & unreadable[call])
    marker = marker.copy()
    marker[call[named]] = marker[named]
    return bare, call, marker


def _last_of_path(spans: _Spans, bare: Flags, path: Ints, rows: Rows) -> Rows:
    """For some ranges the call of the same path on their thread that ended last before, or -1.

    It is the one before in all but coarse time, where a call, its outputs and those of its caller share a tick.
    """
    calls = np.flatnonzero(~bare & (path >= 0))
    if not rows.size or not calls.size:
        return np.full(rows.size, -1, dtype=np.int64)
    ended, asked = one_axis([path[calls], path[rows]], [spans.end[calls], spans.start[rows]])
    order = np.argsort(ended, kind="stable")
    at = np.searchsorted(ended[order], asked, side="right") - 1
    found = np.where(at >= 0, calls[order[at]], -1)
    same = (path[found] == path[rows]) & (spans.thread[found] == spans.thread[rows])
    begun = spans.start[~bare]
    called_between = np.searchsorted(begun, spans.start[rows]) > np.searchsorted(
        begun, spans.end[found]
    )
    return np.where((found >= 0) & same & ~called_between, found, -1)


def _first_claims(call: Rows) -> Rows:
    """Each call for the first range that claims it only; later ones have lost theirs."""
    rows = np.flatnonzero(call >= 0)
    if int(np.bincount(call[rows]).max(initial=0)) <= 1:
        return call
    first = np.full(call.size, -1, dtype=np.int64)
    first[call[rows[::-1]]] = rows[::-1]
    return np.where((call >= 0) & (first[call] == np.arange(call.size)), call, -1)


def _said_paths(markers: list[Marker]) -> Ints:
    """A number for every marker, the same for those that say the same path; -1 for those that say none."""
    numbers: dict[str, int] = {}
    said = [
        numbers.setdefault(m.path, len(numbers)) if isinstance(m, ModuleMarker) else -1
        for m in markers
    ]
    return np.array(said, dtype=np.int64)


def _previous_sibling(parent: Ints, thread: Ints) -> Ints:
    """For every row the row before it on its thread that has the same parent, or -1."""
    order = np.argsort(parent, kind="stable")
    previous = np.full(parent.size, -1, dtype=np.int64)
    same = (parent[order[1:]] == parent[order[:-1]]) & (thread[order[1:]] == thread[order[:-1]])
    previous[order[1:][same]] = order[:-1][same]
    return previous


def _ran_in_capture(
    captures: Captures, line: Timeline, span: tuple[Ints, Ints], forest: tuple[Rows, Ints]
) -> Flags:
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

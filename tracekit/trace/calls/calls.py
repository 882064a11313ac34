"""Calls of modules: marked ranges, nested, each with its outputs and its place in the hierarchy.

Hooks that were registered twice mark every call twice, also those of the modules below: one range directly inside
another of the same text, with nothing between the two, is one call. A module that calls itself looks alike.
"""

from dataclasses import dataclass

import numpy as np

from tracekit import causes
from tracekit.arrays.codes import lookup
from tracekit.arrays.groups import counts
from tracekit.arrays.intervals import depths, innermost, nesting_order, parents, subtree_ends
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.graphs.captures import GraphCaptures
from tracekit.markers.base import OPERATORS, RANGES, Marker, ModuleMarker, StepMarker, Unreadable
from tracekit.recording.axis import ThreadAxis
from tracekit.recording.tables import Recording
from tracekit.trace.calls.call_ends import RangeEnds, second_ranges
from tracekit.trace.calls.trees import (
    CallColumns,
    Spans,
    Trees,
    apart_from_parent,
    evaluations,
    forward_ranges,
    operator_places,
    outside_siblings,
    runs_again,
    trees_of,
    waiting_calls,
)
from tracekit.trace.decoding import Decoded
from tracekit.trace.hierarchy.mapped_modules import MappedModules
from tracekit.trace.hierarchy.module_paths import Nested
from tracekit.trace.hierarchy.modules import Module, hierarchy
from tracekit.trace.hierarchy_keys import Extents, HierarchyKey


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls of modules on all threads, sorted by (start, -end) on the recording's axis.

    Calls whose module is not known are among them with module -1: those whose markers name none that can be read,
    ranges that ended on another thread, and stretches in which it is not known which call was open. They own the
    launches inside, so that these are given to no other call.

    Attributes:
        range_row: Row of the recording's ranges; of a stretch some row of its thread.
        parent: Row of the enclosing call, or -1.
        marker: Row of the decoded markers; -1 for what ended elsewhere and for stretches.
        outputs: Row of the marker that records its outputs, or -1.
        cause: Position in ``causes.CAUSES`` that holds if its module is not known.
        module: Row of modules, or -1.
        captured: Whether it ran during a graph capture of its thread, or around one that was recorded apart.
        apart: Whether it is no part of the enclosing call: it runs a module again for a backward pass, or is a backward
            pass that begins there, or evaluates a node of autograd that another operator made.
        waiting: For an outermost call on an autograd thread the one on another thread that waits for it, of which it
            is part; or -1.
        evaluates: Whether it evaluates a node of autograd whose operator is known, or is a plain range inside.
        unmarked: Whether it is a backward call of which the report has no range.
        siblings: ``HierarchyKey.siblings``: groups of calls that are never part of each other, by rows of ranges.
        mapped_modules: The places of the modules of kernel maps in it.
    """

    range_row: Rows
    last_range: Rows
    start: Ints
    end: Ints
    parent: Rows
    depth: Rows
    marker: Rows
    outputs: Rows
    cause: Rows
    module: Rows
    captured: Flags
    apart: Flags
    waiting: Rows
    evaluates: Flags
    unmarked: Flags
    siblings: dict[int, int]
    modules: list[Module]
    mapped_modules: MappedModules

    @property
    def trees(self) -> Trees:
        """Which calls are part of which."""
        return trees_of(self.parent, self.depth, np.where(self.apart, -1, self._above))

    @property
    def _above(self) -> Rows:
        above = outside_siblings(self.parent, self.range_row, self.siblings)
        return np.where(self.waiting >= 0, self.waiting, above)

    @property
    def known(self) -> Flags:
        """Which calls belong to a known module."""
        return self.module >= 0

    @property
    def known_parent(self) -> Rows:
        """The nearest call of a known module that each one is part of, or -1."""
        parent = np.where(self.apart, -1, self._above)
        if self.known.all():
            return parent
        above = np.append(parent, -1)
        while (unknown := (parent >= 0) & ~np.append(self.known, True)[parent]).any():
            parent = np.where(unknown, above[parent], parent)
        return parent

    def innermost(self, start: Ints, end: Ints) -> Rows:
        """The innermost around each interval of the axis, or -1."""
        return innermost(self.start, self.end, self.parent, start, end)


def calls_of(
    recording: Recording, keyed: HierarchyKey, axis: ThreadAxis, ends: RangeEnds, works: Flags, captures: GraphCaptures
) -> Calls:
    """Finds the calls among a recording's ranges; ``works`` are launches that put work on a device or into a graph."""
    decoded = keyed.decoded
    marker = lookup(decoded.of_text, recording.ranges.text)
    if not keyed.with_modules:
        marker[decoded.rows(ModuleMarker, Unreadable)[marker]] = -1
    calls = _calls_of_spans(recording, decoded, _spans_of(recording, decoded, axis, ends, marker, works))
    calls = _with_plain(calls, keyed.extents, keyed.marker)
    elsewhere = np.flatnonzero(~axis.ends_here)
    elsewhere = elsewhere[decoded.rows(ModuleMarker, Unreadable)[marker[elsewhere]]]
    again = runs_again(decoded.bare, decoded.canonical_marker[calls.marker], calls.parent)
    calls = _with_unknown(calls, axis, ends, elsewhere, again)
    own = decoded.canonical_marker[calls.marker]
    apart = apart_from_parent(decoded.bare, own, calls.parent)
    forward, within = evaluations(keyed.nodes, calls, decoded, recording.counters)
    waiting, linked = np.full(calls.start.size, -1, dtype=np.int32), forward >= 0
    if keyed.by == RANGES:
        rows = np.flatnonzero(calls.parent < 0)
        extents = Extents(calls.range_row, calls.start, calls.end)
        waiting[rows] = waiting_calls(recording, axis, keyed, extents, recording.ranges.take(calls.range_row[rows]))
    above = np.where(waiting >= 0, waiting, outside_siblings(calls.parent, calls.range_row, keyed.siblings))
    whole = keyed.by == OPERATORS
    above_operators, place, markers = operator_places(above, forward, own, decoded.bare, whole=whole)
    if keyed.by == RANGES and within.any():
        above_operators = forward_ranges(above, forward, own, decoded.bare, above_operators)
    trees = trees_of(calls.parent, calls.depth, np.where(linked, above_operators, np.where(apart, -1, above)))
    if whole:
        apart |= linked & (calls.parent >= 0)
    modules, module, unclear, mapped = _hierarchy(recording, keyed, calls, trees, (place, markers))
    range_row = calls.range_row.astype(np.int32, copy=False)
    calls.cause[unclear] = causes.CAUSES.index(causes.MODULE_UNCLEAR)
    return Calls(
        range_row=range_row,
        last_range=range_row,
        start=calls.start,
        end=calls.end,
        parent=calls.parent.astype(np.int32, copy=False),
        depth=calls.depth.astype(np.int32, copy=False),
        marker=calls.marker.astype(np.int32, copy=False),
        outputs=calls.outputs.astype(np.int32, copy=False),
        cause=calls.cause.astype(np.int32, copy=False),
        module=module.astype(np.int32),
        apart=apart,
        waiting=waiting.astype(np.int32, copy=False),
        evaluates=within,
        unmarked=np.zeros(calls.start.size, dtype=bool),
        siblings=keyed.siblings,
        captured=_during_graph_captures(recording, captures, calls),
        modules=modules,
        mapped_modules=mapped,
    )


def _calls_of_spans(recording: Recording, decoded: Decoded, spans: Spans) -> CallColumns:
    """Every span that is no second range as a call, each once; with the marker of the one that records its outputs."""
    second, ended, marker = second_ranges(spans, decoded)
    recording.counters.add("ranges", causes.ORPHAN_OUTPUTS, int((second & (ended < 0)).sum()))
    outputs = np.full(spans.start.size, -1, dtype=np.int32)
    closing = np.flatnonzero(ended >= 0)
    outputs[ended[closing]] = marker[closing]
    again = [isinstance(marker, Unreadable) and marker.cause is causes.RECOMPUTED for marker in decoded.bare]
    known = causes.CAUSES.index(causes.RECOMPUTED), causes.CAUSES.index(causes.MODULE_UNREADABLE)
    unreadable = np.where([*again, False], *known).astype(np.int32)[decoded.canonical_marker].take(spans.marker)
    row = np.append(np.cumsum(~second, dtype=np.int32) - 1, np.int32(-1))
    rows = np.flatnonzero(~second)
    columns = spans.range_row, spans.start, spans.end, marker, outputs, unreadable
    nested = row.take(spans.parent[rows]), spans.depth[rows]
    calls = CallColumns._make([*(column[rows] for column in columns), *nested])
    path = decoded.path.take(calls.marker)
    path = np.where(path < 0, -1, path + spans.process[rows].astype(np.int64) * (path.max(initial=0) + 1))
    inner = _inner_of_duplicates(calls, path, spans.worked)
    if not inner.any():
        return calls
    # From the inside out, so that of many ranges the outermost learns the outputs that any of them records.
    for inside in np.flatnonzero(inner)[::-1].tolist():
        outer = calls.parent[inside]
        if calls.outputs[outer] < 0:
            calls.outputs[outer] = calls.outputs[inside]
    return CallColumns.nested([[column[~inner] for column in calls[:6]]])


def _hierarchy(
    recording: Recording, keyed: HierarchyKey, calls: CallColumns, trees: Trees, placed: tuple[Rows, list[Marker]]
) -> tuple[list[Module], Ints, Flags, MappedModules]:
    decoded, runs, (place, markers) = keyed.decoded, keyed.runs, placed
    marker = decoded.canonical_marker.take(calls.marker)
    marker = np.where(place >= 0, len(decoded.bare) + place, marker)
    range_row = calls.range_row.take(trees.call)
    nested = Nested(
        parent=trees.parent,
        depth=trees.depth,
        marker=marker[trees.call],
        process=recording.threads.process.astype(np.int32).take(recording.ranges.thread.take(range_row)),
        start_ns=recording.ranges.start_ns.take(range_row),
    )
    above = lookup(trees.node, innermost(calls.start, calls.end, calls.parent, runs.start, runs.end))
    modules, module, unclear, mapped = hierarchy(nested, [*decoded.bare, *markers], recording.counters, runs, above)
    return modules, module.take(trees.node), unclear.take(trees.node), mapped


def _during_graph_captures(recording: Recording, captures: GraphCaptures, calls: CallColumns) -> Flags:
    """Which calls ran during a graph capture of their thread, or were recorded with one apart from the report.

    A call did if it lies between the begin and the end of one. If these were not recorded, it did if it launched
    something and every launch inside it became a node. Whatever such a call calls did too, even if it launches nothing.
    """
    start, end = calls.start, calls.end
    apart = np.isin(recording.ranges.thread[calls.range_row], [*recording.attached_threads])
    if not (captures.submissions.row.size or captures.edges.size):
        return apart
    launches = _count_between(captures.submissions.start, start, end)
    nodes = _count_between(captures.submissions.start[captures.by_node], start, end)
    without_edges = _count_between(captures.edges, start, end) == 0
    inside = captures.windows.at(start, end) >= 0
    inside |= without_edges & (launches > 0) & (nodes == launches)
    rows = np.flatnonzero(inside)
    open_subtrees = np.zeros(start.size + 1, dtype=np.int64)
    np.add.at(open_subtrees, rows, 1)
    np.add.at(open_subtrees, subtree_ends(calls.parent, calls.depth)[rows], -1)
    return apart | (np.cumsum(open_subtrees[:-1]) > 0)


def _count_between(times: Ints, start: Ints, end: Ints) -> Ints:
    return np.searchsorted(times, end) - np.searchsorted(times, start)


def _with_plain(calls: CallColumns, extents: Extents, marker: Rows) -> CallColumns:
    """Adds plain ranges that are nodes of the hierarchy. If one and a call have one extent, it is the outer one."""
    if not extents.row.size:
        return calls
    none = np.full(extents.row.size, -1, dtype=np.int32)
    return CallColumns.nested([(*extents, marker, none, none), calls[:6]])


def _with_unknown(calls: CallColumns, axis: ThreadAxis, ends: RangeEnds, elsewhere: Rows, again: Flags) -> CallColumns:
    """Adds calls of unknown modules, so that launches inside them are given to no other call."""
    unknown = [
        _of_no_module(causes.RECOMPUTED, *_recomputed_stretches(calls, again)),
        _of_no_module(causes.ENDED_ELSEWHERE, axis.range_start[elsewhere], axis.range_end[elsewhere], elsewhere),
        _of_no_module(causes.LEFT_OPEN, *ends.doubts),
    ]
    return CallColumns.nested([calls[:6], *unknown]) if any(part[0].size for part in unknown) else calls


def _of_no_module(cause: causes.Cause, start: Ints, end: Ints, range_row: Rows) -> list[Ints]:
    none = np.full(start.size, -1, dtype=np.int32)
    return [range_row, start, end, none, none, np.full_like(none, causes.CAUSES.index(cause))]


def _recomputed_stretches(calls: CallColumns, apart: Flags) -> tuple[Ints, Ints, Rows]:
    """Stretches of several calls that run again, with what runs again between them: start, end, row of ranges.

    The function that runs again need not be a module, and what it computes is not of the call that runs backward.
    """
    if not apart.any():
        return calls.start[:0], calls.end[:0], calls.range_row[:0]
    by_parent = np.argsort(calls.parent, kind="stable")
    again, parent = apart[by_parent], calls.parent[by_parent]
    follows = np.zeros(again.size, dtype=bool)
    follows[1:] = again[1:] & again[:-1] & (parent[1:] == parent[:-1])
    first = np.flatnonzero(again & ~follows & np.append(follows[1:], False))
    last = np.flatnonzero(follows & ~np.append(follows[1:], False))
    return calls.start[by_parent[first]], calls.end[by_parent[last]], calls.range_row[by_parent[first]]


def _spans_of(
    recording: Recording, decoded: Decoded, axis: ThreadAxis, ends: RangeEnds, marker: Ints, works: Flags
) -> Spans:
    """Finds the marked ranges; ``works`` are the launches that put work on a device or into a graph."""
    marked = decoded.rows(ModuleMarker, Unreadable)[marker] & axis.ends_here
    if ends.doubts[0].size:
        marked &= ~_in_doubt(axis, ends)
    rows, start, end = _outer_first(np.flatnonzero(marked).astype(np.int32), axis, ends, marker, decoded)
    parent, depth = parents(start, end)
    thread = recording.ranges.thread[rows]
    worked = axis.launch_start[works]
    step_start = np.sort(axis.range_start[decoded.ranges(recording, StepMarker) & axis.ends_here])
    never, began = np.iinfo(np.int64), _starts_between(start, worked)
    happened = np.repeat(np.append(never.min, worked), began)
    last_step = np.repeat(np.append(never.min, step_start), _starts_between(start, step_start))
    encloses = np.repeat(np.append(worked, never.max), began) < end
    return Spans(
        range_row=rows,
        start=start,
        end=end,
        thread=thread,
        process=recording.threads.process.astype(np.int32).take(thread),
        marker=marker[rows],
        parent=parent,
        depth=depth,
        encloses=encloses | _with_a_call_inside(start, end, parent),
        happened=np.maximum(happened, last_step, out=happened),
        excused=recording.ranges.open[rows] | (end != axis.range_end[rows]),
        worked=worked,
    )


def _in_doubt(axis: ThreadAxis, ends: RangeEnds) -> Flags:
    """Which ranges began in a call in which a range was left open."""
    since, until, row = ends.doubts
    around = innermost(since, until, parents(since, until)[0], axis.range_start, axis.range_start)
    inside = (around >= 0) & (axis.range_start < lookup(until, around))
    inside[row] = False
    return inside


def _outer_first(
    rows: Ints, axis: ThreadAxis, ends: RangeEnds, marker: Ints, decoded: Decoded
) -> tuple[Rows, Ints, Ints]:
    """Rows, starts and ends of ranges; of those of equal extent, the one with the shorter path is the outer call."""
    start, end = axis.range_start.take(rows), ends.end.take(rows)
    if ends.end is axis.range_end and not bool(((start[1:] == start[:-1]) & (end[1:] == end[:-1])).any()):
        return rows, start, end
    parts = np.array([*(path.count(".") + 1 for path in decoded.paths), 0])[decoded.path]
    order = nesting_order(start, end, parts.take(marker[rows]))
    return rows[order], start[order], end[order]


def _starts_between(start: Ints, times: Ints) -> Ints:
    """How many starts lie before each of some times, but not before the one before it, and after all; all ascending."""
    # Times are fewer than spans, so each is looked for among the starts, not the other way round.
    return np.diff(np.searchsorted(start, times, side="right"), prepend=0, append=start.size)


def _with_a_call_inside(start: Ints, end: Ints, parent: Rows) -> Flags:
    within = parent >= 0
    # With a coarse clock, an empty range right after a call seems to lie at the end of the call.
    empty = np.flatnonzero(start == end)
    within[empty[end[parent[empty]] == end[empty]]] = False
    inside = np.zeros(start.size, dtype=bool)
    inside[parent[within]] = True
    return inside


#: Nobody registers hooks more often than this.
_MOST_TIMES = 4


def _inner_of_duplicates(calls: CallColumns, path: Ints, worked: Ints) -> Flags:
    """Which calls mark the same call as the one around them: they are alone in one of the same text and the same work.

    So must be all calls of that path, and of all paths called by it. ``path`` is a number for every path in every
    process, -1 for none; ``worked`` is when each launch of work began.
    """
    parent = calls.parent
    inner: Flags = (parent >= 0) & (np.append(calls.marker, -1)[parent] == calls.marker) & (path >= 0)
    rows = np.flatnonzero(inner)
    launches, of_parent = (_count_between(worked, calls.start[at], calls.end[at]) for at in (rows, parent[rows]))
    inner[rows] = (counts(parent, parent.size)[parent[rows]] == 1) & (launches == of_parent)
    if not inner.any():
        return inner
    known, outer, paths = path >= 0, (path >= 0) & ~inner, int(path.max()) + 1
    times = np.zeros(paths, dtype=np.int32)
    np.maximum.at(times, path[known], depths(np.where(inner, parent, -1))[known] + 1)
    outers, inners = (np.bincount(path[chosen], minlength=paths) for chosen in (outer, inner))
    duplicated = (inners > 0) & (times <= _MOST_TIMES) & (inners == (times - 1) * outers)
    called = np.flatnonzero(outer & (parent >= 0))
    caller, callee = path[parent[called]], path[called]
    while (single := (caller >= 0) & duplicated[caller] & ~duplicated[callee]).any():
        duplicated[caller[single]] = False
    return np.asarray(inner & np.append(duplicated, False)[path])

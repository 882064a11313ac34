"""Calls of modules: marked ranges, nested, each with its outputs and its place in the hierarchy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tracekit.arrays.columns import integers
from tracekit.arrays.intervals import innermost, subtree_ends
from tracekit.arrays.lookups import lookup
from tracekit.causes import CAUSES
from tracekit.causes.markers import ORPHAN_OUTPUTS
from tracekit.causes.work import MODULE_UNCLEAR
from tracekit.markers.base import ModuleMarker, Unreadable
from tracekit.trace.calls.columns import once_each, with_outputs, with_plain, with_unknown
from tracekit.trace.calls.evaluations import below_operators, evaluations
from tracekit.trace.calls.second_ranges import second_ranges
from tracekit.trace.calls.spans import spans_of
from tracekit.trace.calls.trees import apart_from_parent, runs_again, trees_of
from tracekit.trace.hierarchy.modules import hierarchy
from tracekit.trace.hierarchy.places import Nested

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.graphs.graph_captures import GraphCaptures
    from tracekit.recording.axis import ThreadAxis
    from tracekit.recording.tables import Recording
    from tracekit.trace.calls.columns import CallColumns, Forest
    from tracekit.trace.calls.endings import Endings
    from tracekit.trace.calls.trees import Trees
    from tracekit.trace.hierarchy.modules import Hierarchy, Module
    from tracekit.trace.hierarchy.planted import Planted
    from tracekit.trace.plain.keys import Keyed


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls of modules on all threads, sorted by (start, -end) on the recording's axis.

    Calls whose module is not known are among them with module -1: those whose markers name none that can be read,
    ranges that ended on another thread, and stretches in which it is not known which call was open. They own the
    launches inside, so that these are given to nobody else.

    Attributes:
        range_row: Row of the recording's ranges; of a stretch some row of its thread.
        last_range: Row of the range with which it ends.
        start: Start on the axis.
        end: End on the axis.
        parent: Row of the enclosing call, or -1.
        depth: How many calls enclose it.
        marker: Row of the decoded markers; -1 for what ended elsewhere and for stretches.
        outputs: Row of the marker that tells its outputs, or -1.
        cause: Position in ``causes.CAUSES`` that holds if its module is not known.
        module: Row of modules, or -1.
        captured: Whether it ran during a graph capture of its thread, or around one that was recorded apart.
        apart: Whether it is no part of the enclosing call: it runs a module again for a backward pass, or is a backward
            pass that begins there, or evaluates a node of autograd that another call made.
        evaluates: Whether it evaluates a node of autograd whose operator is known, or is a plain range inside.
        unmarked: Whether it is a backward call of which the report has no range.
        modules: The hierarchy, in pre-order.
        planted: Where the modules of kernel maps stand in it.
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
    evaluates: Flags
    unmarked: Flags
    modules: list[Module]
    planted: Planted

    @property
    def trees(self) -> Trees:
        """Which calls are part of which."""
        return trees_of(self.parent, self.depth, self.apart)

    @property
    def known(self) -> Flags:
        """Which calls are of a known module."""
        return self.module >= 0

    @property
    def known_parent(self) -> Rows:
        """The nearest call of a known module that each one is part of, or -1."""
        parent = np.where(self.apart, -1, self.parent)
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
    recording: Recording, keyed: Keyed, axis: ThreadAxis, endings: Endings, works: Flags, captures: GraphCaptures
) -> Calls:
    """Finds the calls among a recording's ranges.

    Args:
        recording: The recording.
        keyed: Which ranges are nodes of the hierarchy, and the markers.
        axis: Its ranges and launches on one axis.
        endings: When its ranges ended.
        works: Which launches put work on the device, or into a graph.
        captures: What was captured into CUDA graphs.
    """
    decoded = keyed.decoded
    marker = lookup(decoded.of_text, integers(recording.ranges, "text"))
    if not keyed.with_modules:
        marker[decoded.rows(ModuleMarker, Unreadable)[marker]] = -1
    spans = spans_of(recording, decoded, axis, endings, marker, works)
    seconds = second_ranges(spans, decoded, recording.tally)
    recording.tally.add("ranges", ORPHAN_OUTPUTS, int((seconds.second & (seconds.call < 0)).sum()))
    calls, forest = once_each(with_outputs(spans, seconds, decoded), spans, seconds.second, decoded, recording.tally)
    calls, forest = with_plain(calls, forest, keyed.extents, keyed.marker)
    elsewhere = np.flatnonzero(~axis.ends_here)
    elsewhere = elsewhere[decoded.rows(ModuleMarker, Unreadable)[marker[elsewhere]]]
    again = runs_again(decoded.bare, decoded.bare_row[calls.marker], forest.parent)
    calls, forest = with_unknown(calls, forest, axis, endings, elsewhere, again)
    apart = apart_from_parent(decoded.bare, decoded.bare_row[calls.marker], forest.parent)
    evaluated = evaluations(keyed.nodes, calls, forest, decoded.markers, recording.tally)
    apart |= (evaluated.forward >= 0) & (forest.parent >= 0)
    trees = below_operators(trees_of(forest.parent, forest.depth, apart), evaluated.forward)
    around = innermost(calls.start, calls.end, forest.parent, keyed.runs.start, keyed.runs.end)
    modules, module, unclear, places = _hierarchy(recording, keyed, calls, trees, (around, evaluated.forward))
    calls.cause[unclear] = CAUSES.index(MODULE_UNCLEAR)
    return Calls(
        range_row=calls.range_row.astype(np.int32),
        last_range=calls.range_row.astype(np.int32),
        start=calls.start,
        end=calls.end,
        parent=forest.parent.astype(np.int32),
        depth=forest.depth.astype(np.int32),
        marker=calls.marker.astype(np.int32),
        outputs=calls.outputs.astype(np.int32),
        cause=calls.cause.astype(np.int32),
        module=module.astype(np.int32),
        apart=apart,
        evaluates=evaluated.within,
        unmarked=np.zeros(calls.start.size, dtype=bool),
        captured=_during_graph_captures(captures, calls, forest)
        | _beside(recording, calls)
        | _recorded_as_captured(recording, calls),
        modules=modules,
        planted=places,
    )


def _hierarchy(
    recording: Recording, keyed: Keyed, calls: CallColumns, trees: Trees, related: tuple[Rows, Rows]
) -> Hierarchy:
    """The modules of all calls, and the module of every call: of an evaluation, that of its operator's call.

    Args:
        recording: The recording.
        keyed: What its hierarchy is keyed by.
        calls: Its calls.
        trees: What is part of what.
        related: The call around every mapped run, and for every call that of the operator whose node it evaluates.
    """
    around, forward = related
    decoded = keyed.decoded
    range_row = calls.range_row[trees.call]
    nested = Nested(
        parent=trees.parent,
        depth=trees.depth,
        marker=decoded.bare_row[np.where(forward >= 0, -1, calls.marker)[trees.call]],
        process=recording.threads.process[integers(recording.ranges, "thread")[range_row]],
        start_ns=integers(recording.ranges, "start_ns")[range_row],
    )
    above = np.append(trees.node, -1)[around]
    found = hierarchy(nested, decoded.bare, recording.tally, keyed.runs, above)
    node = trees.node[np.where(forward >= 0, forward, np.arange(forward.size))]
    return found._replace(module=found.module[node], unclear=found.unclear[node])


def _beside(recording: Recording, calls: CallColumns) -> Flags:
    """Which calls were recorded with a graph capture, apart from the report: all that ran there is part of that."""
    thread = integers(recording.ranges, "thread")[calls.range_row]
    return np.isin(thread, [*recording.threads_beside])


def _during_graph_captures(captures: GraphCaptures, calls: CallColumns, forest: Forest) -> Flags:
    """Which calls ran during a graph capture of their thread.

    A call did if it lies between the begin and the end of one. Where these were not recorded, it did if it launched
    something and every launch inside it became a node. Whatever such a call calls did too, even if it launches nothing.
    """
    start, end = calls.start, calls.end
    if not captures.submissions.row.size:
        return np.zeros(start.size, dtype=bool)
    launches = _count_between(captures.submissions.start, start, end)
    nodes = _count_between(captures.submissions.start[captures.by_node], start, end)
    without_edges = _count_between(captures.edges.start, start, end) == 0
    inside = captures.windows.at(start, end) >= 0
    inside |= without_edges & (launches > 0) & (nodes == launches)
    rows = np.flatnonzero(inside)
    open_subtrees = np.zeros(start.size + 1, dtype=np.int64)
    np.add.at(open_subtrees, rows, 1)
    np.add.at(open_subtrees, subtree_ends(forest.parent, forest.depth)[rows], -1)
    return np.cumsum(open_subtrees[:-1]) > 0


def _recorded_as_captured(recording: Recording, calls: CallColumns) -> Flags:
    """Which calls the report itself says to have run during a graph capture."""
    known = recording.attributed
    return np.isin(calls.range_row, known.captured) if known else np.zeros(calls.start.size, dtype=bool)


def _count_between(times: Ints, start: Ints, end: Ints) -> Ints:
    """How many of some sorted times lie in each ``[start, end)``."""
    return np.searchsorted(times, end) - np.searchsorted(times, start)

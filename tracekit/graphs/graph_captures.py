"""Graph captures of CUDA graphs: which launches went into a graph instead of to the device, and where nodes were made.

A launch is believed to have become a node only if the making of that node was recorded inside the call, and the call
put no work on the device. Some versions of nsys record nodes after the graph capture has ended: such a record lies in
no launch, or in one of another graph, and its time proves nothing. Where a process has any late record, several nodes
in one launch are not believed unless the launch copies in batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.columns import integers
from tracekit.arrays.groups import agreed, counts, maxima
from tracekit.graphs.api_calls import roles_of
from tracekit.graphs.submissions import no_submissions, submissions_of
from tracekit.graphs.windows import NOWHERE, windows_of

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.graphs.nodes import Lineage
    from tracekit.graphs.submissions import Submissions
    from tracekit.graphs.windows import Edges, Windows
    from tracekit.recording.axis import ThreadAxis
    from tracekit.recording.tables import Recording


class NodePlaces(NamedTuple):
    """Where each node of the lineage was made.

    Attributes:
        start: Start on the axis of the launch that became the node; ``NOWHERE`` where that is not certain.
        end: End of that launch.
    """

    start: Ints
    end: Ints


@dataclass(frozen=True, slots=True)
class GraphCaptures:
    """What was captured into CUDA graphs.

    Attributes:
        windows: The graph captures of which begin and end are known.
        edges: All calls that begin or end a graph capture.
        submissions: Launches that hand over work; none in a recording without graph captures and nodes.
        captured: Which submissions went into a graph, by a node that is believed or by their time.
        by_node: Which of these did by a node that is believed.
        nodes: Where the lineage's nodes were made.
    """

    windows: Windows
    edges: Edges
    submissions: Submissions
    captured: Flags
    by_node: Flags
    nodes: NodePlaces

    @property
    def captured_launches(self) -> Rows:
        """Rows of the recording's launches that went into a graph."""
        return self.submissions.row[self.captured]


def graph_captures_of(recording: Recording, axis: ThreadAxis, lineage: Lineage, works: Flags) -> GraphCaptures:
    """Finds what was captured into CUDA graphs.

    Args:
        recording: The recording.
        axis: Its threads on one axis.
        lineage: The nodes of its graphs.
        works: Which launches put work on the device.
    """
    role = roles_of(recording)
    windows, edges = windows_of(axis, role, integers(recording.launches, "thread"))
    if not edges.start.size and not recording.graph_nodes.num_rows:
        return _nothing_captured(windows, edges, lineage)
    submissions = submissions_of(recording, axis, role, works)
    makings = _makings_of(recording, axis, lineage, submissions)
    in_time = _recorded_in_time(recording, lineage, windows, submissions, makings)
    by_node = _with_a_node(submissions, makings, in_time)
    within = windows.at(submissions.start, submissions.end) >= 0
    return GraphCaptures(
        windows=windows,
        edges=edges,
        submissions=submissions,
        captured=by_node | (submissions.silent & within),
        by_node=by_node,
        nodes=_node_places(lineage, windows, submissions, makings, (by_node, in_time)),
    )


def _nothing_captured(windows: Windows, edges: Edges, lineage: Lineage) -> GraphCaptures:
    nowhere, none = np.full(lineage.root.size, NOWHERE), np.empty(0, dtype=bool)
    return GraphCaptures(windows, edges, no_submissions(), none, none, NodePlaces(nowhere, nowhere))


class _Makings(NamedTuple):
    """Recorded makings of nodes that are no copies: one for each node and time.

    Attributes:
        at: When, on the axis.
        node: Row of the lineage's nodes.
        submission: The submission during which it was recorded, or -1.
    """

    at: Ints
    node: Rows
    submission: Rows


def _makings_of(recording: Recording, axis: ThreadAxis, lineage: Lineage, submissions: Submissions) -> _Makings:
    timed = np.asarray(recording.graph_nodes.column("start_ns").is_valid())
    rows = np.flatnonzero(timed & ~lineage.copied[lineage.of_record])
    node, at = lineage.of_record[rows], axis.node_at[rows]
    order = np.lexsort((at, node))
    node, at = node[order], at[order]
    fresh = np.ones(node.size, dtype=bool)
    fresh[1:] = (node[1:] != node[:-1]) | (at[1:] != at[:-1])
    at, node = at[fresh], node[fresh]
    return _Makings(at, node, submissions.at(at))


def _recorded_in_time(
    recording: Recording, lineage: Lineage, windows: Windows, submissions: Submissions, makings: _Makings
) -> Flags:
    """For every process whether no node that matters was recorded outside of captured launches and graph captures."""
    in_launch = np.append(submissions.silent, False)[makings.submission]
    captured = np.where(makings.submission >= 0, in_launch, windows.still_open(makings.at))
    late = makings.node[~captured]
    late = late[_matters(lineage)[late]]
    in_time = np.ones(recording.threads.process_pid.size, dtype=bool)
    in_time[lineage.process[late]] = False
    return in_time


def _matters(lineage: Lineage) -> Flags:
    """Which nodes a graph capture must have made: originals of copies; in processes without copies, what did work.

    An instance has nodes of its own that are no copies, whether they do work or not.
    """
    copying = np.zeros(int(lineage.process.max(initial=0)) + 1, dtype=bool)
    copying[lineage.process[lineage.copied]] = True
    descendant = lineage.copied | (lineage.replayed & ~copying[lineage.process])
    root = np.where(descendant, lineage.root, -1)
    return np.asarray(counts(root, root.size) > 0)


def _with_a_node(submissions: Submissions, makings: _Makings, in_time: Flags) -> Flags:
    """Which submissions became nodes by records that are believed.

    Args:
        submissions: The launches that hand over work.
        makings: Where nodes were made.
        in_time: For every process whether all its nodes were recorded in time.
    """
    pairs = np.stack((makings.submission, makings.node), axis=1)[makings.submission >= 0]
    number = np.bincount(np.unique(pairs, axis=0)[:, 0], minlength=submissions.row.size)
    several = (number > 1) & (in_time[submissions.process] | submissions.batch)
    return np.asarray(submissions.silent & ((number == 1) | several))


def _node_places(
    lineage: Lineage, windows: Windows, submissions: Submissions, makings: _Makings, believed: tuple[Flags, Flags]
) -> NodePlaces:
    """The place of every node: the launch that became it or, where that was not recorded, the time of its making.

    Args:
        lineage: The nodes.
        windows: The graph captures.
        submissions: The launches that hand over work.
        makings: Where nodes were made.
        believed: Which submissions became nodes; and for every process whether its nodes were recorded in time.
    """
    by_node, in_time = believed
    nodes = lineage.root.size
    inside = np.append(by_node, False)[makings.submission]
    launch = makings.submission[inside]
    places = _agreed_places(nodes, makings.node[inside], submissions.start[launch], submissions.end[launch])
    stray = (makings.submission < 0) & _matters(lineage)[makings.node] & in_time[lineage.process[makings.node]]
    stray[stray] = _in_complete_window(windows, submissions, by_node, makings.at[stray])
    strays = _agreed_places(nodes, makings.node[stray], makings.at[stray], makings.at[stray])
    in_launch = np.zeros(nodes, dtype=bool)
    in_launch[makings.node[inside]] = True
    return NodePlaces(
        np.where(in_launch, places.start, strays.start),
        np.where(in_launch, places.end, strays.end),
    )


def _agreed_places(nodes: int, node: Rows, start: Ints, end: Ints) -> NodePlaces:
    """The one place where each node was made; ``NOWHERE`` if there is none, or several."""
    place = agreed(node, start, nodes, missing=NOWHERE)
    return NodePlaces(place, np.where(place == NOWHERE, NOWHERE, maxima(node, end, nodes)))


def _in_complete_window(windows: Windows, submissions: Submissions, by_node: Flags, at: Ints) -> Flags:
    """Which times lie in a graph capture in which every recorded launch has a node of its own.

    Then nodes made there in no recorded launch come from launches that were not recorded.

    Args:
        windows: The graph captures.
        submissions: The launches that hand over work.
        by_node: Which of these became nodes.
        at: When nodes were made, in processes whose nodes were recorded in time.
    """
    if not windows.begin.size:
        return np.zeros(at.size, dtype=bool)
    row = windows.at(at, at)
    missing = np.concatenate(([0], np.cumsum(submissions.silent & ~by_node)))
    low = np.searchsorted(submissions.start, windows.opened[row])
    high = np.searchsorted(submissions.start, windows.closed[row])
    return np.asarray((row >= 0) & windows.alone[row] & (missing[high] == missing[low]))

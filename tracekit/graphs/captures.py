"""Graph captures of CUDA graphs: which launches went into a graph instead of to the device, and where nodes were made.

A launch is believed to have become a node only if the making of that node was recorded inside the call, and the call
put no work on the device. Some versions of nsys record nodes after the graph capture has ended: such a record lies in
no launch, or in one of another graph, and its time proves nothing. So several nodes in one launch are not believed
unless the launch copies in batches.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tracekit.arrays.groups import agreed, counts, grouped, maxima
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.graphs import api_calls
from tracekit.graphs.nodes import CloneChains
from tracekit.recording.axis import ThreadAxis
from tracekit.recording.tables import NO_TIME, Recording

#: Position on the axis of a time that is not known.
NOWHERE = np.iinfo(np.int64).min


def _holding(start: Ints, end: Ints, first: Ints, last: Ints) -> Rows:
    row = np.searchsorted(start, first, side="right") - 1
    return np.where((row >= 0) & (np.append(end, NOWHERE)[row] >= last), row, -1)


class Windows(NamedTuple):
    """Graph captures of which both begin and end are recorded, in the order of the axis.

    Attributes:
        begin: Start of the call that began the graph capture, on the axis.
        opened: End of that call.
        closed: Start of the call that ended the graph capture.
        isolated: Whether no other graph capture can have been open on the thread meanwhile.
    """

    begin: Ints
    opened: Ints
    closed: Ints
    end: Ints
    isolated: Flags

    def at(self, first: Ints, last: Ints) -> Rows:
        """The window that contains each ``[first, last]``, the calls at its edges included; -1 for none."""
        return _holding(self.begin, self.end, first, last)


def windows_of(axis: ThreadAxis, role: Ints, thread: Ints) -> tuple[Windows, Ints]:
    """Pairs each call that begins a graph capture with the call after it on its thread, if that ends one.

    Also gives when each call began that begins or ends one, paired or not.
    """
    # The runtime's call encloses the driver's; both mean the same.
    rows = outermost(axis, np.flatnonzero((role == api_calls.BEGINS_CAPTURE) | (role == api_calls.ENDS_CAPTURE)))
    start, end = axis.launch_start[rows], axis.launch_end[rows]
    begins = role[rows] == api_calls.BEGINS_CAPTURE
    follows = np.zeros(rows.size + 1, dtype=bool)  # the edge before is on the same thread
    follows[1:-1] = thread[rows[1:]] == thread[rows[:-1]]
    pair = np.flatnonzero(begins[:-1] & ~begins[1:] & follows[1:-1])
    opened_before = follows[pair] & begins[pair - 1]
    closed_after = follows[pair + 2] & ~np.append(begins, True)[pair + 2]
    isolated = ~opened_before & ~closed_after
    return Windows(start[pair], end[pair], start[pair + 1], end[pair + 1], isolated), start


def outermost(axis: ThreadAxis, rows: Rows) -> Rows:
    """Those of some launches that lie inside no other of them."""
    reach = np.maximum.accumulate(axis.launch_end[rows])
    within = np.zeros(rows.size, dtype=bool)
    within[1:] = axis.launch_end[rows[1:]] <= reach[:-1]
    touching = np.zeros(rows.size, dtype=bool)
    touching[1:] = axis.launch_start[rows[1:]] >= reach[:-1]
    return rows[~within | touching]


class Submissions(NamedTuple):
    """Launches that hand over work, to the device or to a graph, in the order of the axis; only the outermost calls.

    Attributes:
        role: What the call becomes when captured: ``api_calls.KERNEL_LAUNCH`` and others.
        worked: Whether it, or a call inside it, put work on the device.
    """

    row: Rows
    start: Ints
    end: Ints
    process: Rows
    role: Ints
    worked: Flags

    @property
    def without_work(self) -> Flags:
        """Which may have been captured: they can become nodes, and put no work on the device."""
        return api_calls.makes_node(self.role) & ~self.worked

    def at(self, time: Ints) -> Rows:
        """The submission that was under way at each time, or -1."""
        return _holding(self.start, self.end, time, time)


def submissions_of(recording: Recording, axis: ThreadAxis, role: Ints, works: Flags) -> Submissions:
    """Finds the launches that hand over work; ``works`` are those that put work on the device."""
    row = outermost(axis, np.flatnonzero(works | api_calls.makes_node(role) | (role == api_calls.GRAPH_LAUNCH)))
    worked = np.zeros(row.size, dtype=bool)
    worked[np.searchsorted(axis.launch_start[row], axis.launch_start[works], side="right") - 1] = True
    process = recording.threads.process[recording.launches.thread[row]]
    return Submissions(row, axis.launch_start[row], axis.launch_end[row], process, role[row], worked)


@dataclass(frozen=True, slots=True)
class GraphCaptures:
    """What was captured into CUDA graphs.

    Attributes:
        windows: The graph captures of which begin and end are known.
        edges: When calls began that begin or end a graph capture, paired or not.
        submissions: Launches that hand over work; none in a recording without graph captures and nodes.
        captured: Which submissions went into a graph, by a node that is believed or by their time.
        nodes: Starts and ends on the axis of the launches that became nodes; ``NOWHERE`` where that is not certain.
    """

    windows: Windows
    edges: Ints
    submissions: Submissions
    captured: Flags
    by_node: Flags
    nodes: tuple[Ints, Ints]

    @property
    def captured_launches(self) -> Rows:
        """Rows of the recording's launches that went into a graph."""
        return self.submissions.row[self.captured]


def graph_captures_of(recording: Recording, axis: ThreadAxis, chains: CloneChains, works: Flags) -> GraphCaptures:
    """Finds what was captured into CUDA graphs; ``works`` are the launches that put work on the device."""
    role = api_calls.roles_of(recording)
    windows, edges = windows_of(axis, role, recording.launches.thread)
    if not edges.size and not len(recording.graph_nodes):
        role, works = np.zeros_like(role), np.zeros_like(works)
    submissions = submissions_of(recording, axis, role, works)
    timed = np.flatnonzero((recording.graph_nodes.start_ns != NO_TIME) & ~chains.cloned[chains.of_record])
    node, maker = chains.of_record[timed], submissions.at(axis.node_at[timed])
    by_node = _with_a_node(recording, submissions, node[maker >= 0], maker[maker >= 0])
    within = windows.at(submissions.start, submissions.end) >= 0
    captured = by_node | (submissions.without_work & within)
    made = np.append(by_node, False)[maker]
    nodes = _node_places(submissions, node[made], maker[made], chains.root.size)
    return GraphCaptures(windows, edges, submissions, captured, by_node, nodes)


def _with_a_node(recording: Recording, submissions: Submissions, node: Rows, maker: Rows) -> Flags:
    """Which submissions became a node, as the records say: each of ``node`` was made during its ``maker``."""
    number = counts(maker[grouped((maker, node)).first], submissions.row.size)
    several = (number > 1) & api_calls.is_batch(recording, submissions.row)
    return np.asarray(submissions.without_work & ((number == 1) | several))


def _node_places(submissions: Submissions, node: Rows, maker: Rows, nodes: int) -> tuple[Ints, Ints]:
    """The place of every node: the one launch that became it; ``NOWHERE`` if there is none, or several."""
    place = agreed(node, submissions.start[maker], nodes, missing=NOWHERE)
    return place, np.where(place == NOWHERE, NOWHERE, maxima(node, submissions.end[maker], nodes))


@dataclass(frozen=True, slots=True)
class Origins:
    """Where on the axis each node of a CUDA graph was captured.

    Attributes:
        start: For every node the start of the captured launch, or ``NOWHERE``.
        by_order: Whether the place follows from the order of launches, not from the node's clone chain.
        shared: Whether several graph captures may have made the node, all of them in the same module.
    """

    start: Ints
    end: Ints
    by_order: Flags
    shared: Flags

    @property
    def known(self) -> Flags:
        """Which nodes have a place."""
        return np.asarray(self.start != NOWHERE)

    @property
    def certain(self) -> Flags:
        """Which nodes have a place in one graph capture, of which all is known."""
        return self.known & ~self.shared


class GraphEvidence(NamedTuple):
    """What is known about a recording's CUDA graphs before the order of nodes is looked at."""

    recording: Recording
    axis: ThreadAxis
    chains: CloneChains
    captures: GraphCaptures
    origins: Origins


def by_clone_chains(
    recording: Recording, axis: ThreadAxis, chains: CloneChains, captures: GraphCaptures
) -> GraphEvidence:
    """Places nodes where those were made that their clone chains lead to; ``NOWHERE`` where they lead to none.

    ``cudaGraphExecUpdate`` and calls that set the parameters of an instance's node change what a node does and leave no
    clone behind: after them, the chain still leads to the first graph capture.
    """
    start, end = (np.append(times, NOWHERE)[chains.root] for times in captures.nodes)
    no = np.zeros(start.size, dtype=bool)
    return GraphEvidence(recording, axis, chains, captures, Origins(start, end, by_order=no, shared=no))

"""Graph captures of CUDA graphs: which launches went into a graph instead of to the device, and where nodes were made.

A launch is believed to have become a node only if the making of that node was recorded inside the call, and the call
put no work on the device. Some versions of nsys record nodes after the graph capture has ended: such a record lies in
no launch, or in one of another graph, and its time proves nothing. So several nodes in one launch are not believed
unless the launch copies in batches.

A node that is replayed is a clone of a clone … of the captured one. Ids of nodes are unique within one process. A clone
has two records, one without and one with the node that it was cloned from (CUPTI: ``originalGraphNodeId``); a node of
an instance may lack the latter. A chain that leads in a circle or to two nodes is not believed.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.arrays.groups import agreed, counts, distinct, grouped, maxima
from tracekit.arrays.intervals import one_axis
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.graphs import api_calls
from tracekit.recording.axis import ThreadAxis
from tracekit.recording.tables import NO_TIME, Recording


@dataclass(frozen=True, slots=True)
class CloneChains:
    """Nodes that are recorded or were replayed, sorted by (process, id), and their clone chains.

    Attributes:
        root: Row of the node at the top of its chain, possibly itself; -1 where the chain is not believed.
        of_record: For every row of the recording's graph nodes the row of its node.
        of_work: For every kernel the row of the node it ran from, or -1.
    """

    process: Rows
    node_id: Ints
    root: Rows
    recorded: Flags
    cloned: Flags
    of_record: Rows
    of_work: Rows

    @property
    def replayed(self) -> Flags:
        """Which nodes did work."""
        return counts(self.of_work, self.root.size) > 0

    @property
    def original(self) -> Rows:
        """For every node the row of the recorded node at the top of its clone chain, or -1."""
        original: Rows = np.where(np.append(self.recorded, False)[self.root], self.root, -1)
        return original


def clone_chains(recording: Recording, unnumbered: Rows | None = None) -> CloneChains:
    """Finds the clone chain of every node; each ``unnumbered`` kernel, which names no node, has one of its own."""
    records = recording.graph_nodes
    process = recording.threads.process[records.thread]
    node, original = records.node_id, records.original_node_id
    is_clone = (original != -1) & (original != node)
    process_of_run, node_of_run, run = _nodes_of_work(recording, unnumbered)
    processes = np.concatenate((process, process[is_clone], process_of_run))
    ids = np.concatenate((node, original[is_clone], node_of_run))
    _, first, row = np.unique(one_axis([processes], [ids])[0], return_index=True, return_inverse=True)
    of_record, above, of_run = np.split(row.astype(np.int32), np.cumsum((node.size, int(is_clone.sum()))))
    recorded, cloned = np.zeros(first.size, dtype=bool), np.zeros(first.size, dtype=bool)
    recorded[of_record] = True
    cloned[of_record[is_clone]] = True
    return CloneChains(
        process=processes[first].astype(np.int32),
        node_id=ids[first],
        root=_roots(first.size, of_record[is_clone], above),
        recorded=recorded,
        cloned=cloned,
        of_record=of_record,
        of_work=np.append(of_run, np.int32(-1))[run],
    )


def _nodes_of_work(recording: Recording, unnumbered: Rows | None) -> tuple[Rows, Ints, Rows]:
    """Process and id of the distinct nodes that did work, and for every kernel the row of its node there, or -1."""
    process, node = recording.work.process, recording.work.graph_node_id
    if unnumbered is not None and unnumbered.size:
        # No profiler gives negative ids to nodes.
        node = node.copy()
        node[unnumbered] = -2 - np.arange(unnumbered.size)
    rows = np.flatnonzero((node != -1) & (process >= 0))
    of_work = np.full(process.size, -1, dtype=np.int32)
    if not rows.size:
        return np.empty(0, np.int32), np.empty(0, np.int64), of_work
    encoded = pc.dictionary_encode(pa.array(node[rows]))
    ids = np.asarray(encoded.dictionary, dtype=np.int64)
    code, of_work[rows] = distinct(process[rows] * np.int64(ids.size) + np.asarray(encoded.indices))
    return (code // ids.size).astype(np.int32), ids[code % ids.size], of_work


def _roots(number: int, clone: Rows, above: Rows) -> Rows:
    """For every node the row of the node at the top of its clone chain, or -1.

    Each of ``clone`` is recorded as cloned from that ``above`` it; several times if several records do so.
    """
    lowest, highest = np.arange(number + 1, dtype=np.int32), np.arange(number + 1, dtype=np.int32)
    lowest[clone], highest[clone] = number, -1
    np.minimum.at(lowest, clone, above)
    np.maximum.at(highest, clone, above)
    # Nodes that are recorded as cloned from several lead to a row of no node.
    one_up = top = np.where(lowest == highest, highest, np.int32(number))
    # Pointer doubling: after k rounds a node points 2^k steps up, or at the top.
    for _ in range(number.bit_length()):
        higher = top[top]
        if np.array_equal(higher, top):
            break
        top = higher
    in_circle = one_up[top] != top
    return np.where(in_circle | (top == number), -1, top)[:number].astype(np.int32)


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
    row = outermost(axis, np.flatnonzero(works | api_calls.makes_node(role) | (role == api_calls.GRAPH_LAUNCH)))
    worked = np.zeros(row.size, dtype=bool)
    worked[np.searchsorted(axis.launch_start[row], axis.launch_start[works], side="right") - 1] = True
    process = recording.threads.process[recording.launches.thread[row]]
    submissions = Submissions(row, axis.launch_start[row], axis.launch_end[row], process, role[row], worked)
    timed = np.flatnonzero((recording.graph_nodes.start_ns != NO_TIME) & ~chains.cloned[chains.of_record])
    node, maker = chains.of_record[timed], submissions.at(axis.node_at[timed])
    # Each node was made during its maker, as the records say.
    of_maker = grouped((maker[maker >= 0], node[maker >= 0]))
    number = counts(maker[maker >= 0][of_maker.first], submissions.row.size)
    several = (number > 1) & api_calls.launches_named(recording, api_calls.BATCHES)[submissions.row]
    by_node = submissions.without_work & ((number == 1) | several)
    within = windows.at(submissions.start, submissions.end) >= 0
    captured = by_node | (submissions.without_work & within)
    made = np.append(by_node, False)[maker]
    node, maker = node[made], maker[made]
    # The one launch that became a node; nowhere if there is none, or several.
    start = agreed(node, submissions.start[maker], chains.root.size, missing=NOWHERE)
    end = np.where(start == NOWHERE, NOWHERE, maxima(node, submissions.end[maker], chains.root.size))
    return GraphCaptures(windows, edges, submissions, captured, by_node, (start, end))


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

    Calls that update an instance leave no clone behind: after them, the chain still leads to the first graph capture.
    """
    start, end = (np.append(times, NOWHERE)[chains.root] for times in captures.nodes)
    no = np.zeros(start.size, dtype=bool)
    return GraphEvidence(recording, axis, chains, captures, Origins(start, end, by_order=no, shared=no))

"""Graph captures of CUDA graphs: which launches went into a graph instead of to the device, and where nodes were made.

A launch is believed to have become a node only if the making of that node was recorded inside the call, and the call
put no work on the device. Some versions of nsys record nodes after the graph capture has ended: such a record lies in
no launch, or in one of another graph, and its time proves nothing. Where a process has any late record, several nodes
in one launch are not believed unless the launch copies in batches.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tracekit.arrays.groups import agreed, counts, distinct, maxima
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.graphs import api_calls
from tracekit.graphs.nodes import CloneChains
from tracekit.recording.axis import ThreadAxis
from tracekit.recording.tables import GRAPH_CLONED, GRAPH_CREATED, GRAPH_INSTANTIATED, NO_TIME, Recording

#: Position on the axis of a time that is not known.
NOWHERE = np.iinfo(np.int64).min


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
        row = np.searchsorted(self.begin, first, side="right") - 1
        inside = (row >= 0) & (np.append(self.end, NOWHERE)[row] >= last)
        return np.where(inside, row, -1)

    def still_open(self, at: Ints) -> Flags:
        """Whether each time lies in a window, before the call that ends the graph capture."""
        row = self.at(at, at)
        return np.asarray((row >= 0) & (np.append(self.closed, NOWHERE)[row] >= at))


class Edges(NamedTuple):
    """All calls that begin or end a graph capture, in the order of the axis, paired or not."""

    start: Ints
    thread: Rows
    begins: Flags


def windows_of(axis: ThreadAxis, role: Ints, thread: Ints) -> tuple[Windows, Edges]:
    """Pairs each call that begins a graph capture with the call after it on its thread, if that ends one."""
    # The runtime's call lies around the driver's; both mean the same.
    rows = outermost(axis, np.flatnonzero((role == api_calls.BEGINS_CAPTURE) | (role == api_calls.ENDS_CAPTURE)))
    start, end = axis.launch_start[rows], axis.launch_end[rows]
    edges = Edges(start, thread[rows], role[rows] == api_calls.BEGINS_CAPTURE)
    follows = np.zeros(rows.size + 1, dtype=bool)  # the edge before is on the same thread
    follows[1:-1] = edges.thread[1:] == edges.thread[:-1]
    pair = np.flatnonzero(edges.begins[:-1] & ~edges.begins[1:] & follows[1:-1])
    opened_before = follows[pair] & edges.begins[pair - 1]
    closed_after = follows[pair + 2] & ~np.append(edges.begins, True)[pair + 2]
    isolated = ~opened_before & ~closed_after
    return Windows(start[pair], end[pair], start[pair + 1], end[pair + 1], isolated), edges


def completely_recorded(recording: Recording, axis: ThreadAxis, windows: Windows, rows: Rows) -> Flags:
    """During which of some graph captures every call of the process is recorded: correlation ids have no gap."""
    begin, end = (np.searchsorted(axis.launch_start, edge[rows]) for edge in (windows.begin, windows.closed))
    ids = recording.launches.correlation_id
    process = recording.threads.process[recording.launches.thread]
    complete = np.zeros(rows.size, dtype=bool)
    for owner in np.unique(process[begin]).tolist():
        recorded, own = np.unique(ids[process == owner]), process[begin] == owner
        first, last = ids[begin[own]], ids[end[own]]
        calls = np.searchsorted(recorded, last) - np.searchsorted(recorded, first)
        complete[own] = calls == last - first
    return complete


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
        batch: Whether one call becomes several nodes.
    """

    row: Rows
    start: Ints
    end: Ints
    process: Rows
    role: Ints
    worked: Flags
    batch: Flags

    @property
    def without_work(self) -> Flags:
        """Which may have been captured: they can become nodes, and put no work on the device."""
        return api_calls.makes_node(self.role) & ~self.worked

    def at(self, time: Ints) -> Rows:
        """The submission that was under way at each time, or -1."""
        row = np.searchsorted(self.start, time, side="right") - 1
        row[(row < 0) | (np.append(self.end, NOWHERE)[row] < time)] = -1
        return row


def submissions_of(recording: Recording, axis: ThreadAxis, role: Ints, works: Flags) -> Submissions:
    """Finds the launches that hand over work; ``works`` are those that put work on the device."""
    row = outermost(axis, np.flatnonzero(works | api_calls.makes_node(role) | (role == api_calls.GRAPH_LAUNCH)))
    worked = np.zeros(row.size, dtype=bool)
    worked[np.searchsorted(axis.launch_start[row], axis.launch_start[works], side="right") - 1] = True
    return Submissions(
        row=row,
        start=axis.launch_start[row],
        end=axis.launch_end[row],
        process=recording.threads.process[recording.launches.thread[row]],
        role=role[row],
        worked=worked,
        batch=api_calls.is_batch(recording, row),
    )


@dataclass(frozen=True, slots=True)
class GraphCaptures:
    """What was captured into CUDA graphs.

    Attributes:
        windows: The graph captures of which begin and end are known.
        edges: All calls that begin or end a graph capture.
        submissions: Launches that hand over work; none in a recording without graph captures and nodes.
        captured: Which submissions went into a graph, by a node that is believed or by their time.
        nodes: Starts and ends on the axis of the launches that became nodes; ``NOWHERE`` where that is not certain.
    """

    windows: Windows
    edges: Edges
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
    if not edges.start.size and not len(recording.graph_nodes):
        return _nothing_captured(windows, edges, chains)
    submissions = submissions_of(recording, axis, role, works)
    makings = _makings_of(recording, axis, chains, submissions)
    in_time = _recorded_in_time(recording, chains, windows, submissions, makings)
    by_node = _with_a_node(submissions, makings, in_time)
    within = windows.at(submissions.start, submissions.end) >= 0
    return GraphCaptures(
        windows=windows,
        edges=edges,
        submissions=submissions,
        captured=by_node | (submissions.without_work & within),
        by_node=by_node,
        nodes=_node_places(chains, windows, submissions, makings, (by_node, in_time)),
    )


def _nothing_captured(windows: Windows, edges: Edges, chains: CloneChains) -> GraphCaptures:
    times, rows, flags = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32), np.empty(0, dtype=bool)
    nowhere = np.full(chains.root.size, NOWHERE)
    submissions = Submissions(rows, times, times, rows, rows, flags, flags)
    return GraphCaptures(windows, edges, submissions, flags, flags, (nowhere, nowhere))


class _Makings(NamedTuple):
    """Recorded makings of nodes that are no clones: when, which node, and the submission meanwhile, or -1."""

    at: Ints
    node: Rows
    submission: Rows


def _makings_of(recording: Recording, axis: ThreadAxis, chains: CloneChains, submissions: Submissions) -> _Makings:
    timed = recording.graph_nodes.start_ns != NO_TIME
    rows = np.flatnonzero(timed & ~chains.cloned[chains.of_record])
    node, at = chains.of_record[rows], axis.node_at[rows]
    order = np.lexsort((at, node))
    node, at = node[order], at[order]
    fresh = np.ones(node.size, dtype=bool)
    fresh[1:] = (node[1:] != node[:-1]) | (at[1:] != at[:-1])
    at, node = at[fresh], node[fresh]
    return _Makings(at, node, submissions.at(at))


def _recorded_in_time(
    recording: Recording, chains: CloneChains, windows: Windows, submissions: Submissions, makings: _Makings
) -> Flags:
    """For every process whether no node that matters was recorded outside of captured launches and graph captures."""
    in_launch = np.append(submissions.without_work, False)[makings.submission]
    captured = np.where(makings.submission >= 0, in_launch, windows.still_open(makings.at))
    late = makings.node[~captured]
    late = late[_matters(chains)[late]]
    in_time = np.ones(recording.threads.process_pid.size, dtype=bool)
    in_time[chains.process[late]] = False
    return in_time


def _matters(chains: CloneChains) -> Flags:
    """Which nodes a graph capture must have made: originals of clones; in processes without clones, what did work.

    An instance has nodes of its own that are no clones, whether they do work or not.
    """
    cloning = np.zeros(int(chains.process.max(initial=0)) + 1, dtype=bool)
    cloning[chains.process[chains.cloned]] = True
    descendant = chains.cloned | (chains.replayed & ~cloning[chains.process])
    root = np.where(descendant, chains.root, -1)
    return np.asarray(counts(root, root.size) > 0)


def _with_a_node(submissions: Submissions, makings: _Makings, in_time: Flags) -> Flags:
    rows, nodes = np.flatnonzero(makings.submission >= 0), int(makings.node.max(initial=-1)) + 2
    pairs, _ = distinct(makings.submission[rows].astype(np.int64) * nodes + makings.node[rows] + 1)
    number = np.bincount(pairs // nodes, minlength=submissions.row.size)
    several = (number > 1) & (in_time[submissions.process] | submissions.batch)
    return np.asarray(submissions.without_work & ((number == 1) | several))


def _node_places(
    chains: CloneChains, windows: Windows, submissions: Submissions, makings: _Makings, believed: tuple[Flags, Flags]
) -> tuple[Ints, Ints]:
    """The place of every node: the launch that became it or, where that was not recorded, the time of its making.

    ``believed``: which submissions became nodes; and for every process whether its nodes were recorded in time.
    """
    by_node, in_time = believed
    nodes = chains.root.size
    inside = np.append(by_node, False)[makings.submission]
    launch = makings.submission[inside]
    places = _agreed_places(nodes, makings.node[inside], submissions.start[launch], submissions.end[launch])
    stray = (makings.submission < 0) & _matters(chains)[makings.node] & in_time[chains.process[makings.node]]
    stray[stray] = _in_complete_window(windows, submissions, by_node, makings.at[stray])
    strays = _agreed_places(nodes, makings.node[stray], makings.at[stray], makings.at[stray])
    in_launch = np.zeros(nodes, dtype=bool)
    in_launch[makings.node[inside]] = True
    start, end = (np.where(in_launch, *both) for both in zip(places, strays, strict=True))
    return start, end


def _agreed_places(nodes: int, node: Rows, start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """The one place where each node was made; ``NOWHERE`` if there is none, or several."""
    place = agreed(node, start, nodes, missing=NOWHERE)
    return place, np.where(place == NOWHERE, NOWHERE, maxima(node, end, nodes))


def _in_complete_window(windows: Windows, submissions: Submissions, by_node: Flags, at: Ints) -> Flags:
    """Which times lie in a graph capture in which every recorded launch has a node of its own.

    Then nodes made there in no recorded launch come from launches that were not recorded.
    """
    if not windows.begin.size:
        return np.zeros(at.size, dtype=bool)
    row = windows.at(at, at)
    missing = np.concatenate(([0], np.cumsum(submissions.without_work & ~by_node)))
    low = np.searchsorted(submissions.start, windows.opened[row])
    high = np.searchsorted(submissions.start, windows.closed[row])
    return np.asarray((row >= 0) & windows.isolated[row] & (missing[high] == missing[low]))


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


class GraphRecords(NamedTuple):
    """The records of graphs: when each was created, and what instances and clones were made of.

    Attributes:
        windows: By (process, graph), the windows of graph captures during which it was created; -1 for outside.
        sources: By (process, instance or clone), the graphs that it was made of.
        processes: Rows of processes in which the making of any graph or node is recorded.
    """

    windows: dict[tuple[int, int], set[int]]
    sources: dict[tuple[int, int], set[int]]
    processes: set[int]

    def source_of(self, process: int, graph: int) -> int:
        """The graph that an instance or a clone was made of, through clones; -1 where several records differ.

        An instance is itself a graph, created outside of graph captures.
        """
        seen = set()
        while graph not in seen:
            seen.add(graph)
            sources = self.sources.get((process, graph), set()) - {graph}
            if not sources:
                return graph
            if len(sources) > 1:
                break
            (graph,) = sources
        return -1


def graph_records_of(known: GraphEvidence) -> GraphRecords:
    """Reads the records of graphs."""
    graphs, threads = known.recording.graphs, known.recording.threads
    process = threads.process[graphs.thread]
    with_nodes = threads.process[known.recording.graph_nodes.thread]
    records = GraphRecords({}, {}, {*process.tolist(), *with_nodes.tolist()})
    at = known.axis.graph_at
    window = np.where(graphs.start_ns != NO_TIME, known.captures.windows.at(at, at), -1)
    columns = graphs.event, graphs.graph_id, graphs.original_graph_id, graphs.exec_id
    for owner, within, event, graph, original, instance in zip(
        process.tolist(), window.tolist(), *(column.tolist() for column in columns), strict=True
    ):
        if event == GRAPH_CREATED and graph >= 0:
            records.windows.setdefault((owner, graph), set()).add(within)
        elif event == GRAPH_INSTANTIATED:
            records.sources.setdefault((owner, instance), set()).add(graph)
        elif event == GRAPH_CLONED:
            records.sources.setdefault((owner, graph), set()).add(original)
    return records


class CapturedLaunches(NamedTuple):
    """The launches of one graph capture, in order, on the axis; kinds of their work as bytes, and their rows."""

    window: int
    process: int
    end_ns: int
    start: Ints
    end: Ints
    kinds: bytes
    launch: Rows


def captured_launches(known: GraphEvidence) -> Iterator[CapturedLaunches]:
    """The graph captures with launches that no other graph capture can contain."""
    windows, submissions, recording = known.captures.windows, known.captures.submissions, known.recording
    kind = api_calls.kinds_of(submissions.role)
    rows = np.flatnonzero(known.captures.captured & (kind >= 0))
    low, high = (np.searchsorted(submissions.start[rows], edge) for edge in (windows.opened, windows.closed))
    for window in np.flatnonzero(windows.isolated & (high > low)).tolist():
        own = rows[low[window] : high[window]]
        yield CapturedLaunches(
            window=window,
            process=int(submissions.process[own[0]]),
            end_ns=int(recording.launches.end_ns[submissions.row[own[-1]]]),
            start=submissions.start[own],
            end=submissions.end[own],
            kinds=kind[own].tobytes(),
            launch=submissions.row[own],
        )

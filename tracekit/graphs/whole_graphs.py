"""Graphs traced as a whole: which graph capture is certain to have made each of them, and what it captured.

Such a graph is one kernel, which carries the ids of its instance and of the graph that this was made of. Records
of graphs lead from there, through clones, to a graph that a call such as ``cudaStreamBeginCapture`` created. The graph
capture that this call began is certain to be all of the graph only if nothing can have been captured from another
thread or added by hand, if it contains no other graph, and if no instance was updated before the replay.
"""

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from tracekit.arrays.codes import lookup
from tracekit.arrays.groups import counts, maxima
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.graphs.api_calls import GRAPH_LAUNCH, first_updates, launches_named
from tracekit.graphs.captures import GraphEvidence
from tracekit.recording.tables import GRAPH, GRAPH_CLONED, GRAPH_CREATED, GRAPH_INSTANTIATED, NO_TIME

#: API calls that add nodes by hand; those of them that may add a graph; and those that capture into an older graph.
_ADDS = ("cudaGraphAdd", "cuGraphAdd")
_ADDS_GRAPHS = ("cudaGraphAddNode", "cuGraphAddNode", "cudaGraphAddChild", "cuGraphAddChild")
_CAPTURES_INTO = ("cudaStreamBeginCaptureToGraph", "cuStreamBeginCaptureToGraph")
#: A process with at least so many recorded calls, and more of them than gaps in their ids, has all its calls recorded.
_MANY = 16
_LAST = np.iinfo(np.int64).max - 1


class WholeGraphs(NamedTuple):
    """Graphs traced as a whole whose graph capture is certain, with its window; and its launches, with theirs."""

    work: Rows
    window: Rows
    launch: Rows
    captured_in: Rows


def whole_graphs(known: GraphEvidence, launch: Rows) -> WholeGraphs:
    """Finds the graph captures of graphs that were traced as a whole."""
    recording, captures = known.recording, known.captures
    work = np.flatnonzero(recording.work.kind == GRAPH)
    if not work.size or not captures.windows.isolated.any():
        return WholeGraphs(*(np.empty(0, dtype=np.int64) for _ in range(4)))
    launches, windows, axis = recording.launches, captures.windows, known.axis
    begin, end = (np.searchsorted(axis.launch_start, edge) for edge in (windows.begin, windows.closed))
    process = recording.threads.process[launches.thread[begin]]
    extents = _Extents(process, begin, end, launches.start_ns[begin], launches.end_ns[end])
    window = _windows_of(known, work)
    window[~np.append(_understood(known, extents), False)[window]] = -1
    # A graph whose launch is not known may have been launched after any update.
    launched_ns = lookup(launches.start_ns, launch[work], missing=_LAST)
    updated = launched_ns >= first_updates(recording)[extents.process[window]]
    kept = (window >= 0) & (recording.work.start_ns[work] >= extents.end_ns[window]) & ~updated
    within = captures.windows.at(captures.submissions.start, captures.submissions.end)
    rows = captures.captured & np.isin(within, window[kept])
    return WholeGraphs(work[kept], window[kept], captures.submissions.row[rows], within[rows])


class _Extents(NamedTuple):
    """Windows, with the rows of the calls that begin and end them."""

    process: Rows
    begin: Rows
    end: Rows
    begin_ns: Ints
    end_ns: Ints


def _windows_of(known: GraphEvidence, work: Rows) -> Rows:
    """The window whose first call created the graph of each such kernel; -1 where unknown or contradicted."""
    of = known.recording.work
    columns = np.stack([column[work] for column in (of.process, of.graph_id, of.graph_exec_id)])
    instances, instance = np.unique(columns, axis=1, return_inverse=True)
    window_of_graph, sources = _graph_records(known)
    windows = []
    for process, graph, graph_exec in instances.T.tolist():
        recorded = graph < 0 or (process, graph_exec) in sources
        numbers = [number for number in (graph, graph_exec)[: 1 + recorded] if number >= 0]
        made_of = {_source_of(sources, process, number) for number in numbers}
        windows.append(window_of_graph.get((process, made_of.pop()), -1) if len(made_of) == 1 else -1)
    return np.array(windows, dtype=np.int64)[instance.reshape(-1)]


def _understood(known: GraphEvidence, extents: _Extents) -> Flags:
    captures = known.captures
    windows, submissions = captures.windows, captures.submissions
    within = windows.at(submissions.start, submissions.end)
    graphs = (submissions.role == GRAPH_LAUNCH) & ~submissions.worked
    graphs |= launches_named(known.recording, _ADDS_GRAPHS)[submissions.row]
    captured, inner = (counts(np.where(rows, within, -1), windows.begin.size) for rows in (captures.captured, graphs))
    isolated = windows.isolated & ~_joined(known, extents, within) & ~_added_to(known, extents)
    return np.asarray(isolated & (captured > 0) & (inner == 0) & _complete(known, extents))


def _added_to(known: GraphEvidence, extents: _Extents) -> Flags:
    """Which windows have graphs to which nodes may have been added by hand, outside of every graph capture."""
    recording, axis, windows = known.recording, known.axis, known.captures.windows
    adds = np.flatnonzero(launches_named(recording, _ADDS))
    outside = windows.at(axis.launch_start[adds], axis.launch_end[adds]) < 0
    adds = np.union1d(adds[outside], np.flatnonzero(launches_named(recording, _CAPTURES_INTO)))
    process = recording.threads.process[recording.launches.thread[adds]]
    last_ns = maxima(process, recording.launches.start_ns[adds], recording.threads.process_pid.size)
    return np.asarray(last_ns[extents.process] >= extents.begin_ns)


def _joined(known: GraphEvidence, extents: _Extents, within: Rows) -> Flags:
    """Which windows may have captured launches of another thread; ``within`` is the window of every submission."""
    submissions, launches = known.captures.submissions, known.recording.launches
    joining = np.flatnonzero(submissions.without_work & (within < 0))
    process = submissions.process[joining]
    start, end = launches.start_ns[submissions.row[joining]], launches.end_ns[submissions.row[joining]]
    joined = np.zeros(extents.process.size, dtype=bool)
    for owner in np.unique(extents.process).tolist():
        own = extents.process == owner
        begun = np.searchsorted(np.sort(start[process == owner]), extents.end_ns[own])
        ended = np.searchsorted(np.sort(end[process == owner]), extents.begin_ns[own], side="right")
        joined[own] = begun > ended
    return joined


def _complete(known: GraphEvidence, extents: _Extents) -> Flags:
    """Which windows lack no launch, as far as the ids of calls show.

    Most versions of nsys record only some kinds of calls, so gaps in the ids show nothing. If a process has more
    calls than gaps, every kind is recorded, and a gap is a call that was lost.
    """
    launches = known.recording.launches
    process = known.recording.threads.process[launches.thread]
    first, last = launches.correlation_id[extents.begin], launches.correlation_id[extents.end]
    complete = np.zeros(first.size, dtype=bool)
    for owner in np.unique(extents.process).tolist():
        recorded = np.unique(launches.correlation_id[process == owner])
        only_some = recorded.size < _MANY or 2 * recorded.size < recorded[-1] - recorded[0]
        without_gap = np.searchsorted(recorded, last) - np.searchsorted(recorded, first) == last - first
        complete |= (extents.process == owner) & (without_gap | only_some)
    return complete


#: A graph of a process: its row and the id of the graph.
_Graph = tuple[int, int]


def _source_of(sources: dict[_Graph, set[int]], process: int, graph: int) -> int:
    """The graph that an instance or a clone was made of, through clones; -1 where several records differ.

    An instance is itself a graph, created outside of graph captures.
    """
    seen = set()
    while graph not in seen:
        seen.add(graph)
        made_of = sources.get((process, graph), set()) - {graph}
        if not made_of:
            return graph
        if len(made_of) > 1:
            break
        (graph,) = made_of
    return -1


def _graph_records(known: GraphEvidence) -> tuple[dict[_Graph, int], dict[_Graph, set[int]]]:
    """The window that begins with the call which created each graph, where both are certain.

    Also, for each instance or clone, the graphs that it was made of.
    """
    graphs, windows = known.recording.graphs, known.captures.windows
    window = windows.at(known.axis.graph_at, known.axis.graph_at)
    at_its_begin = (graphs.start_ns != NO_TIME) & (known.axis.graph_at <= np.append(windows.opened, 0)[window])
    made_in: defaultdict[_Graph, set[int]] = defaultdict(set)
    sources: defaultdict[_Graph, set[int]] = defaultdict(set)
    process = known.recording.threads.process[graphs.thread]
    columns = process, np.where(at_its_begin, window, -1), graphs.event
    ids = graphs.graph_id, graphs.original_graph_id, graphs.exec_id
    for owner, within, event, graph, original, instance in zip(
        *(column.tolist() for column in (*columns, *ids)), strict=True
    ):
        if event == GRAPH_CREATED:
            made_in[owner, graph].add(within)
        elif event == GRAPH_INSTANTIATED:
            sources[owner, instance].add(graph)
        elif event == GRAPH_CLONED:
            sources[owner, graph].add(original)
    makers = {graph: min(within) for graph, within in made_in.items() if len(within) == 1}
    times = np.bincount([within for within in makers.values() if within >= 0], minlength=windows.begin.size)
    return {graph: row for graph, row in makers.items() if row >= 0 and times[row] == 1}, dict(sources)

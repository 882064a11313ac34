"""Where the nodes of a CUDA graph were captured, by their order: nodes are the launches of the graph capture in turn.

For graphs whose nodes were not recorded while they were captured. The method holds only where it is certain which graph
capture made the graph, where nodes and launches agree in number and, one by one, in kind, and where no replay ran nodes
of one stream in another order. The graph capture is certain if

* some of the graph's nodes are known to come from its launches, or else
* the report records which graph it made, or else
* the graph's nodes were recorded after it had ended, and no other graph capture can claim them, or else
* the report has every CUDA call of the process and no record of its graphs, and graph captures and graphs are equal in
  number and pair up in one way only.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tracekit.arrays.groups import agreed, minima
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.graphs.api_calls import kinds_of, launches_named
from tracekit.graphs.captures import (
    CapturedLaunches,
    GraphCaptures,
    GraphEvidence,
    GraphRecords,
    Origins,
    captured_launches,
    completely_recorded,
    graph_records_of,
)
from tracekit.graphs.nodes import CloneChains
from tracekit.recording.tables import NO_TIME, Recording

#: Stands for the graph of an instance with some nodes that have their place.
_WITH_PLACES = -1
#: Newer ids of nodes carry the graph or its instance above this bit.
_GRAPH_BIT = 32
#: Instances that share nodes are one; no program chains more than this many.
_MOST_ROUNDS = 32
#: API calls by which a program builds a graph itself.
_BUILDS = ("cudaGraphCreate", "cuGraphCreate", "cudaGraphAdd", "cuGraphAdd")
#: API calls that make nodes which were not captured: clones, and those of an instance itself.
_CLONES = ("cudaGraphInstantiate", "cuGraphInstantiate", "cudaGraphClone", "cuGraphClone")
#: The window of a graph capture whose begin or end is not known.
_UNKNOWN = -1
#: A thread on which more graph captures than these wait for their nodes is given up.
_MOST_CLAIMS = 1024


class _Instance(NamedTuple):
    """An instance of a graph as replays show it: nodes that are launched together, in the order of their graph capture.

    That order is certain (``in_order``) if ids give it, and no replay contradicts it. ``graph`` is -1 without an id.
    """

    process: int
    nodes: Rows
    kinds: bytes
    graph: int
    first_ns: int
    in_order: bool


Pair = tuple[_Instance, CapturedLaunches]


def match_by_order(known: GraphEvidence, launch: Rows) -> Origins:
    """The places where nodes were captured, with those that follow from the order of launches."""
    origins = known.origins
    pending = known.chains.replayed & ~origins.known
    if not pending.any() or not known.captures.windows.isolated.any():
        return origins
    start, end, by_order = origins.start.copy(), origins.end.copy(), origins.by_order.copy()
    for instance, capture in _pairs(known, _instances(known.recording, known.chains, launch)):
        rest = ~origins.known[instance.nodes]
        nodes = instance.nodes[rest]
        start[nodes], end[nodes], by_order[nodes] = capture.start[rest], capture.end[rest], True
    return Origins(start, end, by_order, origins.shared)


def _pairs(known: GraphEvidence, replayed: list[_Instance]) -> list[Pair]:
    captures = list(captured_launches(known))
    records = graph_records_of(known)
    late = match_late_node_records(known, records)
    windows = [_window_of(known, records, late, instance) for instance in replayed]
    graphs = _graphs_by_window(known, records, replayed, windows)
    by_window = {capture.window: capture for capture in captures}
    pairs = [
        (instance, capture)
        for instance, window in zip(replayed, windows, strict=True)
        if (capture := by_window.get(window)) is not None
        and len(graphs[window] - {_WITH_PLACES}) <= 1  # a graph capture makes one graph
        and _agree(instance, capture)
        and _keeps_places(known.origins, instance, capture)
    ]
    unrecorded = [instance for instance in replayed if instance.process not in records.processes]
    return pairs + _only_pairs(known, captures, unrecorded)


def _agree(instance: _Instance, capture: CapturedLaunches) -> bool:
    """Whether an instance may come from a graph capture: same process, same work in the same order, replayed later."""
    return (
        instance.in_order
        and instance.process == capture.process
        and instance.kinds == capture.kinds
        and instance.first_ns >= capture.end_ns
    )


def _keeps_places(origins: Origins, instance: _Instance, capture: CapturedLaunches) -> bool:
    start = origins.start[instance.nodes]
    return bool(((start == capture.start) | ~origins.known[instance.nodes]).all())


def _window_of(known: GraphEvidence, records: GraphRecords, late: Rows, instance: _Instance) -> int:
    """The window of the graph capture that made an instance's graph; -1 where records do not show it, or disagree."""
    origins = known.origins
    nodes = instance.nodes[origins.known[instance.nodes]]
    if nodes.size:
        return _same(known.captures.windows.at(origins.start[nodes], origins.end[nodes]))
    source = records.source_of(instance.process, instance.graph)
    windows = records.windows.get((instance.process, source), set())
    # An instance itself is always created outside of graph captures, which proves nothing.
    if windows - {-1} or (windows and source != instance.graph):
        return _same(np.array(list(windows)))
    return _same(late[instance.nodes])


def _same(windows: Rows) -> int:
    return int(windows[0]) if windows.size and (windows == windows[0]).all() else -1


def _graphs_by_window(
    known: GraphEvidence, records: GraphRecords, replayed: list[_Instance], windows: list[int]
) -> dict[int, set[int]]:
    graphs: dict[int, set[int]] = defaultdict(set)
    for instance, window in zip(replayed, windows, strict=True):
        original = int(known.chains.original[instance.nodes].min())
        if known.origins.known[instance.nodes].any():
            graphs[window].add(_WITH_PLACES)
        else:
            source = records.source_of(instance.process, instance.graph)
            graphs[window].add(original if original >= 0 else source)
    return graphs


def _only_pairs(known: GraphEvidence, captures: list[CapturedLaunches], instances: list[_Instance]) -> list[Pair]:
    """Instances with their graph captures, in processes without records of graphs where they pair up in one way only.

    Else an equal order of kinds proves nothing: the instance may come from a graph made before the recording, and the
    graph capture may never be replayed. A report that holds every CUDA call of a process, and as many graph captures as
    instances, rules that out.
    """
    recording, threads = known.recording, known.recording.threads
    building = threads.process[recording.launches.thread[launches_named(recording, _BUILDS)]]
    edges = Counter(threads.process[known.captures.edges.thread].tolist())
    pairs: list[Pair] = []
    for process in (recording.from_the_start - {*building.tolist()}) & {one.process for one in instances}:
        made = [capture for capture in captures if capture.process == process]
        replayed = [instance for instance in instances if instance.process == process]
        # Two calls delimit each graph capture.
        if edges[process] == 2 * len(made):
            pairs += _one_to_one(replayed, made)
    return pairs


def _one_to_one(instances: list[_Instance], captures: list[CapturedLaunches]) -> list[Pair]:
    """Each instance with the graph capture of its kinds of work; nothing unless each occurs once on both sides."""
    by_kinds = {capture.kinds: capture for capture in captures}
    kinds = {instance.kinds for instance in instances}
    if not len(captures) == len(instances) == len(by_kinds) or kinds != by_kinds.keys():
        return []
    pairs = [(instance, by_kinds[instance.kinds]) for instance in instances]
    return pairs if all(_agree(*pair) for pair in pairs) else []


class _Replays(NamedTuple):
    """Replayed work whose launch is known."""

    work: Rows
    node: Rows
    launch: Rows


def _instances(recording: Recording, chains: CloneChains, launch: Rows) -> list[_Instance]:
    work = np.flatnonzero((chains.of_work >= 0) & (launch >= 0))
    replays = _Replays(work, chains.of_work[work], launch[work])
    node, nodes = replays.node, chains.root.size
    kind, graph = (agreed(node, of[work], nodes) for of in (recording.work.kind, recording.work.graph_id))
    first_ns = minima(node, recording.work.start_ns[work], nodes)
    groups, place = _in_capture_order(chains, _launched_together(replays, nodes), kind)
    uncertain = place < 0
    uncertain[node[_out_of_order(recording, replays, place)]] = True
    return [
        _Instance(
            process=int(chains.process[own[0]]),
            nodes=own,
            kinds=kind[own].astype(np.int8).tobytes(),
            graph=_graph(chains.node_id[own], graph[own]),
            first_ns=int(first_ns[own].min()),
            in_order=not uncertain[own].any(),
        )
        for own in groups
    ]


def _launched_together(replays: _Replays, nodes: int) -> list[Rows]:
    label = np.arange(nodes)
    of_launch = np.full(int(replays.launch.max(initial=-1)) + 1, nodes)
    for _ in range(_MOST_ROUNDS):
        before = label.copy()
        np.minimum.at(of_launch, replays.launch, label[replays.node])
        np.minimum.at(label, replays.node, of_launch[replays.launch])
        if np.array_equal(before, label):
            break
    else:
        return []
    replayed = np.unique(replays.node)
    replayed = replayed[np.argsort(label[replayed], kind="stable")]
    groups = np.split(replayed, np.flatnonzero(np.diff(label[replayed])) + 1)
    return [group for group in groups if group.size]


def _in_capture_order(chains: CloneChains, groups: list[Rows], kind: Ints) -> tuple[list[Rows], Ints]:
    """The groups, each in the order of its graph capture where ids give one; and every node's place there, or -1.

    A group with an unknown kind of work has no places.
    """
    place = np.full(chains.root.size, -1, dtype=np.int64)
    ordered = []
    for nodes in groups:
        order = _by_id(chains, nodes)
        if order is not None and (kind[order] >= 0).all():
            place[order] = np.arange(order.size)
        ordered.append(nodes if order is None else order)
    return ordered, place


def _by_id(chains: CloneChains, nodes: Rows) -> Rows | None:
    """Nodes by the ids of their originals where these are known, else by their own; None if ids give no order."""
    root = chains.original[nodes]
    ids = chains.node_id[root if (root >= 0).all() else nodes]
    if np.unique(ids).size < ids.size or np.unique(ids >> _GRAPH_BIT).size > 1:
        return None
    return nodes[np.argsort(ids)]


def _out_of_order(recording: Recording, replays: _Replays, place: Ints) -> Rows:
    """Positions of replayed work that ran after later nodes of the same replay on the same stream.

    A stream runs its work in the order of the graph capture, and ids rise in that order: one of both does not hold
    there.
    """
    start, *stream = (
        column[replays.work]
        for column in (recording.work.start_ns, recording.work.stream, recording.work.context, recording.work.device)
    )
    place = place[replays.node]
    order = np.lexsort((place, start, *stream, replays.launch))
    order = order[(recording.work.stream != -1)[replays.work[order]]]
    same = np.ones(max(order.size - 1, 0), dtype=bool)
    for key in (replays.launch, *stream):
        same &= key[order[1:]] == key[order[:-1]]
    return np.asarray(order[1:][same & (place[order[1:]] < place[order[:-1]])])


def _graph(node_id: Ints, graph: Ints) -> int:
    named = {*(node_id >> _GRAPH_BIT).tolist(), *graph.tolist()} - {0, -1}
    return named.pop() if len(named) == 1 else -1


class _Size(NamedTuple):
    """How many launches of a graph capture become work, and how many other calls may become nodes."""

    launches: int
    others: int


def _settled(known: GraphEvidence, sizes: dict[int, _Size]) -> set[int]:
    """Windows that made no nodes, or only nodes that are accounted for before late records are looked at."""
    windows, origins = known.captures.windows, known.origins
    with_nodes = windows.at(origins.start[origins.known], origins.end[origins.known])
    without_launches = np.array([window for window, size in sizes.items() if not any(size)], dtype=np.int64)
    empty = without_launches[completely_recorded(known.recording, known.axis, windows, without_launches)]
    return {*with_nodes.tolist(), *empty.tolist()} - {-1}


def _sizes(known: GraphEvidence) -> dict[int, _Size]:
    windows, submissions = known.captures.windows, known.captures.submissions
    kind = kinds_of(submissions.role)
    bounds = windows.opened, windows.closed
    launches, others = (
        np.diff(np.searchsorted(submissions.start[known.captures.captured & of_kind], bounds), axis=0)[0]
        for of_kind in (kind >= 0, kind < 0)
    )
    return {row: _Size(int(launches[row]), int(others[row])) for row in np.flatnonzero(windows.isolated).tolist()}


class _LateGraph(NamedTuple):
    """The nodes of one graph that were recorded after the end of its graph capture.

    Its number is 0 if ids of nodes carry none. ``edge`` is the last call that ended a graph capture before any node was
    recorded; they are ``together`` if that is so for all of them.
    """

    number: int
    nodes: Rows
    edge: int
    together: bool


def match_late_node_records(known: GraphEvidence, records: GraphRecords) -> Rows:
    """The graph capture that is certain to have made the original of each node, where that was recorded late, or -1.

    A record of a node shows which thread wrote it and when, not to which graph capture it belongs. All graph captures
    of the thread that have ended, and whose nodes are not accounted for yet, can claim it. Graphs are numbered in the
    order in which their graph captures began, and ids of nodes carry the graph's number: where as many graphs were
    recorded as there are graph captures to claim them, the first belongs to the first, and so on, if each has as many
    nodes as its graph capture has launches. Where ids carry no number, nodes belong to a graph capture only if no other
    can claim them. If fewer graphs were recorded than graph captures, records are lost or yet to come, and neither
    these nor later nodes are certain; if more, some graphs were captured before the recording.
    """
    chains, sizes = known.chains, _sizes(known)
    settled = _settled(known, sizes)
    window = np.full(chains.root.size + 1, -1, dtype=np.int64)
    by_edge: dict[int, list[_LateGraph]] = defaultdict(list)
    for graph in _late_graphs(known):
        makers = records.windows.get((int(chains.process[graph.nodes[0]]), graph.number), set())
        if len(makers) == 1:
            (window[graph.nodes],) = makers
            settled |= makers - {_UNKNOWN}
        else:
            by_edge[graph.edge].append(graph)
    for maker, graph in _claimed(known.captures, (sizes, settled), by_edge) if by_edge else ():
        window[graph.nodes] = maker
    return window[chains.original]


def _late_graphs(known: GraphEvidence) -> Iterator[_LateGraph]:
    """Groups late nodes into graphs; leaves out numbered graphs that also have clones, or nodes with a place."""
    chains, (node, edge) = known.chains, _late_nodes(known)
    number = (chains.node_id.astype(np.uint64) >> np.uint64(_GRAPH_BIT)).astype(np.int64)
    graph = chains.process.astype(np.int64) << _GRAPH_BIT | number
    elsewhere = (chains.cloned | known.origins.known) & (number > 0)
    only_late = ~np.isin(graph[node], graph[elsewhere])
    node, edge = node[only_late], edge[only_late]
    # Without a number, all that was recorded after one edge is one graph.
    part = np.where(number[node] > 0, 0, edge)
    order = np.lexsort((part, graph[node]))
    node, edge, part = node[order], edge[order], part[order]
    fresh = (np.diff(graph[node]) != 0) | (np.diff(part) != 0)
    bounds = np.flatnonzero(fresh) + 1
    for nodes, edges in zip(np.split(node, bounds), np.split(edge, bounds), strict=True):
        if nodes.size:
            together = bool((edges == edges[0]).all())
            yield _LateGraph(int(number[nodes[0]]), np.unique(nodes), int(edges.max()), together)


def _late_nodes(known: GraphEvidence) -> tuple[Rows, Rows]:
    """Nodes that were recorded after the end of a graph capture and before the next edge of one; and that end."""
    records, at = known.recording.graph_nodes, known.axis.node_at
    edges, chains = known.captures.edges, known.chains
    edge = np.searchsorted(edges.start, at, side="right") - 1
    late = (edge >= 0) & (records.start_ns != NO_TIME) & ~chains.cloned[chains.of_record]
    late &= edges.thread[edge] == records.thread if edge.size else late
    late[late] = ~edges.begins[edge[late]]
    late &= ~_during_clones(known, at)
    rows = np.flatnonzero(late)
    return chains.of_record[rows], edge[rows]


def _during_clones(known: GraphEvidence, at: Ints) -> Flags:
    cloning, axis = launches_named(known.recording, _CLONES), known.axis
    call = np.searchsorted(axis.launch_start[cloning], at, side="right") - 1
    reach = np.maximum.accumulate(axis.launch_end[cloning])
    return np.asarray((call >= 0) & (np.append(reach, at.max(initial=0))[call] >= at))


def _claimed(
    captures: GraphCaptures, accounts: tuple[dict[int, _Size], set[int]], by_edge: dict[int, list[_LateGraph]]
) -> Iterator[tuple[int, _LateGraph]]:
    edges, windows, (sizes, settled) = captures.edges, captures.windows, accounts
    window = np.full(edges.start.size, _UNKNOWN, dtype=np.int64)
    window[np.searchsorted(edges.start, windows.begin)] = np.arange(windows.begin.size)
    window[np.searchsorted(edges.start, windows.closed)] = np.arange(windows.begin.size)
    claiming: list[int] = []
    graphs: list[_LateGraph] = []
    last_thread = -1
    for edge, columns in enumerate(zip(edges.begins.tolist(), edges.thread.tolist(), window.tolist(), strict=True)):
        begins, thread, row = columns
        if thread != last_thread:
            claiming, graphs, last_thread = [], [], thread
        if len(claiming) > _MOST_CLAIMS:
            continue
        if (begins or row == _UNKNOWN) and row not in settled:
            claiming.append(row)
        if edge in by_edge:
            graphs = sorted([*graphs, *by_edge[edge]], key=lambda graph: graph.number)
            if len(claiming) == len(graphs) and _fit(sizes, claiming, graphs):
                yield from zip(claiming, graphs, strict=True)
            if _accounted_for(sizes, claiming, graphs):
                claiming, graphs = [], []


def _fit(sizes: dict[int, _Size], claiming: list[int], graphs: list[_LateGraph]) -> bool:
    """Whether every graph has as many nodes as its graph capture has launches.

    A single graph may have more nodes, which do no work, but not as many more as another graph capture of that size
    would add.
    """
    single = len(graphs) == 1
    for window, graph in zip(claiming, graphs, strict=True):
        size = sizes.get(window)
        if size is None or not graph.together or not (single or graph.number):
            return False
        most = size.launches + size.others + (size.launches - 1 if single else 0)
        if not size.launches <= graph.nodes.size <= most:
            return False
    return True


def _accounted_for(sizes: dict[int, _Size], claiming: list[int], graphs: list[_LateGraph]) -> bool:
    if all(graph.number for graph in graphs):
        return len(graphs) >= len(claiming)
    launches = [sizes[window].launches if window in sizes else None for window in claiming]
    nodes = sum(graph.nodes.size for graph in graphs)
    return len(claiming) <= 1 or (None not in launches and nodes >= sum(filter(None, launches)))

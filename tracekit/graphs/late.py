"""Which graph capture made the nodes that were recorded after it had ended, at once or together with those of others.

A record of a node says which thread wrote it and when, not to which graph capture it belongs. All graph captures of the
thread that have ended, and whose nodes are not accounted for yet, can claim it. Graphs are numbered in the order in
which their graph captures began, and ids of nodes carry the graph's number: where as many graphs were recorded as there
are graph captures to claim them, the first belongs to the first, and so on, if each has as many nodes as its graph
capture has launches. Where ids carry no number, nodes belong to a graph capture only if no other can claim them. If
fewer graphs were recorded than graph captures, records are lost or yet to come, and neither these nor later nodes are
certain; if more, some graphs were captured before the recording.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.columns import integers
from tracekit.recording.tables import names_starting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.graphs.graph_captures import GraphCaptures
    from tracekit.graphs.nodes import Lineage
    from tracekit.graphs.origins import GraphEvidence
    from tracekit.recording.axis import ThreadAxis
    from tracekit.recording.tables import Recording

#: API calls that make nodes which were not captured: copies, and those of an instance itself.
_COPIES = ("cudaGraphInstantiate", "cuGraphInstantiate", "cudaGraphClone", "cuGraphClone")
_GRAPH_BIT = np.uint64(32)  # of unsigned ids
#: The window of a graph capture whose begin or end is not known.
_UNKNOWN = -1
#: A thread on which more graph captures than these wait for their nodes is given up.
_MOST_CLAIMS = 1024


class Size(NamedTuple):
    """How many launches of a graph capture become work, and how many other calls may become nodes."""

    launches: int
    others: int


class Accounts(NamedTuple):
    """What is known about graph captures and graphs before late records are looked at.

    Attributes:
        sizes: By window, the sizes of graph captures whose launches are known.
        settled: Windows that made no nodes, or only nodes that are accounted for.
        windows: By (process, number), the graph capture that made a graph, where that is recorded; -1 if none did.
    """

    sizes: dict[int, Size]
    settled: set[int]
    windows: dict[tuple[int, int], int]


class _LateNodes(NamedTuple):
    """Records of nodes that are no copies, written after the end of a graph capture and before the next edge of one.

    Attributes:
        node: Row of the lineage's nodes.
        edge: Row of the edges: the call that ended the graph capture before the record.
    """

    node: Rows
    edge: Rows


class _LateGraph(NamedTuple):
    """The nodes of one graph that were recorded late.

    Attributes:
        number: Number of the graph; 0 if ids of nodes carry none.
        nodes: Rows of the lineage's nodes.
        edge: The last call that ended a graph capture before any of them was recorded.
        together: Whether all of them were recorded after the same such call.
    """

    number: int
    nodes: Rows
    edge: int
    together: bool


def recorded_late(known: GraphEvidence, accounts: Accounts) -> Rows:
    """The graph capture that is certain to have made the original of each node, where that was recorded late.

    Args:
        known: What is known about the recording's graphs.
        accounts: What is known about graph captures and graphs.

    Returns:
        For every node a row of windows; -1 where that is not certain.
    """
    lineage, captures = known.lineage, known.captures
    window = np.full(lineage.root.size + 1, -1, dtype=np.int64)
    by_edge: dict[int, list[_LateGraph]] = defaultdict(list)
    late = _late_nodes(known.recording, known.axis, lineage, captures)
    for graph in _late_graphs(lineage, late, known.origins.known):
        maker = accounts.windows.get((int(lineage.process[graph.nodes[0]]), graph.number))
        if maker is None:
            by_edge[graph.edge].append(graph)
        else:
            window[graph.nodes] = maker
            accounts.settled.update({maker} - {_UNKNOWN})
    if by_edge:
        for maker, graph in _assigned(captures, accounts, by_edge):
            window[graph.nodes] = maker
    return window[lineage.original]


def _late_nodes(recording: Recording, axis: ThreadAxis, lineage: Lineage, captures: GraphCaptures) -> _LateNodes:
    records, at, edges = recording.graph_nodes, axis.node_at, captures.edges
    timed = np.asarray(records.column("start_ns").is_valid())
    edge = np.searchsorted(edges.start, at, side="right") - 1
    late = (edge >= 0) & timed & ~lineage.copied[lineage.of_record]
    late &= edges.thread[edge] == integers(records, "thread") if edge.size else late
    late[late] = ~edges.begins[edge[late]]
    late &= ~_during_copies(recording, axis, at)
    rows = np.flatnonzero(late)
    return _LateNodes(lineage.of_record[rows], edge[rows])


def _during_copies(recording: Recording, axis: ThreadAxis, at: Ints) -> Flags:
    """Which times lie in a call that makes copies of nodes."""
    names = np.asarray(names_starting(recording.names, _COPIES), dtype=np.int64)
    copying = np.isin(integers(recording.launches, "name"), names)
    call = np.searchsorted(axis.launch_start[copying], at, side="right") - 1
    reach = np.maximum.accumulate(axis.launch_end[copying])
    return np.asarray((call >= 0) & (np.append(reach, at.max(initial=0))[call] >= at))


def _late_graphs(lineage: Lineage, late: _LateNodes, placed: Flags) -> Iterator[_LateGraph]:
    """Groups late nodes into graphs; leaves out numbered graphs that also have copies, or nodes with a place."""
    number = (lineage.node_id.astype(np.uint64) >> _GRAPH_BIT).astype(np.int64)
    graph = lineage.process.astype(np.int64) << int(_GRAPH_BIT) | number
    elsewhere = (lineage.copied | placed) & (number > 0)
    only_late = ~np.isin(graph[late.node], graph[elsewhere])
    node, edge = late.node[only_late], late.edge[only_late]
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


def _assigned(
    captures: GraphCaptures, accounts: Accounts, by_edge: dict[int, list[_LateGraph]]
) -> Iterator[tuple[int, _LateGraph]]:
    """Windows with the graphs that they certainly made, edge by edge on each thread."""
    window = _windows_of_edges(captures)
    claiming: list[int] = []
    graphs: list[_LateGraph] = []
    last_thread = -1
    for edge, (begins, thread) in enumerate(
        zip(captures.edges.begins.tolist(), captures.edges.thread.tolist(), strict=True)
    ):
        if thread != last_thread:
            claiming, graphs, last_thread = [], [], thread
        if len(claiming) > _MOST_CLAIMS:
            continue
        if (begins or window[edge] == _UNKNOWN) and window[edge] not in accounts.settled:
            claiming.append(window[edge])
        if edge in by_edge:
            graphs = sorted([*graphs, *by_edge[edge]], key=lambda graph: graph.number)
            if len(claiming) == len(graphs) and _fit(accounts.sizes, claiming, graphs):
                yield from zip(claiming, graphs, strict=True)
            if _accounted_for(accounts.sizes, claiming, graphs):
                claiming, graphs = [], []


def _windows_of_edges(captures: GraphCaptures) -> list[int]:
    """The window to which every edge belongs."""
    edges, windows = captures.edges.start, captures.windows
    window = np.full(edges.size, _UNKNOWN, dtype=np.int64)
    window[np.searchsorted(edges, windows.begin)] = np.arange(windows.begin.size)
    window[np.searchsorted(edges, windows.closed)] = np.arange(windows.begin.size)
    return [*map(int, window)]


def _fit(sizes: dict[int, Size], claiming: list[int], graphs: list[_LateGraph]) -> bool:
    """Whether every graph has as many nodes as its graph capture has launches.

    A graph alone may have more nodes, which do no work, but not as many more as another graph capture of that size
    would add.
    """
    alone = len(graphs) == 1
    for window, graph in zip(claiming, graphs, strict=True):
        size = sizes.get(window)
        if size is None or not graph.together or not (alone or graph.number):
            return False
        most = size.launches + size.others + (size.launches - 1 if alone else 0)
        if not size.launches <= graph.nodes.size <= most:
            return False
    return True


def _accounted_for(sizes: dict[int, Size], claiming: list[int], graphs: list[_LateGraph]) -> bool:
    """Whether no graph capture is left that could claim what is recorded later."""
    if all(graph.number for graph in graphs):
        return len(graphs) >= len(claiming)
    launches = [sizes[window].launches if window in sizes else None for window in claiming]
    nodes = sum(graph.nodes.size for graph in graphs)
    return len(claiming) <= 1 or (None not in launches and nodes >= sum(filter(None, launches)))

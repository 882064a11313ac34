"""Instances of CUDA graphs, as replays show them: the nodes that one launch runs are one instance's."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.columns import integers

if TYPE_CHECKING:
    from tracekit.arrays.types import Ints, Rows
    from tracekit.graphs.nodes import Lineage
    from tracekit.recording.tables import Recording

#: Newer ids of nodes carry the graph or its instance above this bit.
_GRAPH_BIT = 32
#: Instances that share nodes are one; a chain of more than this is no program's.
_MOST_ROUNDS = 32


class Instance(NamedTuple):
    """The nodes that are launched together.

    Attributes:
        process: Row of processes.
        nodes: Rows of the lineage's nodes, in the order in which the capture made them.
        kinds: Kind of work of each one, as bytes.
        graph: Id of the graph or instance, where the report says it.
        first_ns: When the first of them ran first.
        in_order: Whether they have an order that is certain, which no replay contradicts.
    """

    process: int
    nodes: Rows
    kinds: bytes
    graph: int | None
    first_ns: int
    in_order: bool


def instances(recording: Recording, lineage: Lineage, launch: Rows) -> list[Instance]:
    """The instances that were replayed.

    Args:
        recording: The recording.
        lineage: Its graphs' nodes.
        launch: Row of the launch of every piece of work, or -1.
    """
    rows = np.flatnonzero((lineage.of_work >= 0) & (launch >= 0))
    node = lineage.of_work[rows]
    label = _together(node, launch[rows], lineage.root.size)
    if label is None:
        return []
    kind = _of_node(integers(recording.work, "kind")[rows], node, lineage.root.size)
    graph = _of_node(integers(recording.work, "graph_id")[rows], node, lineage.root.size)
    first = np.full(lineage.root.size, np.iinfo(np.int64).max)
    np.minimum.at(first, node, integers(recording.work, "start_ns")[rows])
    known = np.unique(node)
    known = known[np.argsort(label[known], kind="stable")]
    edges = np.flatnonzero(np.diff(label[known])) + 1
    place = np.full(lineage.root.size, -1, dtype=np.int64)
    ordered = []
    for nodes in np.split(known, edges) if known.size else []:
        order = _in_order(lineage, nodes)
        if order is not None and (kind[order] >= 0).all():
            place[order] = np.arange(order.size)
        ordered.append(nodes if order is None else order)
    crossed = place < 0
    crossed[node[_crossed(recording, rows, launch[rows], place[node])]] = True
    return [
        Instance(
            int(lineage.process[nodes[0]]),
            nodes,
            kind[nodes].astype(np.int8).tobytes(),
            _graph(lineage.node_id[nodes], graph[nodes]),
            int(first[nodes].min()),
            not crossed[nodes].any(),
        )
        for nodes in ordered
    ]


def _crossed(recording: Recording, rows: Rows, launch: Rows, place: Ints) -> Rows:
    """Of some replayed work that which ran after later nodes of the same replay on the same stream, as positions.

    A stream runs what it is given in order, and ids rise as nodes are captured: one of both is not so.
    """
    start, *stream = (integers(recording.work, name)[rows] for name in ("start_ns", "stream", "context", "device"))
    order = np.lexsort((place, start, *stream, launch))
    order = order[np.asarray(recording.work.column("stream").is_valid())[rows[order]]]
    same = np.ones(max(order.size - 1, 0), dtype=bool)
    for key in (launch, *stream):
        same &= key[order[1:]] == key[order[:-1]]
    crossed: Rows = order[1:][same & (place[order[1:]] < place[order[:-1]])]
    return crossed


def _together(node: Rows, launch: Rows, nodes: int) -> Rows | None:
    """A label for every node, the same for those that were ever launched together; None if that takes too long."""
    label = np.arange(nodes)
    of_launch = np.full(int(launch.max(initial=-1)) + 1, nodes)
    for _ in range(_MOST_ROUNDS):
        before = label.copy()
        np.minimum.at(of_launch, launch, label[node])
        np.minimum.at(label, node, of_launch[launch])
        if np.array_equal(before, label):
            return label
    return None


def _of_node(values: Ints, node: Rows, nodes: int) -> Ints:
    """The value that all work of a node has, or -1."""
    lowest, highest = np.full(nodes, np.iinfo(np.int64).max), np.full(nodes, -1, dtype=np.int64)
    np.minimum.at(lowest, node, values)
    np.maximum.at(highest, node, values)
    return np.where(lowest == highest, highest, -1)


def _in_order(lineage: Lineage, nodes: Rows) -> Rows | None:
    """Nodes in the order of their originals where these are known, else in their own; None if that is none."""
    root = lineage.original[nodes]
    by = lineage.node_id[root if (root >= 0).all() else nodes]
    if np.unique(by).size < by.size or np.unique(by >> _GRAPH_BIT).size > 1:
        return None
    return nodes[np.argsort(by)]


def _graph(node_id: Ints, graph: Ints) -> int | None:
    """The graph that ids of nodes or their work name; None if they name none, or several."""
    named = {*(node_id >> _GRAPH_BIT).tolist(), *graph.tolist()} - {0, -1}
    return named.pop() if len(named) == 1 else None

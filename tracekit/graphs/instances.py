"""Instances of CUDA graphs, as replays show them: the nodes that one launch runs belong to one instance."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.columns import integers
from tracekit.arrays.groups import agreed, minima

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.graphs.nodes import Lineage
    from tracekit.recording.tables import Recording

#: Newer ids of nodes carry the graph or its instance above this bit.
_GRAPH_BIT = 32
#: Instances that share nodes are one; no program chains more than this many.
_MOST_ROUNDS = 32


class Instance(NamedTuple):
    """Nodes that are launched together.

    Attributes:
        process: Row of processes.
        nodes: Rows of the lineage's nodes, in the order of their graph capture.
        kinds: Kind of work of each node, as bytes.
        graph: Id of the graph or instance, where the report has it.
        first_ns: When any of them ran first.
        in_order: Whether that order is certain: ids give it, and no replay contradicts it.
    """

    process: int
    nodes: Rows
    kinds: bytes
    graph: int | None
    first_ns: int
    in_order: bool


class _Replays(NamedTuple):
    """Replayed work whose launch is known.

    Attributes:
        work: Row of the recording's work.
        node: Row of the lineage's nodes.
        launch: Row of launches.
    """

    work: Rows
    node: Rows
    launch: Rows


class _NodeFacts(NamedTuple):
    """What its replays say of every node of the lineage.

    Attributes:
        kind: Kind of its work; -1 if there is none, or several.
        graph: Id of its graph; -1 if there is none, or several.
        first_ns: When it ran first.
    """

    kind: Ints
    graph: Ints
    first_ns: Ints


def instances(recording: Recording, lineage: Lineage, launch: Rows) -> list[Instance]:
    """The instances that were replayed.

    Args:
        recording: The recording.
        lineage: The nodes of its graphs.
        launch: Row of the launch of every piece of work, or -1.
    """
    work = np.flatnonzero((lineage.of_work >= 0) & (launch >= 0))
    replays = _Replays(work, lineage.of_work[work], launch[work])
    groups = _launched_together(replays, lineage.root.size)
    facts = _node_facts(recording, replays, lineage.root.size)
    groups, place = _in_capture_order(lineage, groups, facts.kind)
    uncertain = place < 0
    uncertain[replays.node[_out_of_order(recording, replays, place)]] = True
    return [_instance(lineage, nodes, facts, uncertain) for nodes in groups]


def _instance(lineage: Lineage, nodes: Rows, facts: _NodeFacts, uncertain: Flags) -> Instance:
    return Instance(
        process=int(lineage.process[nodes[0]]),
        nodes=nodes,
        kinds=facts.kind[nodes].astype(np.int8).tobytes(),
        graph=_graph(lineage.node_id[nodes], facts.graph[nodes]),
        first_ns=int(facts.first_ns[nodes].min()),
        in_order=not uncertain[nodes].any(),
    )


def _launched_together(replays: _Replays, nodes: int) -> list[Rows]:
    """Groups of nodes that were ever launched together; none if finding them takes too long."""
    label = _labels(replays, nodes)
    if label is None or not replays.node.size:
        return []
    replayed = np.unique(replays.node)
    replayed = replayed[np.argsort(label[replayed], kind="stable")]
    return np.split(replayed, np.flatnonzero(np.diff(label[replayed])) + 1)


def _labels(replays: _Replays, nodes: int) -> Rows | None:
    """A label for every node, the same for those that were ever launched together; None if that takes too long."""
    label = np.arange(nodes)
    of_launch = np.full(int(replays.launch.max(initial=-1)) + 1, nodes)
    for _ in range(_MOST_ROUNDS):
        before = label.copy()
        np.minimum.at(of_launch, replays.launch, label[replays.node])
        np.minimum.at(label, replays.node, of_launch[replays.launch])
        if np.array_equal(before, label):
            return label
    return None


def _node_facts(recording: Recording, replays: _Replays, nodes: int) -> _NodeFacts:
    kind, graph, start = (integers(recording.work, name)[replays.work] for name in ("kind", "graph_id", "start_ns"))
    node = replays.node
    return _NodeFacts(agreed(node, kind, nodes), agreed(node, graph, nodes), minima(node, start, nodes))


def _in_capture_order(lineage: Lineage, groups: list[Rows], kind: Ints) -> tuple[list[Rows], Ints]:
    """The groups, each in the order of its graph capture where ids give one; and every node's place there, or -1.

    Args:
        lineage: The nodes.
        groups: Rows of nodes.
        kind: Kind of work of every node; a group with an unknown one has no places.
    """
    place = np.full(lineage.root.size, -1, dtype=np.int64)
    ordered = []
    for nodes in groups:
        order = _by_id(lineage, nodes)
        if order is not None and (kind[order] >= 0).all():
            place[order] = np.arange(order.size)
        ordered.append(nodes if order is None else order)
    return ordered, place


def _by_id(lineage: Lineage, nodes: Rows) -> Rows | None:
    """Nodes by the ids of their originals where these are known, else by their own; None if ids give no order."""
    root = lineage.original[nodes]
    ids = lineage.node_id[root if (root >= 0).all() else nodes]
    if np.unique(ids).size < ids.size or np.unique(ids >> _GRAPH_BIT).size > 1:
        return None
    return nodes[np.argsort(ids)]


def _out_of_order(recording: Recording, replays: _Replays, place: Ints) -> Rows:
    """Positions of replayed work that ran after later nodes of the same replay on the same stream.

    A stream runs its work in the order of the graph capture, and ids rise in that order: one of both does not hold
    there.

    Args:
        recording: The recording.
        replays: The replayed work.
        place: Place of every node in its graph capture, or -1.
    """
    start, *stream = (
        integers(recording.work, name)[replays.work] for name in ("start_ns", "stream", "context", "device")
    )
    place = place[replays.node]
    order = np.lexsort((place, start, *stream, replays.launch))
    order = order[np.asarray(recording.work.column("stream").is_valid())[replays.work[order]]]
    same = np.ones(max(order.size - 1, 0), dtype=bool)
    for key in (replays.launch, *stream):
        same &= key[order[1:]] == key[order[:-1]]
    return np.asarray(order[1:][same & (place[order[1:]] < place[order[:-1]])])


def _graph(node_id: Ints, graph: Ints) -> int | None:
    """The graph that ids of nodes or their work name; None if they name none, or several."""
    named = {*(node_id >> _GRAPH_BIT).tolist(), *graph.tolist()} - {0, -1}
    return named.pop() if len(named) == 1 else None

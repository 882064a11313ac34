"""CUDA graphs: replays, as the two tracing modes of nsys record them; the place for captures.

A replay is one ``cudaGraphLaunch``. With ``--cuda-graph-trace=node`` each node leaves a piece of work that carries the
node's id and the launch's correlation id; with ``graph`` the whole graph is one piece. Graphs here were captured before
the recording began, as in serving (fact A of nsight-sqlite.md, "Markers of vLLM and SGLang"): no file says which call
a node belongs to, so its module is null with a cause, and never the range around the replay.

To add captures: let ``Thread`` record launches into an open ``Graph`` instead of on a device, set ``Node.captured_in``
to ``thread.open_range()`` as ``api`` does for launches, write the node rows in ``report.py`` (the table's name depends
on the generation: B6) and let ``truth.py`` climb from ``captured_in`` as it does from ``Launch.inside``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulator.events import Range
    from tests.simulator.threads import Thread


@dataclass(frozen=True, slots=True)
class Node:
    """A node of an executable graph. Its id is ``graph << 32 | index``, as seen since 2022."""

    id: int
    kind: str
    captured_in: Range | None = None


@dataclass(slots=True)
class Graph:
    """An executable graph."""

    id: int
    nodes: list[Node] = field(default_factory=list)


def captured_earlier(thread: Thread) -> Graph:
    """A graph whose capture no recording holds."""
    number = next(thread.process.graphs)
    kinds = ["kernel"] + [
        thread.rng.choice(("kernel", "memset", "memcpy")) for _ in range(thread.rng.randrange(4))
    ]
    return Graph(number, [Node(number << 32 | index, kind) for index, kind in enumerate(kinds)])


def replay_by_node(thread: Thread, graph: Graph) -> None:
    launch = thread.api("cudaGraphLaunch_v10000")
    for node in graph.nodes:
        work = thread.work(node.kind, launch)
        work.graph_id, work.graph_node = graph.id, node.id


def replay_as_a_whole(thread: Thread, graph: Graph) -> None:
    launch = thread.api("cudaGraphLaunch_v10000")
    thread.work("graph", launch).graph_id = graph.id

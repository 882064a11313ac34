"""Records of whole CUDA graphs: when each was created, and the graph that an instance or a clone was made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.columns import integers
from tracekit.recording.tables import GRAPH_CLONED, GRAPH_CREATED, GRAPH_INSTANTIATED

if TYPE_CHECKING:
    from tracekit.graphs.instances import Instance
    from tracekit.graphs.origins import GraphEvidence

#: No program clones clones of clones this often.
_MOST_CLONES = 64


class GraphRecords(NamedTuple):
    """The records of graphs, by graph.

    Attributes:
        windows: By (process, graph), the windows of graph captures during which it was created; -1 for outside.
        sources: By (process, instance or clone), the graphs that it was made of.
        processes: Rows of processes in which the making of any graph or node is recorded.
    """

    windows: dict[tuple[int, int], set[int]]
    sources: dict[tuple[int, int], set[int]]
    processes: set[int]

    def source(self, instance: Instance) -> int:
        """The graph that an instance was made of; -1 where records contradict each other."""
        return self.source_of(instance.process, -1 if instance.graph is None else instance.graph)

    def source_of(self, process: int, graph: int) -> int:
        """The graph that an instance or a clone was made of, through clones; -1 where several records differ.

        An instance is itself a graph, created outside of graph captures.
        """
        for _ in range(_MOST_CLONES):
            sources = self.sources.get((process, graph), set()) - {graph}
            if not sources:
                return graph
            if len(sources) > 1:
                break
            (graph,) = sources
        return -1

    def only_windows(self) -> dict[tuple[int, int], int]:
        """By (process, graph), the graph capture that made it, where one record alone says so; -1 for none."""
        return {graph: next(iter(windows)) for graph, windows in self.windows.items() if len(windows) == 1}


def graph_records_of(known: GraphEvidence) -> GraphRecords:
    """Reads the records of graphs."""
    graphs, threads = known.recording.graphs, known.recording.threads
    process = threads.process[integers(graphs, "thread")]
    with_nodes = threads.process[integers(known.recording.graph_nodes, "thread")]
    records = GraphRecords({}, {}, {*process.tolist(), *with_nodes.tolist()})
    at = known.axis.graph_at
    timed = np.asarray(graphs.column("start_ns").is_valid())
    window = np.where(timed, known.captures.windows.at(at, at), -1)
    columns = (integers(graphs, name) for name in ("event", "graph_id", "original_graph_id", "exec_id"))
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

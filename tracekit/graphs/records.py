"""The records of CUDA graphs: during which graph capture each was created, and what it was made of."""

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from tracekit.graphs.captures import GraphEvidence
from tracekit.recording.tables import GRAPH_CLONED, GRAPH_CREATED, GRAPH_INSTANTIATED, NO_TIME

#: A graph of a process: its row and the id of the graph.
_Graph = tuple[int, int]


class GraphRecords(NamedTuple):
    """The records of graphs.

    Attributes:
        window: The window that begins with the call which created each graph, where both are certain.
        sources: Of each instance or clone, the graphs that it was made of.
    """

    window: dict[_Graph, int]
    sources: dict[_Graph, set[int]]

    def window_of(self, process: int, graph: int, instance: int) -> int:
        """The window whose first call created the graph that an instance was made of; -1 if unknown or contradicted."""
        sources = {self._source_of(process, number) for number in (graph, instance) if number >= 0}
        # An instance that no record names is a source of its own.
        if (process, instance) not in self.sources and graph >= 0:
            sources.discard(instance)
        return self.window.get((process, sources.pop()), -1) if len(sources) == 1 else -1

    def _source_of(self, process: int, graph: int) -> int:
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
    return GraphRecords({graph: row for graph, row in makers.items() if row >= 0 and times[row] == 1}, dict(sources))

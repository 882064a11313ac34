"""Observes torch's CUDA graphs. Replayed work belongs to the modules that ran during the graph capture."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Figures in a report: graph captures outside the recording, and replays inside it.
BEFORE, REPLAYS = "graphs_before", "graph_replays"


@contextmanager
def on_graph_capture(listener: Callable[[], object]) -> Iterator[None]:
    """While the block runs, calls the listener before every graph capture.

    Graph captures by hand, through ``torch.cuda.graph`` and by Inductor all start with ``CUDAGraph.capture_begin``.
    """
    with _before_each_call("capture_begin", listener):
        yield


@dataclass(slots=True)
class GraphCounts:
    """Numbers of graphs that torch captured and replayed, by the recording window open at the time; 0 means none."""

    captured: Counter[int] = field(default_factory=Counter)
    replayed: Counter[int] = field(default_factory=Counter)

    def figures(self, window: int) -> dict[str, int]:
        """Figures that tell whether a window holds the graph capture of every graph replayed in it.

        It does if torch captured no graph outside the window, and every graph launched in it was torch's.
        """
        return {
            BEFORE: self.captured.total() - self.captured[window],
            REPLAYS: self.replayed[window],
        }


@contextmanager
def counted_graphs(window: Callable[[], int]) -> Iterator[GraphCounts]:
    """Counts torch's graphs while the block runs.

    Args:
        window: Returns the number of the open window, from 1; 0 if none is open.
    """
    counts = GraphCounts()

    def count_graph_capture() -> None:
        counts.captured[window()] += 1

    def count_replay() -> None:
        counts.replayed[window()] += 1

    with _before_each_call("capture_begin", count_graph_capture), _before_each_call("replay", count_replay):
        yield counts


@contextmanager
def _before_each_call(method: str, listener: Callable[[], object]) -> Iterator[None]:
    """While the block runs, calls the listener before each call of a method of torch's graphs."""
    graph: Any = torch.cuda.CUDAGraph
    original = getattr(graph, method)

    def observed(self: object, *args: object, **kwargs: object) -> object:
        listener()
        return original(self, *args, **kwargs)

    setattr(graph, method, observed)
    try:
        yield
    finally:
        setattr(graph, method, original)

"""Tells of CUDA graphs: what is replayed later belongs to the modules that run when one is captured."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Figures of a report: captures outside of the recording, and replays while it went on.
BEFORE, REPLAYS = "graphs_before", "graph_replays"


@contextmanager
def told_of_graphs(listener: Callable[[], object]) -> Iterator[None]:
    """While the block runs, tells of every capture of a CUDA graph before it begins.

    By hand, through ``torch.cuda.graph`` or from Inductor: all of them begin with this method.
    """
    with _told("capture_begin", listener):
        yield


@dataclass(slots=True)
class GraphCounts:
    """How many graphs torch captured and replayed, by the window of the recording that was open; 0 for none."""

    captured: Counter[int] = field(default_factory=Counter)
    replayed: Counter[int] = field(default_factory=Counter)

    def figures(self, window: int) -> dict[str, int]:
        """What tells whether a window holds the capture of every graph that is replayed in it.

        It does if torch captured none outside of it, and all graphs that were launched in it were torch's.
        """
        return {
            BEFORE: self.captured.total() - self.captured[window],
            REPLAYS: self.replayed[window],
        }


@contextmanager
def counted_graphs(window: Callable[[], int]) -> Iterator[GraphCounts]:
    """Counts torch's graphs while the block runs.

    Args:
        window: The number of the window that is open, from 1 on; 0 if none is.
    """
    counts = GraphCounts()

    def captured() -> None:
        counts.captured[window()] += 1

    def replayed() -> None:
        counts.replayed[window()] += 1

    with _told("capture_begin", captured), _told("replay", replayed):
        yield counts


@contextmanager
def _told(method: str, listener: Callable[[], object]) -> Iterator[None]:
    """Tells before each call of a method of torch's graphs."""
    graph: Any = torch.cuda.CUDAGraph
    theirs = getattr(graph, method)

    def ours(self: object, *args: object, **kwargs: object) -> object:
        listener()
        return theirs(self, *args, **kwargs)

    setattr(graph, method, ours)
    try:
        yield
    finally:
        setattr(graph, method, theirs)

"""Tells of CUDA graphs: what is replayed later belongs to the modules that run when one is captured."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Figures of a report: captures before the recording began, and replays while it went on.
BEFORE, REPLAYS = "graphs_before", "graph_replays"


@contextmanager
def told_of_graphs(listener: Callable[[], object]) -> Iterator[None]:
    """While the block runs, tells of every capture of a CUDA graph before it begins.

    By hand, through ``torch.cuda.graph`` or from Inductor: all of them begin with this method.
    """
    with _told("capture_begin", listener):
        yield


@contextmanager
def counted_graphs(recording: Callable[[], bool]) -> Iterator[Counter[str]]:
    """Counts what tells whether a recording holds the capture of every graph that it saw replayed.

    It does if torch captured none before, and all graphs that were launched were torch's.

    Args:
        recording: Whether something is being recorded.
    """
    counts: Counter[str] = Counter({BEFORE: 0, REPLAYS: 0})

    def captured() -> None:
        counts[BEFORE] += not recording()

    def replayed() -> None:
        counts[REPLAYS] += recording()

    with ExitStack() as stack:
        stack.enter_context(_told("capture_begin", captured))
        stack.enter_context(_told("replay", replayed))
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

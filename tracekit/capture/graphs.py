"""Tells when a program captures a CUDA graph: what is replayed later belongs to the modules that run then."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def told_of_graphs(listener: Callable[[], object]) -> Iterator[None]:
    """While the block runs, tells of every capture of a CUDA graph before it begins.

    By hand, through ``torch.cuda.graph`` or from Inductor: all of them begin with this method.
    """
    graph: Any = torch.cuda.CUDAGraph
    begin = graph.capture_begin

    def capture_begin(self: object, *args: object, **kwargs: object) -> object:
        listener()
        return begin(self, *args, **kwargs)

    graph.capture_begin = capture_begin
    try:
        yield
    finally:
        graph.capture_begin = begin

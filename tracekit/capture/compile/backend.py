"""Stand-in until the piecewise backend is merged: the whole graph is one piece for every size."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from tracekit.capture.compile.cache import ArtifactStore, piece_key
from tracekit.capture.compile.counters import counters

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracekit.capture.compile.config import CompileConfig


class PiecewiseBackend:
    """A backend for ``torch.compile``."""

    def __init__(self, config: CompileConfig, *, store: ArtifactStore | None = None) -> None:
        self._config = config
        self._store = store or ArtifactStore(None)

    def __call__(
        self, graph: torch.fx.GraphModule, _inputs: Sequence[object]
    ) -> Callable[..., object]:
        """Compiles a graph."""
        counters.graphs_seen += 1
        if self._config.mode == "eager":
            return graph.forward
        settings = self._config.inductor_config
        own = [node.meta["example_value"] for node in graph.graph.find_nodes(op="placeholder")]
        with self._store.environment():
            key = piece_key(graph, own, settings)
            found = self._store.load(key) if key else None
            if found is None:
                began = time.perf_counter_ns()
                counters.cache_misses += 1
                found = torch._inductor.standalone_compile(
                    graph,
                    own,
                    dynamic_shapes="from_graph",
                    options={"config_patches": dict(settings)},
                )
                counters.compile_ns += time.perf_counter_ns() - began
                if key:
                    self._store.save(key, found)
        return found

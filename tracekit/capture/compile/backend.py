"""Stand-in until the piecewise backend is merged: the whole graph is one piece for every size."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from tracekit.capture.compile.cache import (
    ArtifactStore,
    cache_folder,
    factors,
    piece_key,
    traced_files,
)
from tracekit.capture.compile.counters import counters

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracekit.capture.compile.config import CompileConfig


class PiecewiseBackend:
    """A backend for ``torch.compile``."""

    def __init__(self, config: CompileConfig) -> None:
        self._config = config

    def __call__(
        self, graph: torch.fx.GraphModule, _inputs: Sequence[object]
    ) -> Callable[..., object]:
        """Compiles a graph."""
        counters.graphs_seen += 1
        if self._config.mode == "eager":
            return graph.forward
        config, folder = self._config, None
        if config.cache_dir is not None and config.use_cache:
            folder = cache_folder(Path(config.cache_dir), factors(config, traced_files()))
        store = ArtifactStore(folder)
        own = [node.meta["example_value"] for node in graph.graph.find_nodes(op="placeholder")]
        with store.environment():
            key = piece_key(graph, own, config.inductor_config)
            found = store.load(key) if key else None
            if found is None:
                began = time.perf_counter_ns()
                counters.cache_misses += 1
                found = torch._inductor.standalone_compile(
                    graph,
                    own,
                    dynamic_shapes="from_graph",
                    options={"config_patches": dict(config.inductor_config)},
                )
                counters.compile_ns += time.perf_counter_ns() - began
                if key:
                    store.save(key, found)
        return found

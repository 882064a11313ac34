"""Compiles the graph of one piece, unless an equal one has been compiled before. It knows no sizes and no order."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import torch

from tracekit.capture.compile.counters import counters
from tracekit.capture.compile.sizes import value_of
from tracekit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from torch import fx
    from torch._inductor.standalone_compile import CompiledArtifact

    from tracekit.capture.compile.config import CompileConfig

#: What Inductor tries for a single size. On a CPU it tries for minutes, for little.
_TUNED = {"max_autotune": True, "coordinate_descent_tuning": True}


class Store(Protocol):
    """Where compiled pieces are kept beyond this process."""

    @property
    def folder(self) -> Path | None:
        """The folder they are kept in, if any."""

    def environment(self) -> AbstractContextManager[None]:
        """While it is entered, compilers keep their own caches there too."""

    def load(self, key: str, /) -> CompiledArtifact | None:
        """What is kept under the key; counts it."""

    def save(self, key: str, artifact: CompiledArtifact, /) -> None:
        """Keeps it; counts it."""


class Compiler:
    """Compiles pieces of one model; equal pieces share what was compiled.

    Args:
        config: How to compile.
        store: Where compiled pieces are kept.
        key: Gives pieces whose code is interchangeable the same key; None where it cannot tell.

    Raises:
        UsageError: If Inductor has no such setting.
    """

    def __init__(
        self,
        config: CompileConfig,
        store: Store,
        key: Callable[[fx.GraphModule, Sequence[object], Mapping[str, object]], str | None],
    ) -> None:
        self.config = config
        self.store = store
        self._key = key
        self._shared: dict[str, Callable[..., Any]] = {}
        if config.mode == "inductor":
            _check_settings(config.inductor_config)

    def compiles(self, graph: fx.GraphModule) -> bool:
        """Whether Inductor compiles this piece: it takes none that returns no tensor."""
        (output,) = graph.graph.find_nodes(op="output")
        results = (value_of(node) for node in output.all_input_nodes)
        return self.config.mode == "inductor" and any(isinstance(result, torch.Tensor) for result in results)

    def compiled(
        self, graph: fx.GraphModule, inputs: Sequence[object], *, concrete: bool, tuned: bool
    ) -> Callable[..., Any]:
        """What runs the piece.

        Args:
            graph: The piece; it returns a tuple.
            inputs: Fake tensors and numbers that say what it is compiled for.
            concrete: Whether these have one size, rather than the graph's own dynamic one.
            tuned: Whether to look for the fastest kernels.
        """
        counters.backend_compilations += 1
        with _timed():
            if not self.compiles(graph):
                return real_forward(graph)
            settings = _settings(self.config.inductor_config, inputs, tuned=tuned)
            return self._shared_or_new(graph, inputs, settings, concrete=concrete)

    def _shared_or_new(
        self,
        graph: fx.GraphModule,
        inputs: Sequence[object],
        settings: Mapping[str, object],
        *,
        concrete: bool,
    ) -> Callable[..., Any]:
        key = self._key(graph, inputs, settings)
        if key is not None and key in self._shared:
            counters.cache_hits += 1
            return self._shared[key]
        # What is compiled for training is not kept: a loaded artifact has been tried for inference alone.
        kept = key is not None and not needs_grad(inputs)
        with self.store.environment():
            artifact = self.store.load(key) if key is not None and kept else None
            if artifact is None:
                counters.cache_misses += 1
                artifact = _inductor(graph, inputs, settings, concrete=concrete)
                if key is not None and kept:
                    self.store.save(key, artifact)
        if key is not None:
            self._shared[key] = artifact
        return artifact


def needs_grad(inputs: Sequence[object]) -> bool:
    """Whether a graph with these inputs would be recorded for a backward pass now."""
    return torch.is_grad_enabled() and any(isinstance(value, torch.Tensor) and value.requires_grad for value in inputs)


def real_forward(graph: fx.GraphModule) -> Callable[..., Any]:
    """The graph's function itself, not one that compiles it at each call."""
    getattr(graph, "real_recompile", graph.recompile)()
    forward: Callable[..., Any] = graph.forward
    return forward


def _inductor(
    graph: fx.GraphModule,
    inputs: Sequence[object],
    settings: Mapping[str, object],
    *,
    concrete: bool,
) -> CompiledArtifact:
    mode = next((value.fake_mode for value in inputs if hasattr(value, "fake_mode")), None)
    known: dict[str, Any] = {"fake_mode": mode} if concrete and _takes_fake_mode() else {}
    return torch._inductor.standalone_compile(
        graph,
        list(inputs),  # type: ignore[arg-type]
        dynamic_shapes="from_example_inputs" if concrete else "from_graph",
        options={"config_patches": dict(settings)},
        **known,
    )


def _takes_fake_mode() -> bool:
    """Whether it can be told what the example inputs are made of: from torch 2.13 on."""
    code = torch._inductor.standalone_compile.__code__
    return "fake_mode" in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def _settings(wanted: Mapping[str, object], inputs: Sequence[object], *, tuned: bool) -> dict[str, object]:
    on_cpu = all(value.device.type == "cpu" for value in inputs if isinstance(value, torch.Tensor))
    return {**(_TUNED if tuned and not on_cpu else {}), **wanted}


def _check_settings(wanted: Mapping[str, object]) -> None:
    if unknown := sorted(name for name in wanted if not hasattr(torch._inductor.config, name)):
        raise UsageError(f"inductor_config: Inductor has no setting {', '.join(unknown)}")


@contextmanager
def _timed() -> Iterator[None]:
    begun = time.perf_counter_ns()
    try:
        yield
    finally:
        counters.compile_ns += time.perf_counter_ns() - begun

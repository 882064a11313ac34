"""Compiles one piece, unless an equal piece was compiled before. It does not know the other pieces."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import torch

from tracekit.capture.compile.counters import counters
from tracekit.capture.compile.keys import holds_for_all_sizes
from tracekit.capture.compile.layouts import laid_out
from tracekit.capture.compile.sizes import value_of
from tracekit.capture.maps.runs import running_as
from tracekit.capture.maps.stand_ins import at_hand
from tracekit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from torch import fx
    from torch._inductor.standalone_compile import CompiledArtifact

    from tracekit.capture.compile.config import CompileConfig
    from tracekit.capture.maps.traced import Traced

#: Inductor's search for fast kernels, for single sizes. On a CPU it takes minutes and gains little.
_TUNED = {"max_autotune": True, "coordinate_descent_tuning": True}


class Store(Protocol):
    """Keeps compiled pieces beyond this process."""

    @property
    def folder(self) -> Path | None:
        """The folder in which they are kept, if any."""

    def environment(self) -> AbstractContextManager[None]:
        """While the block runs, the compilers' own caches are in that folder too."""

    def load(self, key: str, /) -> CompiledArtifact | None:
        """The artifact with this key, if there is one. Counts it."""

    def save(self, key: str, artifact: CompiledArtifact, /) -> None:
        """Keeps an artifact under a key. Counts it."""


class Compiler:
    """Compiles the pieces of one model. Equal pieces share their code.

    Args:
        config: How to compile.
        store: Where to keep compiled pieces.
        key: Returns the same key for pieces whose code is interchangeable, or None if it cannot tell.

    Raises:
        UsageError: If Inductor does not have one of the settings.
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
        """Whether Inductor compiles this piece. It refuses pieces that return no tensor."""
        (output,) = graph.graph.find_nodes(op="output")
        results = (value_of(node) for node in output.all_input_nodes)
        return self.config.mode == "inductor" and any(isinstance(result, torch.Tensor) for result in results)

    def compiled(
        self,
        graph: fx.GraphModule,
        inputs: Sequence[object],
        *,
        concrete: bool,
        tuned: bool,
        traced: Traced | None = None,
    ) -> Callable[..., Any]:
        """Returns the function that runs the piece.

        Args:
            graph: The piece; it returns a tuple.
            inputs: Fake tensors and numbers: the shapes to compile for.
            concrete: Whether they have a fixed size, rather than the graph's dynamic one.
            tuned: Whether to search for the fastest kernels.
            traced: The modules of the piece, if its runs are to tell which kernels serve them.
        """
        counters.backend_compilations += 1
        with _timed(), at_hand(traced):
            if not self.compiles(graph):
                return real_forward(graph)
            settings = _settings(self.config.inductor_config, inputs, tuned=tuned)
            run = self._shared_or_new(graph, inputs, settings, concrete=concrete)
            return laid_out(run if traced is None else running_as(run, traced), graph)

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
        # Loading artifacts is tested for inference only, so those for training are not kept.
        store_key = None if needs_grad(inputs) else key
        with self.store.environment():
            artifact = None if store_key is None else self.store.load(store_key)
            if artifact is None:
                counters.cache_misses += 1
                artifact = _inductor(graph, inputs, settings, concrete=concrete)
                if not holds_for_all_sizes(inputs, self.config.max_size):
                    return artifact
                if store_key is not None:
                    self.store.save(store_key, artifact)
        if key is not None:
            self._shared[key] = artifact
        return artifact


def needs_grad(inputs: Sequence[object]) -> bool:
    """Whether autograd would record a call with these inputs."""
    return torch.is_grad_enabled() and any(isinstance(value, torch.Tensor) and value.requires_grad for value in inputs)


def real_forward(graph: fx.GraphModule) -> Callable[..., Any]:
    """The graph's own forward, rather than one that recompiles it at each call."""
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
    more: dict[str, Any] = {"fake_mode": mode} if concrete and _takes_fake_mode() else {}
    return torch._inductor.standalone_compile(
        graph,
        list(inputs),  # type: ignore[arg-type]
        dynamic_shapes="from_example_inputs" if concrete else "from_graph",
        options={"config_patches": dict(settings)},
        **more,
    )


def _takes_fake_mode() -> bool:
    """Whether ``standalone_compile`` accepts the fake mode of the example inputs, as it does since torch 2.13."""
    code = torch._inductor.standalone_compile.__code__
    return "fake_mode" in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def _settings(config: Mapping[str, object], inputs: Sequence[object], *, tuned: bool) -> dict[str, object]:
    on_cpu = all(value.device.type == "cpu" for value in inputs if isinstance(value, torch.Tensor))
    return {**(_TUNED if tuned and not on_cpu else {}), **config}


def _check_settings(config: Mapping[str, object]) -> None:
    if unknown := sorted(name for name in config if not hasattr(torch._inductor.config, name)):
        raise UsageError(f"inductor_config: Inductor has no setting {', '.join(unknown)}")


@contextmanager
def _timed() -> Iterator[None]:
    start_ns = time.perf_counter_ns()
    try:
        yield
    finally:
        counters.compile_ns += time.perf_counter_ns() - start_ns

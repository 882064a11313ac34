"""``--compile``: records a model that runs in compiled pieces. Compiling itself is not recorded."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from tracekit.capture.compile import CompiledModel, PiecewiseBackend


@dataclass(frozen=True, slots=True)
class Compiling:
    """How a model is compiled before it is recorded.

    Attributes:
        splitting_ops: Operators to split the model at, as ``ns::op``.
        compile_sizes: Sizes that get code of their own.
        cudagraph_sizes: Sizes at which pieces are captured as CUDA graphs.
        cache_dir: Folder for compiled pieces. Defaults to a folder in the user's cache.
        use_cache: Whether to keep compiled pieces on disk.
        backend: ``inductor``, or ``eager`` to run the pieces as traced.
    """

    splitting_ops: tuple[str, ...] = ()
    compile_sizes: tuple[int, ...] = ()
    cudagraph_sizes: tuple[int, ...] = ()
    cache_dir: str | None = None
    use_cache: bool = True
    backend: str = "inductor"

    @property
    def captures_graphs(self) -> bool:
        """Whether CUDA graphs will be captured."""
        return bool(self.cudagraph_sizes) and torch.cuda.is_available()

    def piecewise(self) -> PiecewiseBackend:
        """The backend that compiles the model. Ask it for its missing operators; it does not warn of them.

        Raises:
            UsageError: If a setting is invalid.
        """
        from tracekit.capture.compile import (  # noqa: PLC0415 - Dynamo and Inductor are slow to import
            CompileConfig,
            PiecewiseBackend,
        )

        config = CompileConfig(
            mode=self.backend,
            splitting_ops=tuple(self.splitting_ops),
            compile_sizes=tuple(self.compile_sizes),
            cudagraph_sizes=tuple(self.cudagraph_sizes),
            cache_dir=Path(self.cache_dir) if self.cache_dir else _user_cache(),
            use_cache=self.use_cache,
        )
        backend = PiecewiseBackend(config)
        backend.warns = False
        return backend


def compiled(model: nn.Module, backend: PiecewiseBackend) -> CompiledModel:
    """The compiled model; its first call traces and compiles it."""
    from tracekit.capture.compile import compile_model  # noqa: PLC0415 - as above

    return compile_model(model, backend.config, backend=backend)


@contextmanager
def without_graph_captures() -> Iterator[None]:
    """While the block runs, code is compiled but no CUDA graph is captured or replayed."""
    from tracekit.capture.compile.cudagraph import graph_captures_on_hold  # noqa: PLC0415 - as above

    with graph_captures_on_hold():
        yield


def compile_figures() -> dict[str, int]:
    """The compile counters of this process, by name; times are in nanoseconds."""
    from tracekit.capture.compile import counters  # noqa: PLC0415 - as above

    return counters.snapshot()


def _user_cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "tracekit" / "compile"

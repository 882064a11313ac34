"""``--compile``: what is recorded of a model runs in compiled pieces; compiling itself is not recorded."""

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

    from tracekit.capture.compile import CompiledModel


@dataclass(frozen=True, slots=True)
class Compiling:
    """How a model is compiled before it is recorded.

    Attributes:
        splitting_ops: Operators that it is split at, as ``ns::op``.
        compile_sizes: Sizes with code of their own.
        cudagraph_sizes: Sizes at which pieces are captured as CUDA graphs.
        cache_dir: Folder for compiled pieces; the user's cache unless given.
        use_cache: Whether compiled pieces are kept at all.
        backend: ``inductor``, or ``eager`` for pieces as they were traced.
    """

    splitting_ops: tuple[str, ...] = ()
    compile_sizes: tuple[int, ...] = ()
    cudagraph_sizes: tuple[int, ...] = ()
    cache_dir: str | None = None
    use_cache: bool = True
    backend: str = "inductor"

    @property
    def captures(self) -> bool:
        """Whether CUDA graphs will be captured."""
        return bool(self.cudagraph_sizes) and torch.cuda.is_available()

    def compiled(self, model: nn.Module) -> CompiledModel:
        """The model, to be traced and compiled by its first call.

        Raises:
            UsageError: If a setting makes no sense.
        """
        from tracekit.capture.compile import (  # noqa: PLC0415 - Dynamo and Inductor take their time
            CompileConfig,
            compile_model,
        )

        config = CompileConfig(
            mode=self.backend,
            splitting_ops=tuple(self.splitting_ops),
            compile_sizes=tuple(self.compile_sizes),
            cudagraph_sizes=tuple(self.cudagraph_sizes),
            cache_dir=Path(self.cache_dir) if self.cache_dir else _user_cache(),
            use_cache=self.use_cache,
        )
        return compile_model(model, config)


@contextmanager
def without_captures() -> Iterator[None]:
    """While the block runs, code is compiled but nothing is captured as a CUDA graph."""
    from tracekit.capture.compile.cudagraph import on_hold  # noqa: PLC0415 - as above

    with on_hold():
        yield


def compile_figures() -> dict[str, int]:
    """What compiling did in this process, by name; times in nanoseconds."""
    from tracekit.capture.compile import counters  # noqa: PLC0415 - as above

    return counters.snapshot()


def _user_cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "tracekit" / "compile"

"""Stand-in until the settings of the backend are merged: the shape of CompileConfig, nothing checked."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


@dataclasses.dataclass(frozen=True)
class CompileConfig:
    """How a model is compiled."""

    mode: Literal["none", "eager", "inductor", "stock"] = "inductor"
    splitting_ops: tuple[str, ...] = ()
    compile_sizes: tuple[int, ...] = ()
    compile_ranges: tuple[tuple[int, int], ...] = ()
    cudagraph_sizes: tuple[int, ...] = ()
    cudagraph_warmups: int = 1
    copy_inputs: bool = False
    cache_dir: Path | None = None
    use_cache: bool = True
    inductor_config: Mapping[str, object] = dataclasses.field(default_factory=dict)
    graph_capture: Literal["auto", "cuda", "record", "off"] = "auto"
    dynamic_dims: Mapping[str, Sequence[int]] | None = None
    debug: bool = False
    debug_dir: Path | None = None

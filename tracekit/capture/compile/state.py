"""What a model keeps from one call to the next, and whether a call put something else in its place.

A CUDA graph writes where it wrote when it was captured. A tensor that a forward puts in the place of a buffer lies in
the graph's memory, and the next replay overwrites it: silently wrong, so such a model is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tracekit.errors import CaptureError

if TYPE_CHECKING:
    from torch import nn

    from tracekit.capture.compile.config import CompileConfig

State = dict[tuple[str, str], torch.Tensor]


def held(model: nn.Module) -> State:
    """The buffers of a model, and the tensors that its modules have as plain attributes, by module and name."""
    return {
        (path, name): value
        for path, module in model.named_modules()
        for name, value in (*module._buffers.items(), *vars(module).items())
        if isinstance(value, torch.Tensor)
    }


def refuse_reassigned(model: nn.Module, before: State, config: CompileConfig) -> None:
    """Refuses a model whose forward put other tensors in the place of its own, if its pieces are to be captured.

    Raises:
        CaptureError: It did. The tensors that were there are back in their place.
    """
    if not _captures(config):
        return
    after = held(model)
    changed = sorted(key for key, value in before.items() if after.get(key) is not value)
    if not changed:
        return
    for path, name in changed:
        setattr(model.get_submodule(path), name, before[path, name])
    names = ", ".join(f"{path}.{name}".removeprefix(".") for path, name in changed)
    raise CaptureError(
        f"{type(model).__qualname__} reassigns {names} in its forward, which CUDA graphs would make silently wrong: "
        "write in place (copy_) instead, or set graph_capture='off'"
    )


def _captures(config: CompileConfig) -> bool:
    if not config.cudagraph_sizes or config.graph_capture == "off":
        return False
    return config.graph_capture != "auto" or torch.cuda.is_available()

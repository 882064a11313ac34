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

#: What lies under a module's path and an attribute's name: a tensor, or the None that waits for one.
State = dict[tuple[str, str], torch.Tensor | None]


def held(model: nn.Module) -> State:
    """The buffers of a model, and the tensors that its modules have as plain attributes."""
    return {
        (path, name): value
        for path, module in model.named_modules()
        for name, value in (*module._buffers.items(), *vars(module).items())
        if value is None or isinstance(value, torch.Tensor)
    }


def refuse_reassigned(model: nn.Module, before: State, config: CompileConfig) -> None:
    """Refuses a model whose forward put other tensors in the place of its own, if its pieces are to be captured.

    Raises:
        CaptureError: It did. The tensors that were there are back in their place.
    """
    if not _captures(config):
        return
    after = held(model)
    now = {key for key, value in after.items() if value is not None}
    changed = sorted(key for key in {*before, *now} if after.get(key) is not before.get(key))
    if not changed:
        return
    for path, name in changed:
        module = model.get_submodule(path)
        if (path, name) in before:
            setattr(module, name, before[path, name])
        else:
            delattr(module, name)
    names = ", ".join(f"{path}.{name}".removeprefix(".") for path, name in changed)
    raise CaptureError(
        f"{type(model).__qualname__} reassigns {names} in its forward, which CUDA graphs would make silently wrong: "
        "write in place (copy_) instead, or set graph_capture='off'"
    )


def _captures(config: CompileConfig) -> bool:
    if not config.cudagraph_sizes or config.graph_capture == "off":
        return False
    return config.graph_capture != "auto" or torch.cuda.is_available()

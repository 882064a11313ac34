"""The tensors that a model keeps between calls, and whether a call has replaced any of them.

A CUDA graph always writes to the addresses of its graph capture. If forward replaces a buffer by another tensor, that
tensor is in the graph's memory, and the next replay overwrites it. Results would be silently wrong, so such a model is
refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tracekit.errors import CaptureError

if TYPE_CHECKING:
    from torch import nn

    from tracekit.capture.compile.config import CompileConfig

#: Tensors, and attributes that are None and may become tensors, by the module's path and the attribute's name.
State = dict[tuple[str, str], torch.Tensor | None]


def model_state(model: nn.Module) -> State:
    """The buffers of a model, and the tensors that are plain attributes of its modules."""
    return {
        (path, name): value
        for path, module in model.named_modules()
        for name, value in (*module._buffers.items(), *vars(module).items())
        if value is None or isinstance(value, torch.Tensor)
    }


def refuse_reassigned(model: nn.Module, before: State, config: CompileConfig) -> None:
    """Refuses a model whose forward replaced any of its tensors, if CUDA graphs are to be captured.

    Raises:
        CaptureError: If it did. The original tensors are restored first.
    """
    if not _captures_graphs(config):
        return
    after = model_state(model)
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
        f"{type(model).__qualname__} reassigns {names} in its forward, which is wrong with CUDA graphs; "
        "write in place instead (copy_), or set graph_capture='off'"
    )


def _captures_graphs(config: CompileConfig) -> bool:
    if not config.cudagraph_sizes or config.graph_capture == "off":
        return False
    return config.graph_capture != "auto" or torch.cuda.is_available()

"""Layers of torch with a fused path that torch takes only where no module in them has hooks.

In eval, without gradients, ``nn.TransformerEncoderLayer`` runs one fused operator instead of its modules. Hooks inside
it switch that off: the same numbers, other operators. ``nn.MultiheadAttention`` keeps its own fused path under hooks.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import nn
from torch.compiler import is_dynamo_compiling
from typing_extensions import override

from tracekit.capture.marks import Switch, pickled_as_nothing

_LOG = logging.getLogger("tracekit.capture")
_LAYER = nn.TransformerEncoderLayer
_DEVICES = {"cpu", "cuda", "xpu", torch.utils.backend_registration._privateuse1_backend_name}


def fused_paths_enabled() -> bool:
    """Whether torch takes fused paths at all."""
    return bool(torch.backends.mha.get_fastpath_enabled())


def can_fuse(module: nn.Module) -> bool:
    """Whether a module has a fused path that hooks switch off, for some inputs; not if it has hooks already."""
    if not isinstance(module, _LAYER) or type(module).forward is not _LAYER.forward or _hooked(module):
        return False
    attention = module.self_attn
    has_bias: object = attention.in_proj_bias  # torch's annotation says that it always has one
    return bool(
        attention.batch_first
        and has_bias is not None
        and attention._qkv_same_embed_dim
        and module.activation_relu_or_gelu
        and module.norm1.eps == module.norm2.eps
        and attention.num_heads % 2 == 0
    )


def would_fuse(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether torch would take the fused path of such a module for this call, but for the hooks."""
    source, *masks = (
        args[index] if index < len(args) else kwargs.get(name)
        for index, name in enumerate(("src", "src_mask", "src_key_padding_mask"))
    )
    if module.training or not isinstance(source, torch.Tensor) or source.dim() != 3:  # noqa: PLR2004 - a batch
        return False
    if not fused_paths_enabled() or torch.is_autocast_enabled():
        return False
    if source.is_nested and any(mask is not None for mask in masks):
        return False
    tensors = (source, *module.parameters())
    with_gradient = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    return not with_gradient and all(tensor.device.type in _DEVICES for tensor in tensors)


class FusedPathWatch:
    """A forward pre-hook that notes whether markers switched a layer's fused path off."""

    def __init__(self, switch: Switch) -> None:
        #: Whether any call would have taken the fused path.
        self.switched_off = False
        self._switch = switch

    def __deepcopy__(self, _memo: dict[int, object]) -> FusedPathWatch:
        return FusedPathWatch(Switch(on=False))

    @override
    def __reduce__(self) -> tuple[object, ...]:
        return pickled_as_nothing()

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Looks at a call, until one would have taken the fused path."""
        if is_dynamo_compiling() or self.switched_off or not self._switch.on:
            return
        try:
            self.switched_off = would_fuse(module, args, kwargs)
        except Exception:  # noqa: BLE001 - a look must not end the user's run
            _LOG.debug("cannot tell whether a layer would be fused", exc_info=True)

    def after(self, _module: nn.Module, _args: object, _output: object) -> None:
        """Nothing to do."""


def _hooked(module: nn.Module) -> bool:
    return any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())

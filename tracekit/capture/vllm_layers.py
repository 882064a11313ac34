"""Marks vLLM's attention layers where they run between the compiled pieces of a model.

vLLM splits the graph of a model at the operators of these layers and compiles the pieces. Such an operator is given the
name of its layer and calls a method of it: no hook runs, and no kernel map tells its work. All that is known of vLLM
here is which method that is; of layers and operators that it does not have, nothing is marked.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

import torch

from tracekit.capture.attach import marks_on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

#: For operators at which vLLM splits graphs: where the method is that the operator calls, and its name.
_METHODS = {
    "vllm::unified_attention_with_output": ("impl", "forward"),
    "vllm::unified_kv_cache_update": ("impl", "do_kv_cache_update"),
    "vllm::unified_mla_attention_with_output": ("", "forward_impl"),
    "vllm::unified_mla_kv_cache_update": ("impl", "do_kv_cache_update"),
    "vllm::mamba_mixer": ("", "forward_impl"),
    "vllm::mamba_mixer2": ("", "conv_ssm_forward"),
    "vllm::qwen_gdn_attention_core": ("", "_forward_core"),
    "vllm::qwen_gdn_attention_core_fused_norm_packed": ("", "_forward_core_fused_norm_packed"),
}
#: Set on the methods that are marked.
_MARKED = "_tracekit_marked"
#: Tensors that are described: the first ones are those of this call, behind them come caches.
_DESCRIBED = 3


def mark_layers_between_pieces(compilation: Any) -> None:  # noqa: ANN401 - vLLM's own
    """Marks the layers that vLLM's configuration of its compiler knows, if it splits graphs at their operators."""
    # Inductor's own partitions are all in one graph, whose kernel map tells these layers, too.
    if compilation.use_inductor_graph_partition:
        return
    methods = {_METHODS[operator] for operator in compilation.splitting_ops or () if operator in _METHODS}
    for layer in compilation.static_forward_context.values():
        for place, name in methods if isinstance(layer, torch.nn.Module) else ():
            owner = getattr(layer, place, None) if place else layer
            method = getattr(owner, name, None)
            if method is not None and not hasattr(method, _MARKED):
                setattr(owner, name, _marked(layer, method))


def _marked(layer: nn.Module, method: Callable[..., Any]) -> Callable[..., Any]:
    """A layer's method, with the marks of the layer around it unless a call of the layer is open."""

    @wraps(method)
    def marked(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as the method
        marks = next(marks_on(layer), None)
        if marks is None or (marks.lane.open and marks.lane.open[-1] is marks):
            return method(*args, **kwargs)
        marks.before(layer, tuple(_tensors(args))[:_DESCRIBED], None)
        try:
            return method(*args, **kwargs)
        finally:
            marks.after(layer, (), None)

    setattr(marked, _MARKED, True)
    return marked


def _tensors(args: tuple[Any, ...]) -> Iterator[torch.Tensor]:
    return (item for item in args if isinstance(item, torch.Tensor))

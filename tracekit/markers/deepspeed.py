"""Functions of DeepSpeed by qualified names: ``DeepSpeedEngine.forward``, ``DeepSpeedZeroOptimizer_Stage3.step``.

``instrument_w_nvtx`` writes them (DeepSpeed: ``deepspeed/utils/nvtx.py``), since 0.18 in the domain ``DeepSpeed``; it
stands around functions of ``deepspeed/runtime/engine.py`` and ``deepspeed/runtime/zero``. Its timers
(``fwd_microstep``, ``bwd``, ``step``) and the instructions of its pipeline write no ranges.
"""

from __future__ import annotations

import re

from tracekit.markers.base import RangeMarker
from tracekit.markers.fields import bare_name

CANDIDATES = r"^(DeepSpeed(Engine|Zero|ZeRo)\w*|(SuperOffload|MiCS_)\w+|PartitionedParameterCoordinator)\.[\w<]"

_FORM = re.compile(r"\w+(?:\.(?:\w+|<locals>))*\.(\w+)")
# Hooks of the forward pass that prepare the backward one.
_PREPARING = re.compile(r"_(?:pre|post)_backward_module_hook")
_BACKWARD = re.compile(
    r"\w*backward\w*|allreduce_gradients|reduce_(?:partition_and_remove|leaf_module)_grads|_*partition_grads|"
    r"independent_gradient_partition_epilogue|__avg_scatter_(?:contiguous_)?grads|__reduce_and_partition_ipg_grads"
)
_OPTIMIZER = re.compile(
    r"(?:_post_|_optimizer_)?step|zero_grad|unscale_and_clip_grads|_(?:prepare|release)_sub_group|"
    r"_prepare_fp32_grad_for_sub_group|_overflow_check_and_loss_scale_update|_get_norm_groups|get_grad_norm_direct|"
    r"_reassign_or_swap_out_partitioned_parameters(?:_async)?"
)


def parse(text: str) -> RangeMarker | None:
    """The function; None if the text only starts like one."""
    name = bare_name(text)
    match = _FORM.fullmatch(name)
    return RangeMarker(name, _phase(match[1])) if match else None


def _phase(function: str) -> str:
    if _PREPARING.fullmatch(function):
        return "forward"
    if _BACKWARD.fullmatch(function):
        return "backward"
    if _OPTIMIZER.fullmatch(function):
        return "optimizer"
    return "forward" if "forward" in function else ""

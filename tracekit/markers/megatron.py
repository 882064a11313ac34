"""Ranges of Megatron-LM: ``megatron.core.transformer.attention.forward.qkv``, ``layer_3f-layer_5b``, ``attn forward``.

``nvtx_range_push(suffix="qkv")`` and ``nvtx_decorator`` write the module path of a function, its name and the suffix
(Megatron-LM: ``megatron/core/utils.py``); schedules that overlap passes the layers and parts of layers
(``megatron/core/models/common/model_chunk_schedule_plan.py``, ``megatron/core/pipeline_parallel/utils.py``); its FSDP
``MFSDP decoder.layers.0 forward`` (``megatron_fsdp/experimental/module.py``). Its timers write no ranges.
"""

from __future__ import annotations

import re

from tracekit.markers.base import RangeMarker
from tracekit.markers.fields import bare_name

CANDIDATES = (
    r"^(megatron\.\w|layer_\d+[fb]\b|MFSDP |CustomFSDP\.forward|"
    r"(pre_process|post_process|pre_dispatch_computation|attn|mlp|moe_dispatch|moe_combine|mtp_post_process) "
    r"(forward|backward|wgrad))"
)

_FUNCTION = re.compile(r"(?:megatron|CustomFSDP)(?:\.[\w<>]+)+")
_LAYERS = re.compile(r"(layer_\d{1,9}f)?-?(layer_\d{1,9}b)?")
_PART = re.compile(r"(?:MFSDP \S+|\w+) (forward|backward|wgrad)")


def parse(text: str) -> RangeMarker | None:
    """The range; None if the text only starts like one."""
    name = bare_name(text)
    if part := _PART.fullmatch(name):
        return RangeMarker(name, "forward" if part[1] == "forward" else "backward")
    if layers := _LAYERS.fullmatch(name):
        return RangeMarker(name, _one_of(forward=bool(layers[1]), backward=bool(layers[2])))
    if not _FUNCTION.fullmatch(name):
        return None
    return RangeMarker(name, _one_of(forward="forward" in name, backward="backward" in name))


def _one_of(*, forward: bool, backward: bool) -> str:
    """The phase if it is one of them alone."""
    if forward == backward:
        return ""
    return "forward" if forward else "backward"

"""Ranges of Transformer Engine: ``transformer_engine._Linear.forward.qkv.gemm``, ``LayerNormMLP forward``.

With ``NVTE_NVTX_ENABLED=1`` its autograd functions write a label and their parts (TransformerEngine:
``transformer_engine/pytorch/module/linear.py``, ``layernorm_linear.py``, ``attention/dot_product_attention``), its
modules ``<class> forward`` (``transformer_engine/pytorch/module/base.py``; Megatron-LM's classes begin with ``TE``).
Names of its C functions, such as ``nvte_layernorm_fwd`` (``transformer_engine/common/nvtx.h``), are plain texts that
count nothing.
"""

from __future__ import annotations

import re

from tracekit.markers.base import RangeMarker
from tracekit.markers.fields import bare_name

CANDIDATES = (
    r"^(transformer_engine\.\w+\.(forward|backward)|[A-Z]\w*(Linear|MLP|Attention|Norm)\w* forward$|Linear forward$)"
)

_FORM = re.compile(r"transformer_engine\.\w+\.(forward|backward)(?:\.\w+)*|[A-Z]\w* (forward)")


def parse(text: str) -> RangeMarker | None:
    """The range; None if the text only starts like one."""
    name = bare_name(text)
    match = _FORM.fullmatch(name)
    return RangeMarker(name, match[1] or match[2]) if match else None

"""FLOPs of an operator from the sizes of its arguments, as ``torch.utils.flop_counter`` registers them (torch 2.13).

Texts are those of ``torch.autograd.profiler.emit_nvtx``: ``aten::mm, sizes = [[2, 4], [4, 8]]``; arguments that are not
tensors have no sizes. Types may follow.
"""

import json
import re
from collections.abc import Callable
from math import prod
from typing import NamedTuple

from tracekit.flops.kernels import CPU_ATTENTIONS, FUSED_ATTENTION, Work, operator_kind
from tracekit.flops.layers import Shape
from tracekit.flops.tensors import computed_in

_FORM = re.compile(r"(?P<name>[^,]+)(, sizes = (?P<sizes>\[[\[\]\d, ]*\]))?(, types = (?P<types>\[[^\]]*\]))?")
_MOST_CHARACTERS = 8_192
_LARGEST = 2**62
_OF_TORCH = "aten::"
_REENTRANT = "CheckpointFunctionBackward"


class Operator(NamedTuple):
    """An operator, as the text of its range describes it.

    Attributes:
        registered: Whether ``flop_counter`` counts it, or what it is fused from, with all operators that it calls.
        flops: Its FLOPs; -1 where its sizes do not give them, 0 where it has no formula.
        saves_first: Whether it saves what its backward pass needs before it multiplies. Attention saves results, too.
        dtype: The dtype in which it multiplies; None where the text does not record it.
        never_stops: Whether it recomputes to the end, as the nodes of reentrant checkpoints do.
    """

    registered: bool = False
    flops: int = 0
    harmless: bool = False
    saves_first: bool = False
    of_torch: bool = False
    dtype: str | None = None
    never_stops: bool = False


def operator(text: str) -> Operator:
    """Reads the text of a range, without the sequence number of the call."""
    match = _FORM.fullmatch(text) if len(text) <= _MOST_CHARACTERS else None
    name = match["name"] if match else text.partition(",")[0]
    formula = _REGISTRY.get(name)
    of_torch = name.startswith(_OF_TORCH)
    if formula is None:
        harmless = Work.UNLISTED not in operator_kind(name)
        return Operator(harmless=harmless, of_torch=of_torch, never_stops=name == _REENTRANT)
    return Operator(
        registered=True,
        flops=_flops(formula, match["sizes"]) if match and match["sizes"] else -1,
        saves_first="attention" not in name,
        of_torch=of_torch,
        dtype=computed_in(_types(match["types"]), ()) if match and match["types"] else None,
    )


def _types(text: str) -> list[str]:
    try:
        types = json.loads(text)
    except ValueError:
        return []
    return [word for word in types if isinstance(word, str) and word]


def _flops(formula: Callable[..., int], text: str) -> int:
    try:
        sizes = json.loads(text)
        known = all(isinstance(size, int) for shape in sizes for size in shape)
        flops = formula(*sizes) if known else -1
    except (TypeError, ValueError, RecursionError):
        return -1
    return flops if 0 <= flops < _LARGEST else -1


def _product(left: Shape, right: Shape, *_others: Shape) -> int:
    *batch, rows, inner = left
    *same, shared, columns = right
    if batch != same or inner != shared:
        raise ValueError
    return 2 * prod(batch) * rows * inner * columns


def _attention(query: Shape, key: Shape, value: Shape, *_others: Shape) -> int:
    """Queries by keys, then weights by values; key and value may have fewer heads."""
    batch, heads, queries, width = query
    keys, value_width = _keys(query, key, value)
    return 2 * batch * heads * queries * keys * (width + value_width)


def _attention_backward(grad: Shape, query: Shape, key: Shape, value: Shape, *_others: Shape) -> int:
    batch, heads, queries, width = query
    keys, value_width = _keys(query, key, value)
    if list(grad) != [batch, heads, queries, value_width]:
        raise ValueError
    return 2 * batch * heads * queries * keys * (3 * width + 2 * value_width)


def _keys(query: Shape, key: Shape, value: Shape) -> tuple[int, int]:
    batch, heads, _, width = query
    key_batch, key_heads, keys, key_width = key
    value_batch, value_heads, values, value_width = value
    fit = batch == key_batch == value_batch and width == key_width and keys == values
    if not fit or key_heads != value_heads or not key_heads or heads % key_heads:
        raise ValueError
    return keys, value_width


def _unknown(*_sizes: Shape) -> int:
    """FLOPs that depend on strides, masks, lengths, flags or outputs, which the text does not have."""
    return -1


_ATTENTIONS = ("efficient", "flash", "cudnn")
#: Operators of ``nn.MultiheadAttention`` and ``nn.TransformerEncoderLayer`` in inference, in place of all others. No
#: size shows whether attention returns its weights, nor whether torch would fuse it without these.
FUSED = (FUSED_ATTENTION, "aten::_transformer_encoder_layer_fwd")
#: Registered, with FLOPs that their sizes do not give.
_WITHOUT_SIZES = (
    *("convolution", "_convolution", "cudnn_convolution", "convolution_overrideable", "_slow_conv2d_forward"),
    *("convolution_backward", "_flash_attention_forward", "_efficient_attention_forward", "_flash_attention_backward"),
    "_efficient_attention_backward",
)
_REGISTRY: dict[str, Callable[..., int]] = {
    **dict.fromkeys(CPU_ATTENTIONS, lambda *_: 0),
    **dict.fromkeys(FUSED, _unknown),
    "aten::mm": _product,
    "aten::bmm": _product,
    "aten::_scaled_mm": _product,
    "aten::addmm": lambda _to, *factors: _product(*factors),
    "aten::baddbmm": lambda _to, *factors: _product(*factors),
    **{f"aten::{name}": _unknown for name in _WITHOUT_SIZES},
    **{f"aten::_scaled_dot_product_{kind}_attention": _attention for kind in _ATTENTIONS},
    **{f"aten::_scaled_dot_product_{kind}_attention_backward": _attention_backward for kind in _ATTENTIONS},
}

"""FLOPs of an operator from the sizes of its arguments, as ``torch.utils.flop_counter`` registers them (torch 2.13).

Texts are those of ``torch.autograd.profiler.emit_nvtx``: ``aten::mm, sizes = [[2, 4], [4, 8]]``; arguments that are not
tensors have no sizes.
"""

from __future__ import annotations

import json
import re
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from tracekit.flops.kernels import CPU_ATTENTIONS, operator_kind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracekit.flops.base import Shape

_FORM = re.compile(r"(?P<name>[^,]+)(, sizes = (?P<sizes>\[[\[\]\d, ]*\]))?")
_MOST_CHARACTERS = 8_192
_LARGEST = 2**62


class Operator(NamedTuple):
    """An operator, as the text of its range describes it.

    Attributes:
        registered: Whether ``flop_counter`` counts it, with all operators that it calls.
        flops: Its FLOPs; -1 where its sizes do not tell them, 0 where it has no formula.
        harmless: Whether it certainly multiplies no matrices.
    """

    registered: bool
    flops: int
    harmless: bool


def operator(text: str) -> Operator:
    """Reads the text of a range, without the sequence number of the call."""
    match = _FORM.fullmatch(text) if len(text) <= _MOST_CHARACTERS else None
    name = match["name"] if match else text.partition(",")[0]
    if name in _REGISTRY:
        flops = _flops(name, _sizes(match["sizes"] if match else None))
        return Operator(registered=True, flops=flops, harmless=False)
    return Operator(registered=False, flops=0, harmless=operator_kind(name).harmless)


def _sizes(text: str | None) -> list[Shape] | None:
    """Dimensions of every argument."""
    try:
        sizes = json.loads(text or "null")
    except (ValueError, RecursionError):
        return None
    return sizes if isinstance(sizes, list) and all(isinstance(shape, list) for shape in sizes) else None


def _flops(name: str, sizes: Sequence[Shape] | None) -> int:
    if sizes is None:
        return -1
    try:
        flops = _REGISTRY[name](*sizes)
    except (TypeError, ValueError):
        return -1
    return flops if 0 <= flops < _LARGEST else -1


def _product(left: Shape, right: Shape, *_others: Shape) -> int:
    """``[…, m, k] @ […, k, n]``."""
    *batch, rows, inner = left
    *same, shared, columns = right
    if batch != same or inner != shared:
        raise ValueError
    return 2 * prod(batch) * rows * inner * columns


def _product_added(_to: Shape, left: Shape, right: Shape, *_others: Shape) -> int:
    return _product(left, right)


def _attention(query: Shape, key: Shape, value: Shape, *_others: Shape) -> int:
    """Queries by keys, then weights by values; key and value may have fewer heads."""
    batch, heads, queries, width = query
    keys, value_width = _keys(query, key, value)
    return 2 * batch * heads * queries * keys * (width + value_width)


def _attention_backward(grad: Shape, query: Shape, key: Shape, value: Shape, *_others: Shape) -> int:
    """The scores again, then the gradients of the two products."""
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
    """FLOPs that depend on strides, masks, lengths or outputs, which the text does not have."""
    return -1


def _not_counted(*_sizes: Shape) -> int:
    """FLOPs that ``flop_counter`` does not count."""
    return 0


_ATTENTIONS = ("efficient", "flash", "cudnn")
_REGISTRY: dict[str, Callable[..., int]] = {
    **dict.fromkeys(CPU_ATTENTIONS, _not_counted),
    "aten::mm": _product,
    "aten::bmm": _product,
    "aten::_scaled_mm": _product,
    "aten::addmm": _product_added,
    "aten::baddbmm": _product_added,
    **dict.fromkeys(
        (
            "aten::convolution",
            "aten::_convolution",
            "aten::cudnn_convolution",
            "aten::convolution_overrideable",
            "aten::_slow_conv2d_forward",
            "aten::convolution_backward",
            "aten::_flash_attention_forward",
            "aten::_efficient_attention_forward",
            "aten::_flash_attention_backward",
            "aten::_efficient_attention_backward",
        ),
        _unknown,
    ),
    **{f"aten::_scaled_dot_product_{kind}_attention": _attention for kind in _ATTENTIONS},
    **{f"aten::_scaled_dot_product_{kind}_attention_backward": _attention_backward for kind in _ATTENTIONS},
}

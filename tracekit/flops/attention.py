"""FLOPs of ``torch.nn.MultiheadAttention``: its projections, which are not modules, and the attention between them.

Attention of other classes depends on the number of earlier tokens in the KV cache, which no marker tells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tracekit.flops.base import Unknown, matched, whole

if TYPE_CHECKING:
    from tracekit.flops.base import Call, Shape

_NAMES = ("query", "key", "value")
_BATCHED = 3
_UNCLEAR = Unknown("a MultiheadAttention whose shapes do not fit its weights, or are not known")


class _Sizes(NamedTuple):
    """Sizes of its three tensors."""

    batch: int
    queries: int
    keys: int
    width: int
    key_width: int
    value_width: int


def flops(call: Call) -> int | Unknown | None:
    """Three projections, queries by keys, weights by values, and the output's projection.

    On a CPU, the fused operator in the middle is not counted, as in ``flop_counter`` up to torch 2.13.
    """
    if call.class_name != "MultiheadAttention":
        return None
    if (sizes := _sizes(call)) is None or not _fit(call, sizes):
        return _UNCLEAR
    batch, queries, keys, width, key_width, value_width = sizes
    projected = width * (2 * queries * width + keys * (key_width + value_width))
    attended = keys + ("bias_k" in call.params) + bool(call.settings.get("add_zero_attn"))
    between = 0 if _is_left_out(call) else 2 * queries * attended * width
    return 2 * batch * (projected + between)


def _is_left_out(call: Call) -> bool:
    """Whether torch does not count the attention itself, since it is fused: it is not where weights are returned."""
    return call.cpu_attention and len(call.outputs or ()) < len(("output", "weights"))


def _sizes(call: Call) -> _Sizes | None:
    """The sizes, if there are three tensors and they agree."""
    tensors = list(call.inputs or ())[:_BATCHED]
    for name in _NAMES[len(tensors) :]:
        tensors += call.kwargs.get(name, ())
    if len(tensors) != _BATCHED or len({len(shape) for shape in tensors}) != 1:
        return None
    shapes = [shape for shape in (_batch_first(call, tensor) for tensor in tensors) if shape is not None]
    if len(shapes) != _BATCHED:
        return None
    query, key, value = shapes
    if not matched(key[:2], value[:2]) or query[0] != key[0]:
        return None
    return _Sizes(query[0], query[1], key[1], query[2], key[2], value[2])


def _batch_first(call: Call, shape: Shape) -> Shape | None:
    """The shape as ``[batch, length, width]``; None if it cannot be known."""
    if len(shape) == _BATCHED - 1:
        return (1, *shape)
    batch_first = call.settings.get("batch_first")
    if len(shape) != _BATCHED or (whole(batch_first) is None and not isinstance(batch_first, bool)):
        return None
    return shape if batch_first else (shape[1], shape[0], shape[2])


def _fit(call: Call, sizes: _Sizes) -> bool:
    """Whether the weights fit such tensors: classes of other packages have the same name."""
    weights, width = call.params, sizes.width
    if "in_proj_weight" in weights:
        same = width == sizes.key_width == sizes.value_width
        return same and matched(weights["in_proj_weight"], (3 * width, width))
    widths = zip(_NAMES, (width, sizes.key_width, sizes.value_width), strict=True)
    return all(matched(weights.get(f"{name[0]}_proj_weight", ()), (width, given)) for name, given in widths)

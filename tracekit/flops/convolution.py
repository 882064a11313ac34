"""Convolutions and transposed convolutions, grouped, dilated, batched or not."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from tracekit.flops.base import Unknown, whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.flops.base import Call, Shape

_SPATIAL = {f"{name}{n}d": n for name in ("Conv", "ConvTranspose") for n in (1, 2, 3)}
_UNCLEAR = Unknown("a convolution whose shapes do not fit its weight, or are not told")


def flops(call: Call) -> int | Unknown | None:
    """``2 * positions * weight``: positions of the output or, transposed, of the input."""
    if (spatial := _SPATIAL.get(call.class_name or "")) is None:
        return None
    weight = call.params.get("weight", ())
    # The second tensor that a transposed one may be given is none: it is the size of its output.
    if len(weight) != spatial + 2 or len(call.given) != 1:
        return _UNCLEAR
    given = call.given[0]
    if len(given) == spatial + 1:
        given = (1, *given)
    if len(given) != spatial + 2:
        return _UNCLEAR
    transposed = (call.class_name or "").startswith("ConvTranspose")
    positions = (given[2:] if given[1] == weight[0] else None) if transposed else _positions(call, weight, given)
    return _UNCLEAR if positions is None else 2 * given[0] * prod(positions) * prod(weight)


def _positions(call: Call, weight: Shape, given: Shape) -> Shape | None:
    """The spatial part of the output."""
    if not weight[1] or given[1] % weight[1]:
        return None
    if not call.outputs:
        return _worked_out(call, weight[2:], given[2:])
    returned = call.outputs[0]
    channels, *positions = returned[-len(given) + 1 :]
    told = len(call.outputs) == 1 and len(returned) >= len(given) - 1 and channels == weight[0]
    return positions if told else None


def _worked_out(call: Call, filter_: Shape, given: Shape) -> Shape | None:
    """The same where no marker tells the output."""
    padding = call.settings.get("padding")
    if padding == "same":
        return given
    sides = [0] * len(given) if padding == "valid" else _each(padding, len(given))
    stride, dilation = (_each(call.settings.get(name), len(given)) for name in ("stride", "dilation"))
    if sides is None or stride is None or dilation is None or not all(stride):
        return None
    found = [
        (size + 2 * side - apart * (width - 1) - 1) // step + 1
        for size, side, apart, width, step in zip(given, sides, dilation, filter_, stride, strict=True)
    ]
    return found if min(found) >= 0 else None


def _each(item: object, dimensions: int) -> Sequence[int] | None:
    """A setting of every dimension."""
    numbers = [whole(one) for one in item] if isinstance(item, list) else []
    found = [number for number in numbers if number is not None and number >= 0]
    return found if len(found) == len(numbers) == dimensions else None

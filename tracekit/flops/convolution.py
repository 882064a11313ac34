"""FLOPs of convolutions and transposed convolutions, grouped, dilated, batched or not."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from tracekit.flops.base import Unknown, whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.flops.base import Call, Shape

_SPATIAL = {f"{name}{n}d": n for name in ("Conv", "ConvTranspose") for n in (1, 2, 3)}
_UNCLEAR = Unknown("a convolution whose shapes do not fit its weight, or are not known")


def flops(call: Call) -> int | Unknown | None:
    """``2 * positions * weight``: positions of the output or, transposed, of the input."""
    if (spatial := _SPATIAL.get(call.class_name or "")) is None:
        return None
    weight = call.params.get("weight", ())
    # A transposed convolution may be given the size of its output, which is no tensor.
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
    """The spatial part of the output, or None."""
    if not weight[1] or given[1] % weight[1]:
        return None
    if not call.outputs:
        return _computed_positions(call, weight[2:], given[2:])
    returned = call.outputs[0]
    channels, *positions = returned[-len(given) + 1 :]
    fits = len(call.outputs) == 1 and len(returned) >= len(given) - 1 and channels == weight[0]
    return positions if fits else None


def _computed_positions(call: Call, filter_: Shape, given: Shape) -> Shape | None:
    """The spatial part of the output from padding, stride and dilation, where no marker tells the output."""
    padding = call.settings.get("padding")
    if padding == "same":
        return given
    sides = [0] * len(given) if padding == "valid" else _each(padding, len(given))
    stride, dilation = (_each(call.settings.get(name), len(given)) for name in ("stride", "dilation"))
    if sides is None or stride is None or dilation is None or not all(stride):
        return None
    positions = [
        (size + 2 * side - apart * (width - 1) - 1) // step + 1
        for size, side, apart, width, step in zip(given, sides, dilation, filter_, stride, strict=True)
    ]
    return positions if min(positions) >= 0 else None


def _each(setting: object, dimensions: int) -> Sequence[int] | None:
    """A setting of every dimension; None unless it is a list of so many numbers."""
    items = setting if isinstance(setting, list) else []
    numbers = [number for number in map(whole, items) if number is not None and number >= 0]
    return numbers if len(numbers) == len(items) == dimensions else None

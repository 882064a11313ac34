"""FLOPs of linear layers: a matrix product of the last dimension with a weight.

They are known by their class or, where markers have none (vLLM, SGLang), by shapes that leave no doubt. An embedding
has a weight of two dimensions, too, but its output has one dimension more than its input.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from tracekit.flops.base import Unknown, matched

if TYPE_CHECKING:
    from tracekit.flops.base import Call, Shape

#: Classes of ``torch.nn`` and serving engines (vLLM, SGLang); ``Conv1D`` of Transformers is a Linear despite its name.
_CLASSES = frozenset(
    {
        "Linear",
        "NonDynamicallyQuantizableLinear",
        "LazyLinear",
        "Conv1D",
        "Linear4bit",
        "Linear8bitLt",
        "ColumnParallelLinear",
        "MergedColumnParallelLinear",
        "MergedReplicatedLinear",
        "QKVParallelLinear",
        "ReplicatedLinear",
        "RowParallelLinear",
    }
)
#: Packed weights: their dimensions are not those of the layer.
_PACKED = frozenset({"qweight", "weight_packed", "w_q"})
#: Parameters beside a weight that take no part in the product, by parts of their names.
_BESIDE = ("bias", "scale", "zero", "zp", "g_idx", "shape", "perm", "absmax")

_DIMENSIONS = 2
_UNCLEAR = Unknown("a Linear whose shapes do not fit its weight, or are not known")


def flops(call: Call) -> int | Unknown | None:
    """``2 * rows * in * out``."""
    if call.class_name is not None and call.class_name not in _CLASSES:
        return None
    unclear = None if call.class_name is None else _UNCLEAR
    if (weight := _weight(call)) is None or len(call.given) != 1:
        return unclear
    given, returned = call.given[0], _result(call)
    if not given:
        return unclear
    out = _width(call, weight, given, returned)
    return unclear if out is None else 2 * prod(given) * out


def is_packed(call: Call) -> bool:
    """Whether its weight is quantised, so that the dtype of the product is not that of the weight."""
    return not _PACKED.isdisjoint(call.params) or call.class_name in ("Linear4bit", "Linear8bitLt")


def _weight(call: Call) -> Shape | None:
    """The only parameter that can be its weight, or None."""
    large = [name for name in call.params if not any(word in name for word in _BESIDE)]
    return call.params[large[0]] if large == ["weight"] or set(large) & _PACKED else None


def _result(call: Call) -> Shape | None:
    """The shape of its result, or None; engines may also return a bias that is still to be added."""
    if not call.outputs or any(len(shape) != 1 for shape in call.outputs[1:]):
        return None
    return call.outputs[0]


def _width(call: Call, weight: Shape, given: Shape, returned: Shape | None) -> int | None:
    """The last dimension of the result, if weight, input and result agree on it."""
    if returned is None:
        # The weight of torch.nn.Linear is [out, in]; other classes may have it the other way round.
        plain = call.class_name == "Linear" and len(weight) == _DIMENSIONS and not is_packed(call)
        return weight[0] if plain and weight[1] == given[-1] else None
    if len(returned) != len(given) or not matched(returned[:-1], given[:-1]):
        return None
    fits = len(weight) == _DIMENSIONS and sorted(weight) == sorted((given[-1], returned[-1]))
    return returned[-1] if fits or is_packed(call) else None

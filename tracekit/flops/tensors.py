"""Dtypes and bytes of the tensors of a call: the least that it must read and write, each tensor once."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

from tracekit.flops.base import is_known
from tracekit.flops.dtypes import computed_in
from tracekit.flops.linear import is_packed
from tracekit.flops.without_products import is_embedding

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracekit.flops.base import Call, Shape

#: Bytes of an element, by torch's names of dtypes.
_BYTES = {
    "float64": 8,
    "double": 8,
    "float32": 4,
    "float": 4,
    "float16": 2,
    "half": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "float8": 1,
    "tfloat32": 4,
    "int64": 8,
    "long": 8,
    "int32": 4,
    "int": 4,
    "int16": 2,
    "short": 2,
    "int8": 1,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "bool": 1,
    "complex64": 8,
    "complex128": 16,
}


class Tensors(NamedTuple):
    """Dtypes of the tensors of a call, in the order of their shapes.

    Attributes:
        params: Dtypes of its parameters.
        inputs: Dtype and device of positional tensors, such as ``bfloat16 cuda:0``.
        outputs: The same of results.
        kwargs: The same of keyword tensors.
    """

    params: Sequence[str | None]
    inputs: Sequence[str] | None
    outputs: Sequence[str] | None
    kwargs: Sequence[str]

    @property
    def untold(self) -> bool:
        """Whether markers record no dtype at all."""
        return not (any(self.params) or self.inputs or self.outputs or any(self.kwargs))

    def all_of(self, dtype: str, call: Call) -> Tensors:
        """The tensors of a call, all of one dtype."""
        kwargs = sum(map(len, call.kwargs.values()))
        counts = len(call.params), len(call.inputs or ()), len(call.outputs or ()), kwargs
        params, inputs, outputs, named = ([dtype] * count for count in counts)
        return Tensors(params, inputs, outputs, named)

    def computed_in(self, call: Call) -> str | None:
        """The dtype of the call's products."""
        if is_packed(call):
            return None
        given = [*(self.inputs or ()), *self.kwargs]
        dtypes = [*map(dtype_of, given), *(dtype for dtype in self.params if dtype)]
        return computed_in(dtypes, map(dtype_of, self.outputs or ()))


class Bytes(NamedTuple):
    """Bytes of the tensors of a call; None where a shape or a dtype is not known.

    Attributes:
        params: Its own parameters.
        inputs: Its inputs.
        outputs: Its results.
        least: All that it must move if it reads and writes each tensor once.
    """

    params: int | None
    inputs: int | None
    outputs: int | None
    least: int | None


def dtype_of(type_: str) -> str:
    """The dtype without the device: ``bfloat16`` for ``bfloat16 cuda:0``."""
    return type_.partition(" ")[0]


def bytes_of(call: Call, tensors: Tensors) -> Bytes:
    """Bytes of the tensors of a call.

    An embedding reads one row per index, at most its whole weight.
    """
    params = _sum(map(_size, call.params.values(), tensors.params))
    positional = _sum_of_tensors(call.inputs, tensors.inputs)
    named = _sum_of_tensors([shape for shapes in call.kwargs.values() for shape in shapes], tensors.kwargs)
    inputs = _sum((positional, named))
    outputs = _sum_of_tensors(call.outputs, tensors.outputs)
    read = _rows_read(call, params) if is_embedding(call) else params
    return Bytes(params, inputs, outputs, _sum((read, inputs, outputs)))


def param_bytes(params: Iterable[tuple[Shape, str | None]]) -> int | None:
    """Bytes of parameters, given by shape and dtype; None where one is not known."""
    return _sum(_size(shape, dtype) for shape, dtype in params)


def _rows_read(call: Call, weight: int | None) -> int | None:
    """Bytes of the rows that an embedding reads; ``weight`` is the size of all rows."""
    shape = call.params.get("weight", ())
    if weight is None or len(call.params) != 1 or len(shape) != 2 or not call.inputs:  # noqa: PLR2004 - rows, columns
        return None
    if not is_known(call.inputs[0]):
        return None
    return weight // max(shape[0], 1) * min(prod(call.inputs[0]), shape[0])


def _sum_of_tensors(shapes: Sequence[Shape] | None, types: Sequence[str] | None) -> int | None:
    """Bytes of some tensors; None unless every shape has a type."""
    if shapes is None or len(shapes) != len(types or ()):
        return None
    return _sum(map(_size, shapes, map(dtype_of, types or ())))


def _size(shape: Shape, dtype: str | None) -> int | None:
    width = _BYTES.get(dtype or "")
    return None if width is None or not is_known(shape) else prod(shape) * width


def _sum(sizes: Iterable[int | None]) -> int | None:
    """The sum of sizes; None if one of them is not known, or the sum is absurd."""
    total = 0
    for size in sizes:
        if size is None:
            return None
        total += size
    return total if total < 2**62 else None

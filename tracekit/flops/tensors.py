"""Dtypes and bytes of a call's tensors: what it must read and write at least, each tensor once."""

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
    """What is told of the dtypes of a call's tensors, in the order of their shapes.

    Attributes:
        params: Those of its parameters.
        inputs: Dtype and device of positional tensors: ``bfloat16 cuda:0``.
        outputs: The same of results.
        kwargs: The same of keyword tensors.
    """

    params: Sequence[str | None]
    inputs: Sequence[str] | None
    outputs: Sequence[str] | None
    kwargs: Sequence[str]

    @property
    def untold(self) -> bool:
        """Whether nothing is told of them."""
        return not (any(self.params) or self.inputs or self.outputs or any(self.kwargs))

    def all_of(self, dtype: str, call: Call) -> Tensors:
        """The same, all of one dtype."""
        kwargs = sum(map(len, call.kwargs.values()))
        counts = len(call.params), len(call.inputs or ()), len(call.outputs or ()), kwargs
        params, inputs, outputs, named = ([dtype] * count for count in counts)
        return Tensors(params, inputs, outputs, named)

    def computed_in(self, call: Call) -> str | None:
        """The dtype of the call's products."""
        if is_packed(call):
            return None
        given = [*(self.inputs or ()), *self.kwargs]
        dtypes = [*map(dtype_of, given), *(one for one in self.params if one)]
        return computed_in(dtypes, map(dtype_of, self.outputs or ()))


class Bytes(NamedTuple):
    """Bytes of a call's tensors; None where a shape or a dtype is not told.

    Attributes:
        params: Its own parameters.
        inputs: What goes in.
        outputs: What comes out.
        least: What it must move if it reads and writes each tensor once.
    """

    params: int | None
    inputs: int | None
    outputs: int | None
    least: int | None


def dtype_of(type_: str) -> str:
    """``bfloat16`` of ``bfloat16 cuda:0``."""
    return type_.partition(" ")[0]


def bytes_of(call: Call, tensors: Tensors) -> Bytes:
    """Bytes of the tensors of a call.

    An embedding reads a row for every index, at most its whole weight.
    """
    params = _together(map(_size, call.params.values(), tensors.params))
    positional = _of_tensors(call.inputs, tensors.inputs)
    named = _of_tensors([one for its in call.kwargs.values() for one in its], tensors.kwargs)
    inputs = _together((positional, named))
    outputs = _of_tensors(call.outputs, tensors.outputs)
    read = _rows_read(call, params) if is_embedding(call) else params
    return Bytes(params, inputs, outputs, _together((read, inputs, outputs)))


def param_bytes(params: Iterable[tuple[Shape, str | None]]) -> int | None:
    """Bytes of parameters by shape and dtype."""
    return _together(_size(shape, dtype) for shape, dtype in params)


def _rows_read(call: Call, weight: int | None) -> int | None:
    shape = call.params.get("weight", ())
    if weight is None or len(call.params) != 1 or len(shape) != 2 or not call.inputs:  # noqa: PLR2004 - rows, columns
        return None
    if not is_known(call.inputs[0]):
        return None
    return weight // max(shape[0], 1) * min(prod(call.inputs[0]), shape[0])


def _of_tensors(shapes: Sequence[Shape] | None, types: Sequence[str] | None) -> int | None:
    """Bytes of some tensors; their types stand in the same order, and none are told of none."""
    if shapes is None or len(shapes) != len(types or ()):
        return None
    return _together(map(_size, shapes, map(dtype_of, types or ())))


def _size(shape: Shape, dtype: str | None) -> int | None:
    width = _BYTES.get(dtype or "")
    return None if width is None or not is_known(shape) else prod(shape) * width


def _together(sizes: Iterable[int | None]) -> int | None:
    """Their sum; None if one of them is not known."""
    known = list(sizes)
    found = [one for one in known if one is not None]
    return sum(found) if len(found) == len(known) and sum(found) < 2**62 else None

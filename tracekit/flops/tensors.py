"""Dtypes and bytes of the tensors of a call: the least that it must read and write, each tensor once."""

from collections.abc import Iterable, Sequence
from math import prod
from typing import NamedTuple

from tracekit.flops.layers import Call, Shape, is_embedding, is_known, is_packed

_HALF = frozenset({"float16", "bfloat16"})
_NAMES = {
    "fp64": "float64",
    "double": "float64",
    "fp32": "float32",
    "float": "float32",
    "tf32": "tfloat32",
    "fp16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "fp8": "float8",
}
#: Dtypes in which GPUs multiply.
MULTIPLIED = ("float64", "float32", "tfloat32", "float16", "bfloat16", "float8", "int8")


def plain(dtype: str) -> str:
    """One name for all spellings of a dtype: ``float8`` for ``float8_e4m3fn``, ``bfloat16`` for ``bf16``."""
    short = dtype.strip().lower().removeprefix("torch.")
    return "float8" if short.startswith("float8_") else _NAMES.get(short, short)


def computed_in(given: Iterable[str], returned: Iterable[str]) -> str | None:
    """The dtype of the products, from those of inputs and parameters, and of results; None where these leave a doubt.

    Under autocast, float32 goes in and half precision comes out: the product had the dtype of the result. A layer whose
    weights and inputs differ otherwise may convert either.
    """
    before = {plain(dtype) for dtype in given} & {*MULTIPLIED, "uint8"}
    after = {plain(dtype) for dtype in returned} & {*MULTIPLIED}
    if len(both := before | after) == 1:
        (only,) = both
        return only if only in MULTIPLIED else None
    return next(iter(after)) if len(after) == 1 and after <= _HALF and before <= {"float32", *after} else None


#: Bytes of an element, by torch's names of dtypes.
_BYTES = {
    name: size
    for size, names in (
        (16, "complex128"),
        (8, "float64 double int64 long uint64 complex64"),
        (4, "float32 float tfloat32 int32 int uint32"),
        (2, "float16 half bfloat16 int16 short uint16"),
        (1, "float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu float8 int8 uint8 bool"),
    )
    for name in names.split()
}


class Tensors(NamedTuple):
    """Dtypes of a call's tensors, in the order of their shapes; of inputs with the device: ``bfloat16 cuda:0``."""

    params: Sequence[str | None]
    inputs: Sequence[str] | None
    outputs: Sequence[str] | None
    kwargs: Sequence[str]

    @property
    def has_no_dtypes(self) -> bool:
        """Whether markers record no dtype at all."""
        return not (any(self.params) or self.inputs or self.outputs or any(self.kwargs))

    def all_of(self, dtype: str, call: Call) -> "Tensors":
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


def dtype_of(type_: str) -> str:
    """The dtype without the device: ``bfloat16`` for ``bfloat16 cuda:0``."""
    return type_.partition(" ")[0]


def bytes_of(call: Call, tensors: Tensors) -> tuple[int | None, int | None, int | None, int | None]:
    """Bytes of a call's parameters, inputs and outputs, and the least that it must move; None where not known.

    An embedding reads one row per index, at most its whole weight.
    """
    params = _sum(map(_size, call.params.values(), tensors.params))
    positional = _sum_of_tensors(call.inputs, tensors.inputs)
    named = _sum_of_tensors([shape for shapes in call.kwargs.values() for shape in shapes], tensors.kwargs)
    inputs = _sum((positional, named))
    outputs = _sum_of_tensors(call.outputs, tensors.outputs)
    read = params
    if is_embedding(call) and params is not None:
        shape, indices = call.params.get("weight", ()), call.inputs[0] if call.inputs else None
        fits = len(call.params) == 1 and len(shape) == 2 and is_known(indices)  # noqa: PLR2004 - rows, columns
        read = params // max(shape[0], 1) * min(prod(indices or ()), shape[0]) if fits else None
    return params, inputs, outputs, _sum((read, inputs, outputs))


def param_bytes(params: Iterable[tuple[Shape, str | None]]) -> int | None:
    """Bytes of parameters, given by shape and dtype; None where one is not known."""
    return _sum(_size(shape, dtype) for shape, dtype in params)


def _sum_of_tensors(shapes: Sequence[Shape] | None, types: Sequence[str] | None) -> int | None:
    if shapes is None or len(shapes) != len(types or ()):
        return None
    return _sum(map(_size, shapes, map(dtype_of, types or ())))


def _size(shape: Shape, dtype: str | None) -> int | None:
    width = _BYTES.get(dtype or "")
    return None if width is None or not is_known(shape) else prod(shape) * width


def _sum(sizes: Iterable[int | None]) -> int | None:
    total = 0
    for size in sizes:
        if size is None:
            return None
        total += size
    return total if total < 2**62 else None

"""The form of a call: the properties of its arguments for which code is compiled separately.

Guards are skipped, so the form alone selects the code. It consists of the number and types of the arguments, the values
of plain arguments, which tensors and containers are the same one, and for tensors everything except dynamic sizes and
values.
Arguments that it does not describe (objects that hold tensors, modules, very large containers) are opaque.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import types
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch

from tracekit.capture.compile.dimensions import DEFAULT, open_dimensions

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from tracekit.capture.compile.dimensions import Dimensions, ModelInputs

_TENSORS = (torch.Tensor, torch.nn.Parameter)
_VALUES = (bool, int, str, bytes, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
#: Containers whose tensors Dynamo sees as arguments of their own.
_CONTAINERS = (list, tuple, dict, collections.OrderedDict, torch.Size)
#: What forward may write to, as to a dataclass: it matters whether two arguments are the same one.
_WRITABLE = (list, dict, set, collections.deque, types.SimpleNamespace)
#: Values that are equal only to themselves, for as long as the process runs.
_SINGLES = (
    *(enum.Enum, type, types.BuiltinFunctionType, types.CodeType),
    *(torch._ops.OpOverload, torch._ops.OpOverloadPacket),
)
#: What other values consist of besides their attributes.
_PARTS: dict[type, tuple[str, ...]] = {
    slice: ("start", "stop", "step"),
    range: ("start", "stop", "step"),
    types.MethodType: ("__func__", "__self__"),
    functools.partial: ("func", "args", "keywords"),
    types.SimpleNamespace: (),
}
#: Containers with more items than this are opaque, because their form is computed at every call.
_MOST_ITEMS = 1_000


class OpaqueError(Exception):
    """A value that the form does not describe; the message is its type."""


def form(call: ModelInputs, dimensions: Dimensions) -> Hashable:
    """The form of a call. It includes every size that is not dynamic.

    Raises:
        OpaqueError: If an argument holds something that the form does not describe.
    """
    held: list[object] = []
    args = tuple(_argument(name, value, dims, held) for name, dims, value in dimensions.by_argument(call))
    return len(call.args), tuple(call.kwargs), args, _same(held)


def tensor_form(value: torch.Tensor) -> tuple[Hashable, ...]:
    """The form of a tensor whose first dimension is dynamic; cheap enough to compute at every call."""
    dtype = value.dtype
    return (
        type(value),
        dtype,
        value.device,
        value.dim(),
        value.shape[1:],
        value.is_contiguous() or _layout(value, DEFAULT),
        value.requires_grad,
        value.is_neg(),
        dtype.is_complex and value.is_conj(),
    )


def _argument(name: str, value: object, dims: tuple[int, ...], held: list[object]) -> Hashable:
    result: Hashable
    try:
        result = _form(value, dims, held)
    except OpaqueError as error:
        raise OpaqueError(f"argument {name} is or holds a {error}") from None
    except RecursionError:
        raise OpaqueError(f"argument {name} is or holds a container of itself") from None
    return result


def _form(value: object, dims: tuple[int, ...], held: list[object]) -> Any:  # noqa: ANN401 - hashable
    """The form of a value; ``held`` gets the tensors in it, and what else forward can write to."""
    kind = type(value)
    if isinstance(value, torch.Tensor):
        if kind not in _TENSORS or value.layout is not torch.strided or value.is_quantized:
            raise OpaqueError(f"{kind.__qualname__} of layout {value.layout}")
        held.append(value)
        return tensor_form(value) if dims == DEFAULT else (*tensor_form(value)[:4], *_shape(value, dims))
    if kind in _VALUES or isinstance(value, _SINGLES):
        return kind, value
    if isinstance(value, float | complex):
        return kind, repr(value)  # unlike the value itself, NaN's repr equals itself
    before = len(held)
    result = kind, *(_form(part, dims, held) for part in _parts(value))
    holds_tensors = any(isinstance(part, torch.Tensor) for part in held[before:])
    if holds_tensors and kind not in _CONTAINERS and not hasattr(value, "_fields"):
        raise OpaqueError(kind.__qualname__)
    if isinstance(value, _WRITABLE) or dataclasses.is_dataclass(value):
        held.append(value)
    return (kind, frozenset(result)) if isinstance(value, set | frozenset) else result


def _parts(value: object) -> Iterable[object]:
    """The values that a container, a function or an object consists of."""
    if isinstance(value, list | tuple | dict | set | frozenset | collections.deque):
        if len(value) > _MOST_ITEMS:
            raise OpaqueError(f"{type(value).__qualname__} of {len(value)} items")
        values = value.values() if isinstance(value, dict) else ()
        return chain(value, values, (getattr(value, "default_factory", None),), _attributes(value))
    for kind, names in _PARTS.items():
        if isinstance(value, kind):
            return chain((getattr(value, name) for name in names), _attributes(value))
    if isinstance(value, types.FunctionType):
        return _function_parts(value)
    if dataclasses.is_dataclass(value):
        slots = (getattr(value, field.name, None) for field in dataclasses.fields(value))
        return chain(slots, _attributes(value))
    raise OpaqueError(type(value).__qualname__)


def _function_parts(function: types.FunctionType) -> Iterable[object]:
    """The parts of a function; the same ones if it is defined again, as lambdas are at every call."""
    cells = (cell.cell_contents for cell in function.__closure__ or ())
    defaults = function.__defaults__, function.__kwdefaults__
    return chain((function.__code__, id(function.__globals__), defaults), cells, _attributes(function))


def _attributes(value: object) -> Iterable[object]:
    return chain.from_iterable(vars(value).items()) if hasattr(value, "__dict__") else ()


def _same(held: list[object]) -> tuple[int, ...]:
    """For each value, the index of the first that is the same one; empty if all are different."""
    keys = [id(value) for value in held]
    return () if len(set(keys)) == len(keys) else tuple(map(keys.index, keys))


def _shape(value: torch.Tensor, dims: tuple[int, ...]) -> tuple[Hashable, ...]:
    """What :func:`tensor_form` says of a tensor's shape and memory, for other dynamic dimensions."""
    dynamic = open_dimensions(value, dims)
    sizes = tuple(None if dim in dynamic else size for dim, size in enumerate(value.shape))
    return sizes, value.is_contiguous() or _layout(value, dims), *tensor_form(value)[6:]


def _layout(value: torch.Tensor, dims: tuple[int, ...]) -> tuple[Hashable, ...]:
    """How a tensor lies in memory that is not contiguous.

    A tensor without gaps is described by the order of its dimensions, because its strides may follow a dynamic size.
    """
    strides, shape = value.stride(), value.shape
    order = sorted(range(value.dim()), key=strides.__getitem__)
    dense, step = min(shape) > 1, 1
    for dim in order:
        dense = dense and strides[dim] == step
        step *= shape[dim]
    return tuple(order) if dense else (strides, None if open_dimensions(value, dims) else shape)

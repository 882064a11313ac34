"""The form of a call: what of its arguments compiled code was made for and does not look at again.

Guards are skipped, so a call finds its code by its form: which arguments there are, their types, what the plain values
among them are, and of tensors everything but the sizes that are dynamic.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from tracekit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

_PLAIN = (bool, int, str, bytes, type(None), torch.dtype, torch.device)
#: Dimensions that are dynamic where nothing is said of an argument.
_DEFAULT = (0,)
_MARKS = ("_dynamo_dynamic_indices", "_dynamo_dynamic_range", "_dynamo_hint_overrides")
_MORE_MARKS = ("_specialize_on", "_has_dynamo_dim_marking", "_dynamo_static_indices")


class ModelInputs(NamedTuple):
    """The arguments of one call."""

    args: tuple[object, ...]
    kwargs: Mapping[str, object]


class Dimensions:
    """Which dimensions of which argument are dynamic."""

    def __init__(self, forward: Callable[..., object], said: Mapping[str, Sequence[int]] | None) -> None:
        """Reads a setting.

        Raises:
            UsageError: It names arguments that there are not.
        """
        self._fixed: set[tuple[str, int]] = set()
        self._static = False
        self._said = None if said is None else {n: tuple(dims) for n, dims in said.items()}
        parameters = inspect.signature(forward).parameters
        kinds = {parameter.kind for parameter in parameters.values()}
        self._names = [
            name
            for name, parameter in parameters.items()
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]
        unknown = sorted(set(said or ()) - set(parameters))
        if unknown and inspect.Parameter.VAR_KEYWORD not in kinds:
            raise UsageError(
                f"dynamic_dims names {', '.join(unknown)}, but forward takes {', '.join(parameters) or 'nothing'}"
            )

    def of(self, name: str) -> tuple[int, ...]:
        """The dynamic dimensions of the tensors in an argument."""
        if self._static:
            return ()
        dims = _DEFAULT if self._said is None else self._said.get(name, ())
        return tuple(dim for dim in dims if (name, dim) not in self._fixed)

    def name(self, index: int) -> str:
        """The name of an argument that is given by position."""
        return self._names[index] if index < len(self._names) else ""

    def named(self, call: ModelInputs) -> Iterator[tuple[tuple[int, ...], object]]:
        """Every argument of a call with its dynamic dimensions."""
        for index, value in enumerate(call.args):
            yield self.of(self.name(index)), value
        for name, value in call.kwargs.items():
            yield self.of(name), value

    def without(self, fixed: Iterable[tuple[str, int]]) -> Dimensions:
        """The same without dimensions of arguments that the model fixes; without any if none is named."""
        narrower = copy.copy(self)
        narrower._fixed = self._fixed | set(fixed)
        narrower._static = self._static or narrower._fixed == self._fixed
        return narrower

    @property
    def default(self) -> bool:
        """Whether the first dimension is dynamic everywhere."""
        return self.unsaid and not self._fixed and not self._static

    @property
    def unsaid(self) -> bool:
        """Whether nobody said which dimensions are dynamic."""
        return self._said is None


def form(call: ModelInputs, dimensions: Dimensions) -> Hashable:
    """The form of a call: every size belongs to it that is not dynamic."""
    args = tuple(_form(value, dims) for dims, value in dimensions.named(call))
    return (len(call.args), tuple(call.kwargs), args)


def _form(value: object, dims: tuple[int, ...]) -> Any:  # noqa: ANN401 - types are hashable, says only mypy not
    kind = type(value)
    if isinstance(value, torch.Tensor):
        return tensor_form(value) if dims == _DEFAULT else (*_other(value), _sizes(value, dims))
    if kind in _PLAIN:
        return kind, value
    if isinstance(value, float | complex):
        return kind, repr(value)  # a NaN is equal to itself here
    if isinstance(value, list | tuple):
        return kind, *(_form(item, dims) for item in value)
    if isinstance(value, dict):
        return kind, *((key, _form(item, dims)) for key, item in value.items())
    return kind


def tensor_form(value: torch.Tensor) -> tuple[Hashable, ...]:
    """The form of a tensor whose first dimension is dynamic: what a fast path may ask for at every call."""
    return (
        type(value),
        value.dtype,
        value.shape[1:],
        value.is_contiguous(),
        value.requires_grad,
    )


def _other(value: torch.Tensor) -> tuple[Hashable, ...]:
    return type(value), value.dtype, value.is_contiguous(), value.requires_grad


def _sizes(value: torch.Tensor, dims: tuple[int, ...]) -> tuple[int | None, ...]:
    dynamic = {dim % value.dim() for dim in dims if -value.dim() <= dim < value.dim()}
    return tuple(None if dim in dynamic else size for dim, size in enumerate(value.shape))


def _tensors(call: ModelInputs, dimensions: Dimensions) -> Iterator[tuple[torch.Tensor, int]]:
    """Every tensor of a call with a dimension of it that is dynamic."""
    for dims, value in dimensions.named(call):
        for leaf in pytree.tree_leaves(value):
            if isinstance(leaf, torch.Tensor):
                yield from ((leaf, dim) for dim in dims if -leaf.dim() <= dim < leaf.dim())


@contextlib.contextmanager
def marked(call: ModelInputs, dimensions: Dimensions) -> Iterator[None]:
    """While entered, Dynamo sees the dynamic dimensions of a call's tensors as dynamic; the tensors do not change."""
    tensors = {id(tensor): tensor for tensor, _ in _tensors(call, dimensions)}
    before = {key: _marks(tensor) for key, tensor in tensors.items()}
    try:
        for tensor, dim in _tensors(call, dimensions):
            torch._dynamo.mark_dynamic(tensor, dim % tensor.dim())
        yield
    finally:
        for key, tensor in tensors.items():
            for name in _marks(tensor).keys() - before[key].keys():
                delattr(tensor, name)
            for name, value in before[key].items():
                setattr(tensor, name, value)


def _marks(tensor: torch.Tensor) -> dict[str, object]:
    said = vars(tensor)
    found = {name: said[name] for name in (*_MARKS, *_MORE_MARKS) if name in said}
    return {n: v.copy() if isinstance(v, set | dict) else v for n, v in found.items()}


def widened(call: ModelInputs, dimensions: Dimensions) -> ModelInputs | None:
    """A call like this one with two where a dynamic size is none or one, or None if no size is.

    Dynamo takes sizes of 0 and 1 for constants, so code traced with them would be wrong for all others.
    """
    tensors = list(_tensors(call, dimensions))
    if all(tensor.shape[dim] > 1 for tensor, dim in tensors):
        return None
    wide: dict[int, torch.Tensor] = {}
    for tensor, dim in tensors:
        wide[id(tensor)] = _of_two(wide.get(id(tensor), tensor), dim)
    args, kwargs = pytree.tree_map(lambda leaf: wide.get(id(leaf), leaf), (call.args, dict(call.kwargs)))
    return ModelInputs(args, kwargs)


def _of_two(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    if tensor.shape[dim] > 1:
        return tensor
    shape = list(tensor.shape)
    shape[dim] = 2
    with torch.no_grad():
        wide = tensor.new_zeros(shape) if 0 in tensor.shape else torch.cat([tensor, tensor], dim)
    return wide.detach().requires_grad_(tensor.requires_grad)

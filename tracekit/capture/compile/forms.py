"""The form of a call: the properties of its arguments for which code is compiled separately.

Guards are skipped, so the form alone selects the code. It consists of the number and types of the arguments, the values
of plain arguments, and for tensors everything except dynamic sizes and values.
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
#: The dynamic dimensions of tensors, unless ``dynamic_dims`` is set.
_DEFAULT = (0,)
_MARKS = ("_dynamo_dynamic_indices", "_dynamo_dynamic_range", "_dynamo_hint_overrides")
_MORE_MARKS = ("_specialize_on", "_has_dynamo_dim_marking", "_dynamo_static_indices")


class ModelInputs(NamedTuple):
    """The arguments of one call."""

    args: tuple[object, ...]
    kwargs: Mapping[str, object]


class Dimensions:
    """The dynamic dimensions of each argument."""

    def __init__(self, forward: Callable[..., object], dynamic_dims: Mapping[str, Sequence[int]] | None) -> None:
        """Reads the setting ``dynamic_dims``.

        Raises:
            UsageError: If it names arguments that forward does not take.
        """
        self._fixed: set[tuple[str, int]] = set()
        self._static = False
        self._by_argument = None if dynamic_dims is None else {n: tuple(dims) for n, dims in dynamic_dims.items()}
        parameters = inspect.signature(forward).parameters
        kinds = {parameter.kind for parameter in parameters.values()}
        self._names = [
            name
            for name, parameter in parameters.items()
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]
        unknown = sorted(set(dynamic_dims or ()) - set(parameters))
        if unknown and inspect.Parameter.VAR_KEYWORD not in kinds:
            raise UsageError(
                f"dynamic_dims: forward has no argument {', '.join(unknown)}; "
                f"it takes {', '.join(parameters) or 'no arguments'}"
            )

    def dynamic(self, argument: str) -> tuple[int, ...]:
        """The dynamic dimensions of the tensors in an argument."""
        if self._static:
            return ()
        dims = _DEFAULT if self._by_argument is None else self._by_argument.get(argument, ())
        return tuple(dim for dim in dims if (argument, dim) not in self._fixed)

    def argument(self, index: int) -> str:
        """The name of the positional argument at an index."""
        return self._names[index] if index < len(self._names) else ""

    def by_argument(self, call: ModelInputs) -> Iterator[tuple[tuple[int, ...], object]]:
        """The dynamic dimensions and the value of every argument of a call."""
        for index, value in enumerate(call.args):
            yield self.dynamic(self.argument(index)), value
        for name, value in call.kwargs.items():
            yield self.dynamic(name), value

    def without(self, fixed: Iterable[tuple[str, int]]) -> Dimensions:
        """A copy without the dimensions that the model fixes. If none of them is known, nothing is dynamic."""
        narrower = copy.copy(self)
        narrower._fixed = self._fixed | set(fixed)
        narrower._static = self._static or narrower._fixed == self._fixed
        return narrower

    @property
    def default(self) -> bool:
        """Whether the first dimension of every tensor is dynamic."""
        return self.unspecified and not self._fixed and not self._static

    @property
    def unspecified(self) -> bool:
        """Whether ``dynamic_dims`` is not set."""
        return self._by_argument is None


def form(call: ModelInputs, dimensions: Dimensions) -> Hashable:
    """The form of a call. It includes every size that is not dynamic."""
    args = tuple(_form(value, dims) for dims, value in dimensions.by_argument(call))
    return (len(call.args), tuple(call.kwargs), args)


def _form(value: object, dims: tuple[int, ...]) -> Any:  # noqa: ANN401 - hashable, although mypy does not know it
    kind = type(value)
    if isinstance(value, torch.Tensor):
        return tensor_form(value) if dims == _DEFAULT else (*_other(value), _sizes(value, dims))
    if kind in _PLAIN:
        return kind, value
    if isinstance(value, float | complex):
        return kind, repr(value)  # unlike the value itself, NaN's repr equals itself
    if isinstance(value, list | tuple):
        return kind, *(_form(item, dims) for item in value)
    if isinstance(value, dict):
        return kind, *((key, _form(item, dims)) for key, item in value.items())
    return kind


def tensor_form(value: torch.Tensor) -> tuple[Hashable, ...]:
    """The form of a tensor whose first dimension is dynamic; cheap enough to compute at every call."""
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
    """Pairs of a tensor and one of its dynamic dimensions, for all tensors of a call."""
    for dims, value in dimensions.by_argument(call):
        for leaf in pytree.tree_leaves(value):
            if isinstance(leaf, torch.Tensor):
                yield from ((leaf, dim) for dim in dims if -leaf.dim() <= dim < leaf.dim())


@contextlib.contextmanager
def marked_dynamic(call: ModelInputs, dimensions: Dimensions) -> Iterator[None]:
    """While the block runs, the dynamic dimensions are marked for Dynamo on the call's tensors; then restored."""
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
    attributes = vars(tensor)
    marks = {name: attributes[name] for name in (*_MARKS, *_MORE_MARKS) if name in attributes}
    return {name: mark.copy() if isinstance(mark, set | dict) else mark for name, mark in marks.items()}


def widened(call: ModelInputs, dimensions: Dimensions) -> ModelInputs | None:
    """A copy of the call in which dynamic sizes of 0 and 1 are 2; None if there are no such sizes.

    Dynamo treats sizes of 0 and 1 as constants, so code traced with them would be wrong for all other sizes.
    """
    tensors = list(_tensors(call, dimensions))
    if all(tensor.shape[dim] > 1 for tensor, dim in tensors):
        return None
    wide: dict[int, torch.Tensor] = {}
    for tensor, dim in tensors:
        wide[id(tensor)] = _with_size_two(wide.get(id(tensor), tensor), dim)
    args, kwargs = pytree.tree_map(lambda leaf: wide.get(id(leaf), leaf), (call.args, dict(call.kwargs)))
    return ModelInputs(args, kwargs)


def _with_size_two(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    if tensor.shape[dim] > 1:
        return tensor
    shape = list(tensor.shape)
    shape[dim] = 2
    with torch.no_grad():
        wide = tensor.new_zeros(shape) if 0 in tensor.shape else torch.cat([tensor, tensor], dim)
    return wide.detach().requires_grad_(tensor.requires_grad)

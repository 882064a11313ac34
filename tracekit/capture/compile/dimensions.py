"""The dynamic dimensions of a call's tensors: which they are, and how Dynamo learns of them."""

from __future__ import annotations

import contextlib
import copy
import inspect
import re
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.utils import _pytree as pytree

from tracekit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

#: The dynamic dimensions of tensors, unless ``dynamic_dims`` is set.
DEFAULT = (0,)
#: A size of an argument, as Dynamo spells it.
_SIZE = re.compile(r"L\['(\w+)'\](?:\[(\d+)\])?[^,;\s]*?\.size\(\)\[(\d+)\]")
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
        dims = DEFAULT if self._by_argument is None else self._by_argument.get(argument, ())
        return tuple(dim for dim in dims if (argument, dim) not in self._fixed)

    def argument(self, index: int) -> str:
        """The name of the positional argument at an index."""
        return self._names[index] if index < len(self._names) else ""

    def named_in(self, text: str) -> set[tuple[str, int]]:
        """The dimensions that an error of Dynamo names, by argument."""
        return {
            (self.argument(int(index)) if index and variable == "args" else variable, int(dim))
            for variable, index, dim in _SIZE.findall(text)
        }

    def by_argument(self, call: ModelInputs) -> Iterator[tuple[str, tuple[int, ...], object]]:
        """The name, the dynamic dimensions and the value of every argument of a call."""
        for index, value in enumerate(call.args):
            name = self.argument(index)
            yield name or f"number {index + 1}", self.dynamic(name), value
        for name, value in call.kwargs.items():
            yield name, self.dynamic(name), value

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


def open_dimensions(tensor: torch.Tensor, dims: tuple[int, ...]) -> tuple[int, ...]:
    """The dynamic dimensions of one tensor, from 0.

    A tensor with gaps in its memory that has a dimension of 0 or 1 has none: it cannot be widened as it is.
    """
    rank = tensor.dim()
    valid = tuple(dim % rank for dim in dims if -rank <= dim < rank)
    if min(tensor.shape, default=2) > 1 or tensor.is_contiguous():
        return valid
    return ()


def dynamic_sizes(call: ModelInputs, dimensions: Dimensions) -> list[int]:
    """The dynamic sizes of a call, in the order of its tensors."""
    return [tensor.shape[dim] for tensor, dim in _tensors(call, dimensions)]


def _tensors(call: ModelInputs, dimensions: Dimensions) -> Iterator[tuple[torch.Tensor, int]]:
    """Pairs of a tensor and one of its dynamic dimensions, for all tensors of a call."""
    for _name, dims, value in dimensions.by_argument(call):
        for leaf in pytree.tree_leaves(value):
            if isinstance(leaf, torch.Tensor):
                yield from ((leaf, dim) for dim in open_dimensions(leaf, dims))


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

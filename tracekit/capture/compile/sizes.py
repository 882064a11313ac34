"""Finds the dynamic size of a graph and its pieces in the example values that Dynamo left on the nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv, free_symbols

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import fx


def value_of(node: fx.Node) -> object:
    """The example value of a node: a fake tensor, a number or a tuple; None if the trace has none."""
    return node.meta.get("example_value", node.meta.get("val"))


def inputs_of(graph: fx.GraphModule) -> list[object]:
    """The example values of a graph's inputs, in order."""
    return [value_of(node) for node in graph.graph.find_nodes(op="placeholder")]


def dynamic_size(values: Iterable[object]) -> sympy.Symbol | None:
    """The symbol of the first input that is a size; None if all shapes are fixed."""
    for value in values:
        if isinstance(value, torch.SymInt) and isinstance(value.node.expr, sympy.Symbol):
            return value.node.expr
    return None


class SizeInput(NamedTuple):
    """Where a piece finds its size.

    Attributes:
        at: Index of the input that is the size; None if the piece has no such input.
        alone: Whether its shapes depend on no other dynamic size.
    """

    at: int | None
    alone: bool


def size_input(values: Sequence[object], symbol: sympy.Symbol | None) -> SizeInput:
    """Where a piece finds the graph's dynamic size among its inputs."""
    free: set[sympy.Symbol] = set()
    for value in values:
        if isinstance(value, torch.Tensor | torch.SymInt):
            free |= free_symbols(value)
    index = None
    if symbol is not None:
        sizes = (i for i, value in enumerate(values) if isinstance(value, torch.SymInt) and value.node.expr == symbol)
        index = next(sizes, None)
    return SizeInput(index, alone=free <= {symbol})


def concrete(values: Sequence[object], symbol: sympy.Symbol | None, size: int) -> list[object]:
    """The inputs of a piece at one size, as new fake tensors and numbers."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    return [resized(value, lambda dim: int(dim.node.expr.subs(symbol, size)), mode) for value in values]


def resized(value: object, size: Callable[[torch.SymInt], int | torch.SymInt], mode: FakeTensorMode) -> object:
    """An example value with other sizes: a new fake tensor, or a number; whatever else it is stays.

    Args:
        value: The example value.
        size: What stands in place of a dynamic number.
        mode: Makes the tensor.
    """

    def number(value: int | torch.SymInt) -> int | torch.SymInt:
        return size(value) if isinstance(value, torch.SymInt) else value

    if isinstance(value, torch.SymInt):
        return number(value)
    if not isinstance(value, torch.Tensor):
        return value
    shape, strides = [number(dim) for dim in value.shape], [number(stride) for stride in value.stride()]
    with mode:
        tensor = torch.empty_strided(shape, strides, dtype=value.dtype, device=value.device)
    return tensor.requires_grad_(value.requires_grad)


def ties_sizes(graph: torch.fx.GraphModule) -> bool:
    """Whether Dynamo found that a dynamic size must be the same as another one, or a function of others."""
    for value in inputs_of(graph):
        if isinstance(value, FakeTensor) and (shape_env := value.fake_mode.shape_env) is not None:
            return any(expression.free_symbols for expression in shape_env.replacements.values())
    return False

"""What compiling needs to know about one of Dynamo's graphs: its size, and which of its inputs stay where they are."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from tracekit.capture.compile.compiler import needs_grad
from tracekit.capture.compile.sizes import dynamic_size, inputs_of, size_input, value_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import sympy
    from torch import fx

_graphs = itertools.count()


class GraphFacts(NamedTuple):
    """The properties of a graph.

    Attributes:
        number: Its number in this process.
        symbol: Its dynamic size; None if all shapes are fixed.
        size_at: Index of the input that is the dynamic size; None if there is none.
        size: Its size, where that is fixed.
        static: Names of the inputs that are parameters and buffers.
        static_at: The indices of those that have an address, unlike tensors that are made of other tensors.
        grad: Whether it was traced for differentiation.
    """

    number: int
    symbol: sympy.Symbol | None
    size_at: int | None
    size: int | None
    static: frozenset[str]
    static_at: tuple[int, ...]
    grad: bool


def facts_of(graph: fx.GraphModule, example_inputs: Sequence[Any]) -> GraphFacts:
    """Reads a graph's properties from its inputs.

    Args:
        graph: The graph that Dynamo hands over.
        example_inputs: The inputs that Dynamo hands over with it.
    """
    inputs = graph.graph.find_nodes(op="placeholder")
    values = inputs_of(graph)
    symbol = dynamic_size(values)
    held = [index for index, value in enumerate(example_inputs) if _is_static(value)]
    static = frozenset(inputs[index].name for index in held)
    static_at = tuple(index for index in held if not is_traceable_wrapper_subclass(example_inputs[index]))
    moving = [value for node, value in zip(inputs, values, strict=True) if node.name not in static]
    size = _first_dimension(moving) if symbol is None else None
    size_at, grad = size_input(values, symbol).at, needs_grad(values)
    return GraphFacts(next(_graphs), symbol, size_at, size, static, static_at, grad)


def _is_static(value: object) -> bool:
    """Whether an input is a parameter or a buffer of the model."""
    return isinstance(value, nn.Parameter) or hasattr(value, "_dynamo_static_input_type")


def _first_dimension(values: Sequence[object]) -> int | None:
    """The first dimension of the first tensor that has one, if it is a fixed number."""
    tensor = next((value for value in values if isinstance(value, torch.Tensor) and value.dim()), None)
    size = None if tensor is None else tensor.shape[0]
    return size if isinstance(size, int) else None


def moving_inputs(graph: fx.GraphModule, facts: GraphFacts) -> list[int]:
    """Indices of the tensors that the caller passes, which may lie elsewhere at every call."""
    return [
        index
        for index, node in enumerate(graph.graph.find_nodes(op="placeholder"))
        if isinstance(value_of(node), torch.Tensor) and node.name not in facts.static
    ]

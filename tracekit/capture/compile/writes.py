"""Finds the inputs that a graph writes to. Such a graph must not run twice, and copied inputs must be copied back.

The version counters of Dynamo's fake tensors are no help, because custom operators need not increase them. Instead, an
operator's schema says which arguments it writes to, and tensors that share memory share their fake storage.
"""

from __future__ import annotations

import inspect
import types
from typing import TYPE_CHECKING

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

from tracekit.capture.compile.sizes import value_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

#: Functions of the operator module that write to their first argument.
_IN_PLACE = {"setitem", "delitem"} | {
    f"i{name}"
    for name in (
        *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"),
        *("and", "or", "xor", "lshift", "rshift"),
    )
}


def written_inputs(graph: fx.GraphModule) -> set[int]:
    """Indices of the inputs that the graph may write to; all of them where the trace does not tell."""
    inputs = [value_of(node) for node in graph.graph.find_nodes(op="placeholder")]
    written = [value_of(item) for node in graph.graph.nodes for item in _written(node)]
    if any(value is None for value in written):
        return set(range(len(inputs)))
    written_memory = {memory(value) for value in written if isinstance(value, torch.Tensor)}
    tensors = ((index, value) for index, value in enumerate(inputs) if isinstance(value, torch.Tensor))
    return {index for index, value in tensors if memory(value) in written_memory}


def memory(tensor: torch.Tensor) -> int:
    """Identifies a tensor's memory. All tensors that are not strided are assumed to share theirs."""
    if tensor.layout is not torch.strided:
        return -1
    storage: int = tensor.untyped_storage()._cdata
    return storage


def writes_arguments(graph: fx.GraphModule, inputs: Sequence[object]) -> bool:
    """Whether a graph may write to tensors other than the model's parameters and buffers."""
    return any(
        not isinstance(inputs[index], torch.nn.Parameter) and not hasattr(inputs[index], "_dynamo_static_input_type")
        for index in written_inputs(graph)
    )


def _written(node: fx.Node) -> Iterator[fx.Node]:
    """The nodes whose results this node may write to."""
    target = node.target
    if node.op == "call_module" or isinstance(target, HigherOrderOperator):
        yield from (item for item in node.all_input_nodes if isinstance(value_of(item), torch.Tensor))
    elif isinstance(target, OpOverload):
        yield from _by_schema(node, [target])
    elif isinstance(target, OpOverloadPacket):
        names: list[str] = target.overloads()  # type: ignore[no-untyped-call]
        yield from _by_schema(node, [getattr(target, name) for name in names])
    elif node.op.startswith("call_"):
        yield from _nodes(node.kwargs.get("out"))
        if node.args and _in_place(node):
            yield from _nodes(node.args[0])


def _by_schema(node: fx.Node, overloads: Iterable[OpOverload]) -> Iterator[fx.Node]:
    for overload in overloads:
        for index, argument in enumerate(overload._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                yield from _nodes(node.kwargs.get(argument.name))
                yield from _nodes(node.args[index] if index < len(node.args) else None)


def _in_place(node: fx.Node) -> bool:
    target = node.target
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    if name in _IN_PLACE or (name.endswith("_") and not name.endswith("__")):
        return True
    if not isinstance(target, types.FunctionType):
        return bool(node.kwargs.get("inplace"))
    try:
        arguments = inspect.signature(target).bind(*node.args, **node.kwargs).arguments
    except (TypeError, ValueError):
        return True
    return bool(arguments.get("inplace"))


def _nodes(argument: object) -> Iterator[fx.Node]:
    """The nodes in an argument."""
    if isinstance(argument, fx.Node):
        yield argument
    elif isinstance(argument, tuple | list):
        for item in argument:
            yield from _nodes(item)

"""The inputs of a graph: static buffers to copy them into, and which of them the graph writes to."""

import inspect
import types
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

from tracekit.capture.compile.sizes import value_of

_MOST_VIEWS = 4_096


class _Buffer(NamedTuple):
    """A buffer as the piece gets it; ``overlapping`` if elements of it share memory, as in an expanded tensor."""

    view: torch.Tensor
    overlapping: bool

    def copied_from(self, tensor: torch.Tensor) -> torch.Tensor:
        """The buffer after the tensor's elements were copied into it."""
        if self.overlapping:
            _memory_of(self.view).copy_(_memory_of(tensor))
        else:
            self.view.copy_(tensor)
        return self.view


class StaticInputs:
    """Buffers for the inputs of one graph, with one view per size. One thread at a time may use them.

    ``mutated`` has all inputs that the graph writes to; those that are moving are copied back. If there are any, inputs
    that share memory stay where they are.
    """

    def __init__(self, moving: Collection[int], mutated: Collection[int]) -> None:
        self._moving = tuple(moving)
        self._mutated = tuple(index for index in moving if index in mutated)
        self._any_written = bool(mutated)
        self._memory: dict[int, torch.Tensor] = {}
        self._views: dict[Hashable, _Buffer] = {}

    def filled(self, args: Sequence[Any]) -> list[Any]:
        """The arguments, with moving inputs replaced by buffers that hold copies."""
        filled = list(args)
        shared = _sharing(args) if self._any_written else ()
        for index in self._moving:
            if _is_plain(tensor := args[index]) and index not in shared:
                filled[index] = self._buffer(index, tensor).copied_from(tensor)
        return filled

    def give_back(self, filled: Sequence[Any], args: Sequence[Any]) -> None:
        """Copies what the graph wrote into buffers back to the caller's tensors."""
        for index in self._mutated:
            if filled[index] is not args[index]:
                _Buffer(args[index], _overlaps(args[index])).copied_from(filled[index])

    def _buffer(self, index: int, tensor: torch.Tensor) -> _Buffer:
        key = (index, tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        if (buffer := self._views.get(key)) is None:
            if len(self._views) >= _MOST_VIEWS:
                # Graphs captured with a view whose replacement has another address are no longer replayed.
                self._views.clear()
            view = self._new_memory(index, tensor).as_strided(tensor.shape, tensor.stride())
            buffer = self._views[key] = _Buffer(view, _overlaps(tensor))
        return buffer

    def _new_memory(self, index: int, tensor: torch.Tensor) -> torch.Tensor:
        needed, memory = _span(tensor), self._memory.get(index)
        if memory is None or memory.numel() < needed or memory.dtype != tensor.dtype:
            # Views of other sizes keep the old memory alive.
            # What is made in inference mode could not be written to outside of it.
            with torch.inference_mode(mode=False):
                memory = torch.empty(needed, dtype=tensor.dtype, device=tensor.device)
            self._memory[index] = memory
        return memory


def _is_plain(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def _span(tensor: torch.Tensor) -> int:
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in pairs) if tensor.numel() else 0


def _memory_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_strided((_span(tensor),), (1,))


def _overlaps(tensor: torch.Tensor) -> bool:
    """Whether elements of a tensor may share memory: a stride is smaller than what the smaller strides reach."""
    reach = 0
    pairs = zip(tensor.stride(), tensor.shape, strict=True)
    for stride, size in sorted((stride, size) for stride, size in pairs if size > 1):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def _sharing(args: Sequence[Any]) -> set[int]:
    spans = sorted(
        (value.data_ptr(), value.data_ptr() + _span(value) * value.element_size(), index)
        for index, value in enumerate(args)
        if _is_plain(value) and value.numel()
    )
    sharing: set[int] = set()
    reach, last = 0, -1
    for start, end, index in spans:
        if start < reach:
            sharing |= {last, index}
        if end > reach:
            reach, last = end, index
    return sharing


#: Functions of the operator module that write to their first argument.
_IN_PLACE = {"setitem", "delitem"} | {
    f"i{name}"
    for name in (
        *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"),
        *("and", "or", "xor", "lshift", "rshift"),
    )
}


def written_inputs(graph: fx.GraphModule) -> set[int]:
    """Indices of the inputs that the graph may write to; all of them where the trace does not record it."""
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


def _written(node: fx.Node) -> Iterator[fx.Node]:
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
    if isinstance(argument, fx.Node):
        yield argument
    elif isinstance(argument, tuple | list):
        for item in argument:
            yield from _nodes(item)

"""Splits a traced graph at chosen operators into pieces that run one after the other. It compiles nothing.

The order of the graph is kept. Besides:

1. ``x.size()`` becomes its single numbers, since no compiled piece can take or return a ``torch.Size``;
2. what is taken out of a tuple is taken in the piece that made the tuple;
3. neighbouring splitting operators share a piece;
4. a piece that only allocates (``empty`` and its kin) is merged into the piece before it that is compiled;
5. every piece returns a tuple, as compilers expect.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import fx
from torch._ops import OpOverload, OpOverloadPacket
from torch.fx.passes.split_module import split_module

from tracekit.capture.compile.sizes import value_of

if TYPE_CHECKING:
    from collections.abc import Collection

_EMPTY = {
    "empty",
    "empty_like",
    "empty_strided",
    "empty_permuted",
    "new_empty",
    "new_empty_strided",
}


class Part(NamedTuple):
    """A piece of a split graph.

    Attributes:
        name: Its name in the split graph.
        splitting: Whether it holds splitting operators, and is not compiled.
        graph: Its own graph; its placeholders and its tuple of results are those of its call.
    """

    name: str
    splitting: bool
    graph: fx.GraphModule


class Split(NamedTuple):
    """A graph that calls its pieces in order, and the pieces."""

    graph: fx.GraphModule
    parts: tuple[Part, ...]


def should_split(node: fx.Node, operators: Collection[str]) -> bool:
    """Whether the node calls one of the operators, given as ``ns::op`` (any overload) or ``ns::op.overload``.

    A packet without a chosen overload, as Dynamo traces ``torch.ops.ns.op``, is its default overload's as well
    where it has no other.
    """
    if node.op != "call_function":
        return False
    target = node.target
    if isinstance(target, OpOverload):
        packet = target._schema.name
        return packet in operators or f"{packet}.{target._overloadname}" in operators
    if isinstance(target, OpOverloadPacket):
        return target._qualified_op_name in operators or (
            _overloads(target) == ["default"] and f"{target._qualified_op_name}.default" in operators
        )
    return False


def _overloads(packet: OpOverloadPacket) -> list[str]:
    names: list[str] = packet.overloads()  # type: ignore[no-untyped-call]
    return names


def split(graph: fx.GraphModule, operators: Collection[str]) -> Split:
    """Splits a graph; the graph itself is changed only where it asks for sizes.

    Args:
        graph: What Dynamo (or ``make_fx``) traced.
        operators: Where to split.
    """
    _decompose_sizes(graph)
    piece_of, splitting = _assigned(graph, operators)
    _merge_allocations(piece_of, splitting)
    numbers = {piece: number for number, piece in enumerate(dict.fromkeys(_in_order(piece_of)))}
    made = split_module(
        graph,
        graph,
        lambda node: numbers[piece_of[node]],
        keep_original_order=True,
    )
    names = {f"submod_{number}": piece for piece, number in numbers.items()}
    parts = []
    for name, piece in names.items():
        part = cast("fx.GraphModule", getattr(made, name))
        _return_tuple(made, name, part)
        parts.append(Part(name, piece in splitting, part))
    made.recompile()
    return Split(made, tuple(parts))


def _assigned(graph: fx.GraphModule, operators: Collection[str]) -> tuple[dict[fx.Node, int], set[int]]:
    """Node → number of its piece, and the pieces of splitting operators."""
    piece_of: dict[fx.Node, int] = {}
    splitting: set[int] = set()
    piece = 0
    for node in graph.graph.nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        if (made := _tuple_of(node)) is not None and made in piece_of:
            piece_of[node] = piece_of[made]
            continue
        if should_split(node, operators) is not (piece in splitting):
            piece += 1
            if should_split(node, operators):
                splitting.add(piece)
        piece_of[node] = piece
    return piece_of, splitting


def _in_order(piece_of: dict[fx.Node, int]) -> list[int]:
    return sorted(set(piece_of.values()))


def _tuple_of(node: fx.Node) -> fx.Node | None:
    """The node whose tuple (or size) this node takes something out of; None if it does no such thing."""
    taken = node.args[0] if node.args else None
    if not isinstance(taken, fx.Node):
        return None
    if isinstance(value_of(taken), tuple | list):
        return taken if node.target is operator.getitem or node.op == "call_method" else None
    unknown = value_of(taken) is None and taken.op.startswith("call_")
    takes = node.target is operator.getitem and isinstance(node.args[1], int)
    return taken if unknown and takes else None


def _merge_allocations(piece_of: dict[fx.Node, int], splitting: set[int]) -> None:
    """Moves pieces that only allocate into the last compiled piece before them that knows what they need."""
    nodes: dict[int, list[fx.Node]] = {}
    for node, piece in piece_of.items():
        nodes.setdefault(piece, []).append(node)
    for piece, members in sorted(nodes.items()):
        if piece in splitting or not all(_allocates(node) for node in members):
            continue
        before = [other for other in nodes if other < piece and other not in splitting]
        needed = {piece_of.get(needs, 0) for node in members for needs in node.all_input_nodes}
        if before and max(needed - {piece}, default=0) <= max(before):
            nodes[max(before)] += nodes.pop(piece)
            piece_of.update(dict.fromkeys(members, max(before)))


def _allocates(node: fx.Node) -> bool:
    target = node.target
    if isinstance(target, OpOverload):
        target = target.overloadpacket
    name = getattr(target, "__name__", "") if node.op == "call_function" else target
    return name in _EMPTY


def _decompose_sizes(graph: fx.GraphModule) -> None:
    """Replaces ``x.size()`` by numbers and, where a dimension is dynamic, by what holds the number."""
    symbols = _symbol_inputs(graph)
    for node in graph.graph.find_nodes(op="call_method", target="size"):
        tensor = node.args[0]
        shape = getattr(value_of(tensor), "shape", None)
        if len(node.args) > 1 or node.kwargs or shape is None:
            continue
        sizes = tuple(_size(tensor, at, size, symbols) for at, size in enumerate(shape))
        for user in list(node.users):
            _give_sizes(user, node, sizes)
        if not node.users:
            graph.graph.erase_node(node)
    graph.recompile()


def _symbol_inputs(graph: fx.GraphModule) -> dict[str, fx.Node]:
    """Symbol of a size → the input that carries it."""
    inputs = graph.graph.find_nodes(op="placeholder")
    numbers = [(node, value_of(node)) for node in inputs]
    return {str(value): node for node, value in numbers if isinstance(value, torch.SymInt)}


def _size(tensor: fx.Node, at: int, size: int | torch.SymInt, symbols: dict[str, fx.Node]) -> int | fx.Node:
    if isinstance(size, int):
        return size
    if (known := symbols.get(str(size))) is not None:
        return known
    graph = tensor.graph
    last = graph.find_nodes(op="placeholder")[-1] if tensor.op == "placeholder" else tensor
    with graph.inserting_after(last):
        made = graph.call_function(torch.ops.aten.sym_size.int, (tensor, at))
    made.meta["example_value"] = size
    return made


def _give_sizes(user: fx.Node, size: fx.Node, sizes: tuple[int | fx.Node, ...]) -> None:
    """Lets a node use the single sizes in place of all of them."""
    if user.target is operator.getitem and isinstance(user.args[1], int | slice):
        _replace_item(user, sizes[user.args[1]])
    elif user.op == "call_method" and user.args[0] is size:
        return  # a method of torch.Size; it stays with the size
    else:
        user.args = cast("tuple[fx.node.Argument, ...]", _exchanged(user.args, size, sizes))
        user.kwargs = cast(
            "dict[str, fx.node.Argument]",
            {name: _exchanged(item, size, sizes) for name, item in user.kwargs.items()},
        )


def _replace_item(item: fx.Node, by: int | fx.Node | tuple[int | fx.Node, ...]) -> None:
    if isinstance(by, fx.Node):
        item.replace_all_uses_with(by)
    else:
        for user in list(item.users):
            user.args = cast("tuple[fx.node.Argument, ...]", _exchanged(user.args, item, by))
            user.kwargs = {name: _exchanged(kept, item, by) for name, kept in user.kwargs.items()}  # type: ignore[misc]
    item.graph.erase_node(item)


def _exchanged(argument: object, old: fx.Node, new: object) -> object:
    if argument is old:
        return new
    if isinstance(argument, tuple | list):
        return type(argument)([_exchanged(item, old, new) for item in argument])
    if isinstance(argument, slice):
        ends = (argument.start, argument.stop, argument.step)
        return slice(*(_exchanged(end, old, new) for end in ends))
    if isinstance(argument, dict):
        return {key: _exchanged(item, old, new) for key, item in argument.items()}
    return argument


def _return_tuple(whole: fx.GraphModule, name: str, part: fx.GraphModule) -> None:
    """Lets a piece of one result return a tuple of it (``split_module`` can do so only from torch 2.12 on)."""
    (output,) = part.graph.find_nodes(op="output")
    if isinstance(output.args[0], tuple | list):
        return
    output.args = ((output.args[0],),)
    part.recompile()
    (call,) = whole.graph.find_nodes(op="call_module", target=name)
    with whole.graph.inserting_after(call):
        taken = whole.graph.call_function(operator.getitem, (call, 0))
    taken.meta = dict(call.meta)
    call.replace_all_uses_with(taken, delete_user_cb=lambda user: user is not taken)

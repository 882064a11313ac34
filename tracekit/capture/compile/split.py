"""Splits a traced graph at chosen operators into pieces that run one after the other. It compiles nothing.

The order of the graph is kept. Beyond that:

1. ``x.size()`` is replaced by its numbers, because a compiled piece can neither take nor return a ``torch.Size``;
2. items are taken out of a tuple in the piece that made the tuple;
3. neighbouring splitting operators share a piece;
4. a piece that only allocates (``empty`` and the like) is merged into the compiled piece before it;
5. every piece returns a tuple, as compilers expect.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import fx
from torch._ops import OpOverload
from torch.fx.passes.split_module import split_module

from tracekit.capture.compile.decomposition import NodeOperators, called_operators
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
        splitting: Whether it consists of splitting operators, which are not compiled.
        graph: Its own graph, with one placeholder per argument of its call and a tuple of results.
    """

    name: str
    splitting: bool
    graph: fx.GraphModule


class Split(NamedTuple):
    """A graph that calls its pieces in order, with the pieces.

    Attributes:
        graph: The graph.
        parts: Its pieces.
        missing: The operators at which it was to be split, but which it does not run.
        operators: The operators that it calls; only known if some are missing.
    """

    graph: fx.GraphModule
    parts: tuple[Part, ...]
    missing: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()


def should_split(node: fx.Node, operators: Collection[str]) -> bool:
    """Whether the node runs one of the operators, given as ``ns::op`` (any overload) or ``ns::op.overload``.

    It may call the operator or a function, such as one of ``torch.nn.functional``, that decomposes to it.
    """
    return not NodeOperators(operators).of(node).all.isdisjoint(operators)


def split(graph: fx.GraphModule, operators: Collection[str]) -> Split:
    """Splits a graph. The graph itself changes only where it calls ``size()``.

    Args:
        graph: A graph traced by Dynamo or ``make_fx``.
        operators: The operators to split at.
    """
    _decompose_sizes(graph)
    known = NodeOperators(operators)
    runs = {node: known.of(node).all.intersection(operators) for node in graph.graph.nodes}
    missing = tuple(name for name in operators if not any(name in names for names in runs.values()))
    held = called_operators(graph) if missing else ()
    piece_of, splitting = _assigned(graph, {node for node, names in runs.items() if names})
    _merge_allocations(piece_of, splitting)
    numbers = {piece: number for number, piece in enumerate(dict.fromkeys(_in_order(piece_of)))}
    split_graph = split_module(
        graph,
        graph,
        lambda node: numbers[piece_of[node]],
        keep_original_order=True,
    )
    names = {f"submod_{number}": piece for piece, number in numbers.items()}
    parts = []
    for name, piece in names.items():
        part = cast("fx.GraphModule", getattr(split_graph, name))
        _return_tuple(split_graph, name, part)
        parts.append(Part(name, piece in splitting, part))
    split_graph.recompile()
    return Split(split_graph, tuple(parts), missing, held)


def _assigned(graph: fx.GraphModule, splitters: Collection[fx.Node]) -> tuple[dict[fx.Node, int], set[int]]:
    """The number of each node's piece, and the numbers of the pieces of splitting operators."""
    piece_of: dict[fx.Node, int] = {}
    splitting: set[int] = set()
    piece = 0
    for node in graph.graph.nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        if (source := _tuple_of(node)) is not None and source in piece_of:
            piece_of[node] = piece_of[source]
            continue
        if (node in splitters) is not (piece in splitting):
            piece += 1
            if node in splitters:
                splitting.add(piece)
        piece_of[node] = piece
    return piece_of, splitting


def _in_order(piece_of: dict[fx.Node, int]) -> list[int]:
    return sorted(set(piece_of.values()))


def _tuple_of(node: fx.Node) -> fx.Node | None:
    """The node whose tuple (or size) this node takes an item from; None if it takes none."""
    source = node.args[0] if node.args else None
    if not isinstance(source, fx.Node):
        return None
    if isinstance(value_of(source), tuple | list):
        return source if node.target is operator.getitem or node.op == "call_method" else None
    unknown = value_of(source) is None and source.op.startswith("call_")
    takes_item = node.target is operator.getitem and isinstance(node.args[1], int)
    return source if unknown and takes_item else None


def _merge_allocations(piece_of: dict[fx.Node, int], splitting: set[int]) -> None:
    """Merges pieces that only allocate into the last compiled piece before them, if their inputs exist there."""
    nodes: dict[int, list[fx.Node]] = {}
    for node, piece in piece_of.items():
        nodes.setdefault(piece, []).append(node)
    for piece, members in sorted(nodes.items()):
        if piece in splitting or not all(_allocates(node) for node in members):
            continue
        before = [other for other in nodes if other < piece and other not in splitting]
        needed = {piece_of.get(source, 0) for node in members for source in node.all_input_nodes}
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
    """Replaces ``x.size()`` by numbers and, for dynamic dimensions, by the nodes that hold the numbers."""
    symbols = _symbol_inputs(graph)
    for node in graph.graph.find_nodes(op="call_method", target="size"):
        tensor = node.args[0]
        shape = getattr(value_of(tensor), "shape", None)
        if len(node.args) > 1 or node.kwargs or shape is None:
            continue
        sizes = tuple(_size(tensor, dim, size, symbols) for dim, size in enumerate(shape))
        for user in list(node.users):
            _give_sizes(user, node, sizes)
        if not node.users:
            graph.graph.erase_node(node)
    graph.recompile()


def _symbol_inputs(graph: fx.GraphModule) -> dict[str, fx.Node]:
    """The inputs that are sizes, by symbol."""
    inputs = [(node, value_of(node)) for node in graph.graph.find_nodes(op="placeholder")]
    return {str(value): node for node, value in inputs if isinstance(value, torch.SymInt)}


def _size(tensor: fx.Node, dim: int, size: int | torch.SymInt, symbols: dict[str, fx.Node]) -> int | fx.Node:
    if isinstance(size, int):
        return size
    if (size_input := symbols.get(str(size))) is not None:
        return size_input
    graph = tensor.graph
    last = graph.find_nodes(op="placeholder")[-1] if tensor.op == "placeholder" else tensor
    with graph.inserting_after(last):
        node = graph.call_function(torch.ops.aten.sym_size.int, (tensor, dim))
    node.meta["example_value"] = size
    return node


def _give_sizes(user: fx.Node, size: fx.Node, sizes: tuple[int | fx.Node, ...]) -> None:
    """Makes a node use single sizes in place of a ``torch.Size``."""
    if user.target is operator.getitem and isinstance(user.args[1], int | slice):
        _replace_item(user, sizes[user.args[1]])
    elif user.op == "call_method" and user.args[0] is size:
        return  # it calls a method of torch.Size, so it still needs the size
    else:
        user.args = cast("tuple[fx.node.Argument, ...]", _exchanged(user.args, size, sizes))
        user.kwargs = cast(
            "dict[str, fx.node.Argument]",
            {name: _exchanged(item, size, sizes) for name, item in user.kwargs.items()},
        )


def _replace_item(item: fx.Node, new: int | fx.Node | tuple[int | fx.Node, ...]) -> None:
    if isinstance(new, fx.Node):
        item.replace_all_uses_with(new)
    else:
        for user in list(item.users):
            user.args = cast("tuple[fx.node.Argument, ...]", _exchanged(user.args, item, new))
            user.kwargs = {name: _exchanged(value, item, new) for name, value in user.kwargs.items()}  # type: ignore[misc]
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
    """Makes a piece with one result return a tuple. ``split_module`` itself can do that only since torch 2.12."""
    (output,) = part.graph.find_nodes(op="output")
    if isinstance(output.args[0], tuple | list):
        return
    output.args = ((output.args[0],),)
    part.recompile()
    (call,) = whole.graph.find_nodes(op="call_module", target=name)
    with whole.graph.inserting_after(call):
        item = whole.graph.call_function(operator.getitem, (call, 0))
    item.meta = dict(call.meta)
    call.replace_all_uses_with(item, delete_user_cb=lambda user: user is not item)

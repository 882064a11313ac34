"""Splits a traced graph at chosen operators into pieces that run one after the other. It compiles nothing."""

import logging
import operator
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.split_module import split_module
from torch.utils import _pytree as pytree

from tracekit.capture.compile.sizes import hint, own_fakes, resized, value_of
from tracekit.capture.maps.traced import base_of, module_text
from tracekit.files import whole_file

_LOG = logging.getLogger("tracekit.capture")


class Part(NamedTuple):
    """A piece of a split graph; ``splitting`` if it consists of splitting operators, which are not compiled."""

    name: str
    splitting: bool
    graph: fx.GraphModule


class Split(NamedTuple):
    """A graph that calls its pieces in order, the operators it lacks to be split at and, if any, those it runs."""

    graph: fx.GraphModule
    parts: tuple[Part, ...]
    missing: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()


def split(graph: fx.GraphModule, operators: Collection[str]) -> Split:
    """Splits a graph at operators (``ns::op`` or ``ns::op.overload``), also where functions decompose to them.

    The graph itself changes only where it calls ``size()``.
    """
    _decompose_sizes(graph)
    known = NodeOperators()
    runs = {node: known.of(node).intersection(operators) for node in graph.graph.nodes} if operators else {}
    missing = tuple(name for name in operators if not any(name in names for names in runs.values()))
    held = run_operators(graph, known) if missing else ()
    piece_of, splitting = _assigned(graph, {node for node, names in runs.items() if names})
    split_graph = split_module(graph, graph, piece_of.__getitem__, keep_original_order=True)
    parts = []
    for piece in sorted(set(piece_of.values())):
        part = cast("fx.GraphModule", getattr(split_graph, name := f"submod_{piece}"))
        _return_tuple(split_graph, name, part)
        parts.append(Part(name, piece in splitting, part))
    split_graph.recompile()
    return Split(split_graph, tuple(parts), missing, held)


def _assigned(graph: fx.GraphModule, splitters: Collection[fx.Node]) -> tuple[dict[fx.Node, int], set[int]]:
    """The number of every node's piece, and the numbers of those of splitting operators."""
    piece_of: dict[fx.Node, int] = {}
    splitting: set[int] = set()
    piece = -1
    for node in graph.graph.nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        if (source := _tuple_of(node)) in piece_of:
            piece_of[node] = piece_of[source]
            continue
        piece += not piece_of or (node in splitters) is not (piece in splitting)
        if node in splitters:
            splitting.add(piece)
        piece_of[node] = piece
    return piece_of, splitting


def _tuple_of(node: fx.Node) -> fx.Node | None:
    source = node.args[0] if node.args else None
    if not isinstance(source, fx.Node):
        return None
    if isinstance(value_of(source), tuple | list):
        return source if node.target is operator.getitem or node.op == "call_method" else None
    unknown = value_of(source) is None and source.op.startswith("call_")
    takes_item = node.target is operator.getitem and isinstance(node.args[1], int)
    return source if unknown and takes_item else None


def _decompose_sizes(graph: fx.GraphModule) -> None:
    """Replaces ``x.size()`` by numbers and, for dynamic dimensions, by the nodes that hold the numbers."""
    inputs = [(node, value_of(node)) for node in graph.graph.find_nodes(op="placeholder")]
    symbols = {str(value): node for node, value in inputs if isinstance(value, torch.SymInt)}
    for node in graph.graph.find_nodes(op="call_method", target="size"):
        tensor = node.args[0]
        shape = getattr(value_of(tensor), "shape", None)
        if len(node.args) > 1 or node.kwargs or shape is None:
            continue
        sizes = tuple(_size(tensor, dim, size, symbols) for dim, size in enumerate(shape))
        for user in list(node.users):
            if user.target is operator.getitem and isinstance(user.args[1], int | slice):
                _exchange(user, sizes[user.args[1]])
            elif user.op != "call_method" or user.args[0] is not node:  # else it calls a method of torch.Size
                _exchange(node, sizes, user)
        if not node.users:
            graph.graph.erase_node(node)
    graph.recompile()


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


def _exchange(old: fx.Node, new: int | fx.Node | tuple[int | fx.Node, ...], only: fx.Node | None = None) -> None:
    """Puts a value in the place of a node, for one of its users or, with the node, for all."""
    for user in list(old.users) if only is None else [only]:
        user.args = fx.node.map_aggregate(user.args, lambda item: new if item is old else item)
        user.kwargs = fx.node.map_aggregate(user.kwargs, lambda item: new if item is old else item)
    if only is None:
        old.graph.erase_node(old)


def _return_tuple(whole: fx.GraphModule, name: str, part: fx.GraphModule) -> None:
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


class NodeOperators:
    """Tells the operators of nodes. Nodes with the same function and the same inputs are traced once."""

    def __init__(self) -> None:
        self._traced: dict[tuple[object, str], frozenset[str]] = {}

    def of(self, node: fx.Node) -> frozenset[str]:
        """The operators that a node runs, as ``ns::op`` and ``ns::op.overload``, before and after decomposition.

        If it cannot be traced, they are those that its function is named after.
        """
        if node.op not in ("call_function", "call_method", "call_module"):
            return frozenset()
        named = frozenset(_names(node))
        if isinstance(node.target, HigherOrderOperator):
            bodies = (_attribute(item) for item in node.all_input_nodes if item.op == "get_attr")
            inner = (item for body in bodies if isinstance(body, fx.GraphModule) for item in body.graph.nodes)
            return named.union(*map(self.of, inner))
        if not any(isinstance(value_of(item), torch.Tensor) for item in (node, *node.all_input_nodes)):
            return named  # such as a switch of autograd or autocast, which must not run here
        try:
            return named | self._alone(node)
        except Exception:  # noqa: BLE001 - a function that needs more than its inputs may raise anything
            name = node.target if node.op == "call_method" else getattr(node.target, "__name__", None)
            known = isinstance(name, str) and hasattr(torch.ops.aten, name)
            return frozenset({f"aten::{name}"}) if known and not named else named

    def _alone(self, node: fx.Node) -> frozenset[str]:
        """Traces a node with fake tensors of its own, so that nothing of the graph's own trace changes."""

        def argument(item: Any) -> Any:  # noqa: ANN401 - as torch's
            if isinstance(item, fx.Node):
                item = _attribute(item) if item.op == "get_attr" and value_of(item) is None else value_of(item)
            return resized(item, hint)

        with own_fakes():
            args, kwargs = cast("tuple[Any, Any]", fx.node.map_aggregate((node.args, dict(node.kwargs)), argument))
            called: Any = _attribute(node) if node.op == "call_module" else node.target
            key = called, _text((args, kwargs))
            if key not in self._traced:

                def call(args: Any, kwargs: Any) -> object:  # noqa: ANN401 - whatever the node has
                    if node.op == "call_method":
                        return getattr(args[0], called)(*args[1:], **kwargs)
                    return called(*args, **kwargs)

                stages = (make_fx(call, pre_dispatch=early, _allow_non_fake_inputs=True) for early in (True, False))
                nodes = (item for trace in stages for item in trace(args, kwargs).graph.nodes)
                names = (_names(item) for item in nodes if item.op == "call_function")
                self._traced[key] = frozenset().union(*names)
            return self._traced[key]


def _names(node: fx.Node) -> set[str]:
    target = node.target
    if isinstance(target, OpOverload):
        return {target._schema.name, f"{target._schema.name}.{target._overloadname}"}
    if isinstance(target, OpOverloadPacket):
        name = target._qualified_op_name
        only = target.overloads() == ["default"]  # type: ignore[no-untyped-call]
        return {name, f"{name}.default"} if only else {name}
    return {f"higher_order::{target._name}"} if isinstance(target, HigherOrderOperator) else set()


def _attribute(node: fx.Node) -> object:
    owner = node.graph.owning_module
    return None if owner is None else operator.attrgetter(str(node.target))(owner)


def _text(inputs: object) -> str:
    def of(leaf: object) -> str:
        if isinstance(leaf, torch.Tensor):
            return f"{leaf.dtype} {leaf.device} {tuple(leaf.shape)} {leaf.stride()}"
        return f"{type(leaf).__qualname__} {leaf!r}"

    leaves, structure = pytree.tree_flatten(inputs)
    return f"{structure} {[of(leaf) for leaf in leaves]}"


def run_operators(graph: fx.GraphModule, known: NodeOperators) -> tuple[str, ...]:
    """The operators that a graph runs, without their overloads, in alphabetical order."""
    names = frozenset().union(*(known.of(node) for node in graph.graph.nodes))
    return tuple(sorted({name.partition(".")[0] for name in names}))


def _source(split: Split) -> str:
    """The split graph and its pieces as readable Python, below a list of the pieces and their innermost modules."""
    comments = ""
    for part in split.parts:
        texts = [module_text(node) or "" for node in part.graph.graph.nodes if node.op.startswith("call_")]
        paths = filter(None, (text[len(base_of(text)) :].lstrip(".") for text in texts))
        modules, kind = ", ".join(dict.fromkeys(paths)) or "-", "splits" if part.splitting else "compiled"
        comments += f"# {part.name}  {kind}  {len(texts)} operations  {modules}\n"
    code = split.graph.print_readable(print_output=False).replace("<lambda>", "GraphModule")
    return f"{comments}from __future__ import annotations\nimport torch\n{code}\n"


def write_split(split: Split, folder: Path, number: int) -> None:
    """Writes ``computation_graph.py``; later graphs of the same model get a number. Failing to write is a warning."""
    name = f"computation_graph_{number}.py" if number else "computation_graph.py"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with whole_file(folder / name) as partial:
            partial.write_text(_source(split), "utf-8")
    except OSError as error:
        _LOG.warning("%s: cannot be written: %s", folder / name, error.strerror)

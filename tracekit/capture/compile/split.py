"""Splits a traced graph at chosen operators into pieces that run one after the other. It compiles nothing."""

import logging
import operator
import re
from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import fx
from torch._guards import tracing
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.split_module import split_module
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from tracekit.capture.compile.sizes import value_of
from tracekit.files import whole_file

_EMPTY = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"}


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
    known = NodeOperators(operators)
    runs = {node: known.of(node).intersection(operators) for node in graph.graph.nodes}
    missing = tuple(name for name in operators if not any(name in names for names in runs.values()))
    held = run_operators(graph) if missing else ()
    piece_of, splitting = _assigned(graph, {node for node, names in runs.items() if names})
    _merge_allocations(piece_of, splitting)
    numbers = {piece: number for number, piece in enumerate(sorted(set(piece_of.values())))}
    split_graph = split_module(graph, graph, lambda node: numbers[piece_of[node]], keep_original_order=True)
    names = {f"submod_{number}": piece for piece, number in numbers.items()}
    parts = []
    for name, piece in names.items():
        part = cast("fx.GraphModule", getattr(split_graph, name))
        _return_tuple(split_graph, name, part)
        parts.append(Part(name, piece in splitting, part))
    split_graph.recompile()
    return Split(split_graph, tuple(parts), missing, held)


def _assigned(graph: fx.GraphModule, splitters: Collection[fx.Node]) -> tuple[dict[fx.Node, int], set[int]]:
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


def _tuple_of(node: fx.Node) -> fx.Node | None:
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
    inputs = [(node, value_of(node)) for node in graph.graph.find_nodes(op="placeholder")]
    symbols = {str(value): node for node, value in inputs if isinstance(value, torch.SymInt)}
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
    if user.target is operator.getitem and isinstance(user.args[1], int | slice):
        for later in list(user.users):
            _exchange(later, user, sizes[user.args[1]])
        user.graph.erase_node(user)
    elif user.op != "call_method" or user.args[0] is not size:  # else it calls a method of torch.Size
        _exchange(user, size, sizes)


def _exchange(user: fx.Node, old: fx.Node, new: int | fx.Node | tuple[int | fx.Node, ...]) -> None:
    def exchanged(item: fx.node.Argument) -> fx.node.Argument:
        return new if item is old else item

    user.args = fx.node.map_aggregate(user.args, exchanged)
    user.kwargs = fx.node.map_aggregate(user.kwargs, exchanged)


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


#: The namespaces of PyTorch's own operators, whose behavior is determined by PyTorch's version.
NAMESPACES = frozenset({"aten", "prims", "prim", "inductor", "_c10d_functional", "c10d"})


class NodeOperators:
    """Tells the operators of nodes. Nodes with the same function and the same inputs are traced once.

    PyTorch's functions are traced only if one of the ``names`` that are asked for is PyTorch's own, or if all are.
    """

    def __init__(self, names: Iterable[str] | None = None) -> None:
        self._builtins = names is None or any(name.partition("::")[0] in NAMESPACES for name in names)
        self._traced: dict[tuple[object, str], frozenset[str]] = {}

    def of(self, node: fx.Node) -> frozenset[str]:
        """The operators that a node runs, as ``ns::op`` and ``ns::op.overload``, before and after decomposition.

        If it cannot be traced, they are those that its function is named after.
        """
        if node.op not in ("call_function", "call_method", "call_module"):
            return frozenset()
        named = frozenset(_names(node)).union(*(self.of(inner) for body in _bodies(node) for inner in body.graph.nodes))
        if not self._is_traced(node):
            return named
        try:
            return named | self._alone(node)
        except Exception:  # noqa: BLE001 - a function that needs more than its inputs may raise anything
            name = node.target if node.op == "call_method" else getattr(node.target, "__name__", None)
            known = isinstance(name, str) and hasattr(torch.ops.aten, name)
            return frozenset({f"aten::{name}"}) if known and not named else named

    def _is_traced(self, node: fx.Node) -> bool:
        target = node.target
        if isinstance(target, HigherOrderOperator):
            return False
        if not any(isinstance(value_of(item), torch.Tensor) for item in (node, *node.all_input_nodes)):
            return False  # such as a switch of autograd or autocast, which must not run here
        own = isinstance(target, OpOverload | OpOverloadPacket) and _namespace(target) not in NAMESPACES
        return any(map(_is_composite, _overloads(target))) if own else self._builtins

    def _alone(self, node: fx.Node) -> frozenset[str]:
        """Traces a node with fake tensors of its own, so that nothing of the graph's own trace changes."""
        with ExitStack() as stack:
            for context in (tracing(None), _disable_current_modes(), torch.inference_mode(mode=False), torch.no_grad()):
                stack.enter_context(context)
            mode = stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
            concrete: Callable[..., Any] = partial(_concrete, mode)
            args, kwargs = cast("tuple[Any, Any]", fx.node.map_aggregate((node.args, dict(node.kwargs)), concrete))
            function = _function(node)
            key = (function if node.op == "call_module" else node.target, _text((args, kwargs)))
            if key not in self._traced:
                before, after = (_runs(function, args, kwargs, pre_dispatch=early) for early in (True, False))
                self._traced[key] = before | after
            return self._traced[key]


def _names(node: fx.Node) -> set[str]:
    target = node.target
    if isinstance(target, OpOverload):
        return {target._schema.name, f"{target._schema.name}.{target._overloadname}"}
    if isinstance(target, OpOverloadPacket):
        name = target._qualified_op_name
        only = [overload._overloadname for overload in _overloads(target)] == ["default"]
        return {name, f"{name}.default"} if only else {name}
    return {f"higher_order::{target._name}"} if isinstance(target, HigherOrderOperator) else set()


def _overloads(target: object) -> list[OpOverload]:
    if isinstance(target, OpOverload):
        return [target]
    if not isinstance(target, OpOverloadPacket):
        return []
    names: list[str] = target.overloads()  # type: ignore[no-untyped-call]
    return [getattr(target, name) for name in names]


def _namespace(target: OpOverload | OpOverloadPacket) -> str:
    name = target._schema.name if isinstance(target, OpOverload) else target._qualified_op_name
    return name.partition("::")[0]


def _is_composite(overload: OpOverload) -> bool:
    """Whether the operator's kernel is a composition of other operators, which compilers trace through."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(overload._name, "CompositeImplicitAutograd"))


def _bodies(node: fx.Node) -> list[fx.GraphModule]:
    if not isinstance(node.target, HigherOrderOperator):
        return []
    attributes = (_attribute(item) for item in node.all_input_nodes if item.op == "get_attr")
    return [body for body in attributes if isinstance(body, fx.GraphModule)]


def _attribute(node: fx.Node) -> object:
    owner = node.graph.owning_module
    return None if owner is None else operator.attrgetter(str(node.target))(owner)


def _function(node: fx.Node) -> Callable[..., Any]:
    if node.op == "call_method":
        name = str(node.target)
        return lambda tensor, *args, **kwargs: getattr(tensor, name)(*args, **kwargs)
    return cast("Callable[..., Any]", _attribute(node) if node.op == "call_module" else node.target)


def _concrete(mode: FakeTensorMode, item: object) -> object:
    if isinstance(item, fx.Node):
        value = _attribute(item) if item.op == "get_attr" and value_of(item) is None else value_of(item)
        return pytree.tree_map(partial(_concrete, mode), value)
    if isinstance(item, torch.SymInt | torch.SymFloat | torch.SymBool):
        return item.node.hint
    if not isinstance(item, torch.Tensor):
        return item
    with mode:
        return torch.empty_strided(
            [_number(size) for size in item.shape],
            [_number(stride) for stride in item.stride()],
            dtype=item.dtype,
            device=item.device,
        )


def _number(size: int | torch.SymInt) -> int:
    return int(size.node.hint) if isinstance(size, torch.SymInt) else size


def _text(inputs: object) -> str:
    def of(leaf: object) -> str:
        if isinstance(leaf, torch.Tensor):
            return f"{leaf.dtype} {leaf.device} {tuple(leaf.shape)} {leaf.stride()}"
        return f"{type(leaf).__qualname__} {leaf!r}"

    leaves, structure = pytree.tree_flatten(inputs)
    return f"{structure} {[of(leaf) for leaf in leaves]}"


def _runs(function: Callable[..., Any], args: object, kwargs: object, *, pre_dispatch: bool) -> frozenset[str]:
    leaves, structure = pytree.tree_flatten((args, kwargs))
    at = [index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def call(*tensors: torch.Tensor) -> object:
        filled = list(leaves)
        for index, tensor in zip(at, tensors, strict=True):
            filled[index] = tensor
        args, kwargs = pytree.tree_unflatten(filled, structure)
        return function(*args, **kwargs)

    trace = make_fx(call, pre_dispatch=pre_dispatch, _allow_non_fake_inputs=True)
    graph = trace(*(leaves[index] for index in at)).graph
    return frozenset().union(*(_names(node) for node in graph.nodes if node.op == "call_function"))


def run_operators(graph: fx.GraphModule) -> tuple[str, ...]:
    """The operators that a graph runs, without their overloads, in alphabetical order."""
    known = NodeOperators()
    names = frozenset().union(*(known.of(node) for node in graph.graph.nodes))
    return tuple(sorted({name.partition(".")[0] for name in names}))


_LOG = logging.getLogger("tracekit.capture")
#: Dynamo's name of the model itself.
_ROOT = re.compile(r"L\['(?:self|\w+)'\]\.?|\bL__self___?")


def module_of(node: fx.Node) -> str | None:
    """Path of the innermost module that a node was traced in, without the model's own name; None if unknown."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return None
    path, _ = list(stack.values())[-1]
    return _ROOT.sub("", str(path), count=1)


def modules_of(part: Part) -> list[str]:
    """The innermost modules of a piece's nodes, in execution order, without the model itself."""
    nodes = (node for node in part.graph.graph.nodes if node.op.startswith("call_"))
    paths = (module_of(node) for node in nodes)
    return list(dict.fromkeys(path for path in paths if path))


def split_source(split: Split) -> str:
    """The split graph and its pieces as readable Python, below a list of the pieces."""
    comments = ""
    for part in split.parts:
        count = sum(node.op.startswith("call_") for node in part.graph.graph.nodes)
        kind = "splits" if part.splitting else "compiled"
        modules = ", ".join(modules_of(part)) or "-"
        comments += f"# {part.name}  {kind}  {count} operations  {modules}\n"
    code = split.graph.print_readable(print_output=False).replace("<lambda>", "GraphModule")
    return f"{comments}from __future__ import annotations\nimport torch\n{code}\n"


def write_split(split: Split, folder: Path, number: int) -> None:
    """Writes ``computation_graph.py``; later graphs of the same model get a number. Failing to write is a warning."""
    name = f"computation_graph_{number}.py" if number else "computation_graph.py"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with whole_file(folder / name) as partial:
            partial.write_text(split_source(split), "utf-8")
    except OSError as error:
        _LOG.warning("%s: cannot be written: %s", folder / name, error.strerror)

"""The operators that a node of a traced graph runs, by name.

Dynamo hands Python functions over as they are: ``torch.nn.functional.softmax``, ``torch.softmax`` and
``Tensor.softmax`` all run ``aten::softmax``, which runs ``aten::_softmax``. To know that, a node is traced alone, with
fake tensors: once above the dispatcher's decompositions and once below.
"""

from __future__ import annotations

import operator
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import fx
from torch._guards import tracing
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from tracekit.capture.compile.sizes import value_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

#: The namespaces of PyTorch's own operators, whose behavior is determined by PyTorch's version.
NAMESPACES = frozenset({"aten", "prims", "prim", "inductor", "_c10d_functional", "c10d"})


class Operators(NamedTuple):
    """What one node runs, each as ``ns::op`` and as ``ns::op.overload``.

    Attributes:
        called: The operators that it calls.
        decomposed: Those that are left once they are decomposed.
    """

    called: frozenset[str] = frozenset()
    decomposed: frozenset[str] = frozenset()

    @property
    def all(self) -> frozenset[str]:
        """The operators before and after decomposition."""
        return self.called | self.decomposed

    def and_those_of(self, other: Operators) -> Operators:
        """The operators of both."""
        return Operators(self.called | other.called, self.decomposed | other.decomposed)


class NodeOperators:
    """Tells the operators of nodes. Nodes with the same function and the same inputs are traced once.

    Args:
        names: The operators that are asked for. PyTorch's functions are traced only if one of them is PyTorch's own;
            if None, everything is traced.
    """

    def __init__(self, names: Iterable[str] | None = None) -> None:
        self._builtins = names is None or any(name.partition("::")[0] in NAMESPACES for name in names)
        self._traced: dict[tuple[object, str], Operators] = {}

    def of(self, node: fx.Node) -> Operators:
        """The operators that a node runs; if it cannot be traced, those that its function is named after."""
        if node.op not in ("call_function", "call_method", "call_module"):
            return Operators()
        named = Operators(frozenset(_names(node)))
        for body in _bodies(node):
            for inner in body.graph.nodes:
                named = named.and_those_of(self.of(inner))
        if not self._is_traced(node):
            return named
        try:
            return named.and_those_of(self._alone(node))
        except Exception:  # noqa: BLE001 - a function that needs more than its inputs may raise anything
            return named if named.called else Operators(frozenset(_namesakes(node)))

    def _is_traced(self, node: fx.Node) -> bool:
        target = node.target
        if isinstance(target, HigherOrderOperator):
            return False
        if not any(isinstance(value_of(item), torch.Tensor) for item in (node, *node.all_input_nodes)):
            return False  # such as a switch of autograd or autocast, which must not run here
        own = isinstance(target, OpOverload | OpOverloadPacket) and _namespace(target) not in NAMESPACES
        return any(map(_is_composite, _overloads(target))) if own else self._builtins

    def _alone(self, node: fx.Node) -> Operators:
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
                called = _runs(function, args, kwargs, pre_dispatch=True)
                self._traced[key] = Operators(called, _runs(function, args, kwargs, pre_dispatch=False))
            return self._traced[key]


def _names(node: fx.Node) -> set[str]:
    """The names of a node whose target is an operator.

    Dynamo traces ``torch.ops.ns.op`` as a packet without an overload. Its only overload may be ``default``.
    """
    target = node.target
    if isinstance(target, OpOverload):
        return {target._schema.name, f"{target._schema.name}.{target._overloadname}"}
    if isinstance(target, OpOverloadPacket):
        name = target._qualified_op_name
        only = [overload._overloadname for overload in _overloads(target)] == ["default"]
        return {name, f"{name}.default"} if only else {name}
    return {f"higher_order::{target._name}"} if isinstance(target, HigherOrderOperator) else set()


def _namesakes(node: fx.Node) -> set[str]:
    """PyTorch's operator with the name of a function or method, if there is one."""
    name = node.target if node.op == "call_method" else getattr(node.target, "__name__", None)
    return {f"aten::{name}"} if isinstance(name, str) and hasattr(torch.ops.aten, name) else set()


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
    """The graphs that a higher-order operator, such as a checkpoint, gets as arguments."""
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
    """A node's example value with numbers for symbolic sizes, as a new fake tensor."""
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
    """Inputs as text: equal for tensors of equal properties."""

    def of(leaf: object) -> str:
        if isinstance(leaf, torch.Tensor):
            return f"{leaf.dtype} {leaf.device} {tuple(leaf.shape)} {leaf.stride()}"
        return f"{type(leaf).__qualname__} {leaf!r}"

    leaves, structure = pytree.tree_flatten(inputs)
    return f"{structure} {[of(leaf) for leaf in leaves]}"


def _runs(function: Callable[..., Any], args: object, kwargs: object, *, pre_dispatch: bool) -> frozenset[str]:
    """The names of the operators that a call runs."""
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


def called_operators(graph: fx.GraphModule) -> tuple[str, ...]:
    """The operators that a graph calls, without their overloads, in alphabetical order."""
    known = NodeOperators()
    names = frozenset().union(*(known.of(node).called for node in graph.graph.nodes))
    return tuple(sorted({name.partition(".")[0] for name in names}))

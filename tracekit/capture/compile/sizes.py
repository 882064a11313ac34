"""The dynamic size of a graph and its pieces, and which of a graph's inputs stay where they are."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import sympy
import torch
from torch import SymInt, fx, nn
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StrictMinMaxConstraint, free_symbols
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._sympy.value_ranges import ValueRanges

from tracekit.capture.compile.config import SizeRange


def value_of(node: fx.Node) -> object:
    """The example value of a node: a fake tensor, a number or a tuple; None if the trace has none."""
    return node.meta.get("example_value", node.meta.get("val"))


def inputs_of(graph: fx.GraphModule) -> list[object]:
    """The example values of a graph's inputs, in order."""
    return [value_of(node) for node in graph.graph.find_nodes(op="placeholder")]


def equate_sizes(values: Iterable[object]) -> None:
    """Makes dynamic sizes that are equal in the traced call one size: a guard of the graph, as any that it adds."""
    first: dict[int, torch.SymInt] = {}
    for value in values:
        for size in value.shape if isinstance(value, torch.Tensor) else (value,):
            if isinstance(size, torch.SymInt) and isinstance(size.node.expr, sympy.Symbol) and size.node.has_hint():
                torch._check(size == first.setdefault(size.node.hint, size))  # type: ignore[no-untyped-call]


def dynamic_size(values: Iterable[object]) -> sympy.Symbol | None:
    """The symbol of the first input that is a size; None if all shapes are fixed."""
    for value in values:
        if isinstance(value, torch.SymInt) and isinstance(value.node.expr, sympy.Symbol):
            return value.node.expr
    return None


class SizeInput(NamedTuple):
    """The index of the input that is a piece's size, and whether its shapes depend on no other dynamic size."""

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
    """An example value with other sizes: a new fake tensor, or a number; whatever else it is stays."""

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


def needs_grad(inputs: Sequence[object]) -> bool:
    """Whether autograd would record a call with these inputs."""
    return torch.is_grad_enabled() and any(isinstance(value, torch.Tensor) and value.requires_grad for value in inputs)


_graphs = itertools.count()


class GraphFacts(NamedTuple):
    """A graph's dynamic or fixed size, and its parameters and buffers: by name, and by index where they stay."""

    number: int
    symbol: sympy.Symbol | None
    size_at: int | None
    size: int | None
    static: frozenset[str]
    static_at: tuple[int, ...]
    grad: bool


def facts_of(graph: fx.GraphModule, example_inputs: Sequence[Any]) -> GraphFacts:
    """Reads the properties of a graph from the inputs that Dynamo hands over with it."""
    inputs = graph.graph.find_nodes(op="placeholder")
    values = inputs_of(graph)
    symbol = dynamic_size(values)
    held = [
        index
        for index, value in enumerate(example_inputs)
        if isinstance(value, nn.Parameter) or hasattr(value, "_dynamo_static_input_type")
    ]
    static = frozenset(inputs[index].name for index in held)
    static_at = tuple(index for index in held if not is_traceable_wrapper_subclass(example_inputs[index]))
    moving = [value for node, value in zip(inputs, values, strict=True) if node.name not in static]
    size = _first_dimension(moving) if symbol is None else None
    size_at, grad = size_input(values, symbol).at, needs_grad(values)
    return GraphFacts(next(_graphs), symbol, size_at, size, static, static_at, grad)


def _first_dimension(values: Sequence[object]) -> int | None:
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


class RangeSize(NamedTuple):
    """A size that is known to lie in a range. All pieces of a graph have the same one."""

    sizes: SizeRange
    symbol: sympy.Symbol
    mode: FakeTensorMode

    @classmethod
    def of(cls, sizes: SizeRange) -> "RangeSize":
        """A new size in a range."""
        shapes = ShapeEnv()
        limits = StrictMinMaxConstraint(vr=ValueRanges(sizes.start, max(2, sizes.end)), warn_only=False)
        hint = max(2, sizes.start)
        symbol = shapes.create_symbol(hint, ConstantSource("size"), DimDynamic.DYNAMIC, limits)
        return cls(sizes, symbol, FakeTensorMode(shape_env=shapes))

    @property
    def shapes(self) -> ShapeEnv:
        """What is known about the size."""
        shapes = self.mode.shape_env
        assert shapes is not None
        return shapes

    def holds(self, size: int) -> bool:
        """Whether everything that the compiler took for granted holds for a size."""
        return all(guard.expr.subs(self.symbol, size) is not sympy.false for guard in self.shapes.guards)


def ranged(graph: fx.GraphModule, symbol: sympy.Symbol, to: RangeSize) -> fx.GraphModule:
    """Copies a piece whose shapes depend on one size, which becomes another."""
    hint = max(2, to.sizes.start)

    def size(old: SymInt) -> int | SymInt:
        expression = old.node.expr.xreplace({symbol: to.symbol})
        return to.shapes.create_symintnode(expression, hint=int(expression.subs(to.symbol, hint)))

    return _copied(graph, lambda value: resized(value, size, to.mode))


def _copied(graph: fx.GraphModule, replaced: Callable[[object], object]) -> fx.GraphModule:
    copy = fx.Graph()
    nodes: dict[fx.Node, fx.Node] = {}
    for node in graph.graph.nodes:
        new = nodes[node] = copy.node_copy(node, nodes.__getitem__)
        new.meta = dict(node.meta)
        if value_of(node) is not None:
            new.meta["example_value"] = pytree.tree_map(replaced, value_of(node))
    return fx.GraphModule(graph, copy)

"""The size and inputs of a graph and its pieces, which of these it writes to, and pieces at chosen sizes."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import sympy
import torch
from torch import SymInt, fx, nn
from torch._dynamo.source import ConstantSource
from torch._guards import tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StrictMinMaxConstraint, free_symbols
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, is_traceable_wrapper_subclass
from torch.utils._sympy.value_ranges import ValueRanges
from typing_extensions import override

from tracekit.capture.compile_config import SizeRange


def value_of(node: fx.Node) -> object:
    """The example value of a node: a fake tensor, a number or a tuple; None if the trace has none."""
    return node.meta.get("example_value", node.meta.get("val"))


def inputs_of(graph: fx.GraphModule) -> list[object]:
    """The example values of a graph's inputs, in order."""
    return [value_of(node) for node in graph.graph.find_nodes(op="placeholder")]


def hint(number: Any) -> Any:  # noqa: ANN401 - a number, or whatever else a graph has for a value
    """What a number was in the traced call; None if only a run knows it."""
    return number.node.hint if isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool) else number


@contextmanager
def own_fakes() -> Iterator[FakeTensorMode]:
    """While the block runs, operators take and make fake tensors, and nothing of the trace in progress changes."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with tracing(None), _disable_current_modes(), torch.inference_mode(mode=False), torch.no_grad(), mode:
        yield mode


def resized(value: object, number: Callable[[Any], Any]) -> Any:  # noqa: ANN401
    """An example value with other numbers: new tensors in the active fake mode."""

    def of(leaf: object) -> object:
        if not isinstance(leaf, torch.Tensor):
            return number(leaf)
        shape, strides = [number(size) for size in leaf.shape], [number(step) for step in leaf.stride()]
        tensor = torch.empty_strided(shape, strides, dtype=leaf.dtype, device=leaf.device)
        return tensor.requires_grad_(leaf.requires_grad)

    return pytree.tree_map(of, value)


def equate_sizes(values: Iterable[object]) -> None:
    """Makes dynamic sizes that are equal in the traced call one size: a guard of the graph, as any that it adds."""
    first: dict[int, torch.SymInt] = {}
    for value in values:
        for size in value.shape if isinstance(value, torch.Tensor) else (value,):
            if isinstance(size, torch.SymInt) and isinstance(size.node.expr, sympy.Symbol) and size.node.has_hint():
                torch._check(size == first.setdefault(size.node.hint, size))  # type: ignore[no-untyped-call]


def needs_grad(inputs: Sequence[object]) -> bool:
    """Whether autograd would record a call with these inputs."""
    return torch.is_grad_enabled() and any(isinstance(value, torch.Tensor) and value.requires_grad for value in inputs)


class Size(NamedTuple):
    """The size of a graph or of one of its pieces.

    Attributes:
        symbol: The graph's dynamic size; None if all of its shapes are fixed.
        fixed: The size of all calls, where shapes are fixed.
        at: Index of the input that is the dynamic size, if there is one.
        alone: Whether the shapes of the inputs depend on no other dynamic size.
    """

    symbol: sympy.Symbol | None
    fixed: int | None = None
    at: int | None = None
    alone: bool = True

    def among(self, values: Sequence[object]) -> "Size":
        """This size as inputs with these values have it."""
        sized = [value for value in values if isinstance(value, torch.Tensor | torch.SymInt)]
        free: set[sympy.Symbol] = set().union(*map(free_symbols, sized))
        exprs = [value.node.expr if isinstance(value, SymInt) else None for value in values]
        at = exprs.index(self.symbol) if self.symbol is not None and self.symbol in exprs else None
        return self._replace(at=at, alone=free <= {self.symbol})

    def of(self, args: Sequence[Any]) -> int | None:
        """The size of a call; None if it has none."""
        return self.fixed if self.at is None else args[self.at]


_graphs = itertools.count()


class GraphFacts(NamedTuple):
    """A graph's number and size, and its inputs.

    Attributes:
        moving: The tensors that the caller passes, which may lie elsewhere at every call: index → name.
        static: Indices of parameters and buffers that have an address.
        grad: Whether it was traced to be differentiated.
        known: Code for any size, by torch's keys of the pieces.
    """

    number: int
    size: Size
    moving: dict[int, str]
    static: tuple[int, ...]
    grad: bool
    known: dict[str, Callable[..., Any]]


def facts_of(graph: fx.GraphModule, example_inputs: Sequence[Any]) -> GraphFacts:
    """Reads the properties of a graph from the inputs that Dynamo hands over with it."""
    nodes = graph.graph.find_nodes(op="placeholder")
    values = inputs_of(graph)
    symbols = (value.node.expr for value in values if isinstance(value, SymInt))
    symbol = next((symbol for symbol in symbols if isinstance(symbol, sympy.Symbol)), None)
    moving: dict[int, str] = {}
    static, fixed = [], None
    for index, (value, example) in enumerate(zip(values, example_inputs, strict=True)):
        if isinstance(example, nn.Parameter) or hasattr(example, "_dynamo_static_input_type"):
            if not is_traceable_wrapper_subclass(example):
                static.append(index)
        elif isinstance(value, torch.Tensor):
            moving[index] = nodes[index].name
            if fixed is None and value.dim():
                fixed = value.shape[0]
    size = Size(symbol, fixed if symbol is None and isinstance(fixed, int) else None).among(values)
    return GraphFacts(next(_graphs), size, moving, tuple(static), needs_grad(values), known={})


class CodeSize:
    """What code is compiled for: one size, or one that is known to lie in a range. A graph's pieces have the same."""

    def __init__(self, sizes: SizeRange) -> None:
        self.sizes = sizes
        self.shapes = ShapeEnv()
        self.expr = sympy.Integer(sizes.start)
        if sizes.start < sizes.end:
            limits = StrictMinMaxConstraint(vr=ValueRanges(sizes.start, sizes.end), warn_only=False)
            first = max(2, sizes.start)
            self.expr = self.shapes.create_symbol(first, ConstantSource("size"), DimDynamic.DYNAMIC, limits)
        self.mode = FakeTensorMode(shape_env=self.shapes)
        self.known: dict[str, Callable[..., Any]] = {}

    @property
    def single(self) -> bool:
        """Whether it is one size."""
        return self.sizes.start == self.sizes.end

    def holds(self, size: int) -> bool:
        """Whether it is such a size, for which everything holds that the compiler took for granted."""
        return self.sizes.start <= size <= self.sizes.end and all(
            guard.expr.subs(self.expr, size) is not sympy.false for guard in self.shapes.guards
        )

    def applied(self, graph: fx.GraphModule, symbol: sympy.Symbol) -> fx.GraphModule:
        """Copies a piece whose shapes depend on one size, which becomes this one: of one size, in the inputs alone."""
        if not self.single and not Size(symbol).among([value_of(node) for node in graph.graph.nodes]).alone:
            raise RuntimeError("its shapes depend on further sizes")

        def number(old: object) -> object:
            if not isinstance(old, SymInt):
                return old
            expr = old.node.expr.xreplace({symbol: self.expr})
            at = int(expr.subs(self.expr, max(2, self.sizes.start)))
            return int(expr) if self.single else self.shapes.create_symintnode(expr, hint=at)

        copy = fx.Graph()
        nodes: dict[fx.Node, fx.Node] = {}
        for node in graph.graph.nodes:
            new = nodes[node] = copy.node_copy(node, nodes.__getitem__)
            new.meta = dict(node.meta)
            if value_of(node) is not None and (node.op == "placeholder" or not self.single):
                with self.mode:
                    new.meta["example_value"] = resized(value_of(node), number)
        return fx.GraphModule(graph, copy)


def written_inputs(graph: fx.GraphModule) -> set[int]:
    """Indices of the inputs that the graph may write to; all of them where that cannot be found out by running it."""
    values = inputs_of(graph)
    every = set(range(len(values)))
    if any(value is None for value in values):
        return every
    try:
        with own_fakes():
            inputs = [resized(value, hint) for value in values]
            with _Writes() as writes:
                _Running(graph).run(*inputs)
    except Exception:  # noqa: BLE001 - a piece without its surroundings may raise anything
        return every
    tensors = ((index, value) for index, value in enumerate(inputs) if isinstance(value, torch.Tensor))
    return {index for index, value in tensors if memory_of(value) in writes.memory}


class _Writes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the memory that operators write to, as their schemas say it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.memory: set[int] = set()

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for index, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                written = args[index] if index < len(args) else kwargs.get(argument.name)
                self.memory |= {memory_of(item) for item in pytree.tree_leaves(written) if item is not None}
        return func(*args, **kwargs)


class _Running(fx.Interpreter):
    """Runs a graph but for what neither takes nor returns tensors: sizes, and switches of autograd or autocast."""

    @override
    def run_node(self, n: fx.Node) -> Any:
        """The value of a node."""
        values = (*self.fetch_args_kwargs_from_env(n), value_of(n))
        if n.op.startswith("call_") and not any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(values)):
            return resized(value_of(n), hint)
        return super().run_node(n)


def memory_of(tensor: torch.Tensor) -> int:
    """Identifies a tensor's memory. All tensors that are not strided are assumed to share theirs."""
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else -1

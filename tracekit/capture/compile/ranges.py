"""A piece for a range of sizes: the same graph, traced anew with a size that is known to lie in the range."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import sympy
from torch import fx
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StrictMinMaxConstraint
from torch.utils import _pytree as pytree
from torch.utils._sympy.value_ranges import ValueRanges

from tracekit.capture.compile.sizes import resized, value_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import SymInt

    from tracekit.capture.compile.config import SizeRange


class RangedPiece(NamedTuple):
    """A copy of a piece with a size of its own.

    Attributes:
        graph: The copy.
        symbol: Its size.
        shapes: What is known, and becomes known, about the size.
    """

    graph: fx.GraphModule
    symbol: sympy.Symbol
    shapes: ShapeEnv

    def holds(self, size: int) -> bool:
        """Whether everything that the compiler took for granted holds for a size."""
        return all(guard.expr.subs(self.symbol, size) is not sympy.false for guard in self.shapes.guards)


def ranged(graph: fx.GraphModule, symbol: sympy.Symbol, sizes: SizeRange) -> RangedPiece:
    """Copies a piece whose shapes depend on one size.

    Args:
        graph: The piece.
        symbol: Its size.
        sizes: The range that the copy is for.
    """
    shapes = ShapeEnv()
    mode, hint = FakeTensorMode(shape_env=shapes), max(2, sizes.start)
    limits = StrictMinMaxConstraint(vr=ValueRanges(sizes.start, max(2, sizes.end)), warn_only=False)
    new = shapes.create_symbol(hint, ConstantSource("size"), DimDynamic.DYNAMIC, limits)

    def size(old: SymInt) -> int | SymInt:
        expression = old.node.expr.xreplace({symbol: new})
        return shapes.create_symintnode(expression, hint=int(expression.subs(new, hint)))

    def replaced(value: object) -> object:
        return resized(value, size, mode)

    return RangedPiece(_copied(graph, replaced), new, shapes)


def _copied(graph: fx.GraphModule, replaced: Callable[[object], object]) -> fx.GraphModule:
    """A copy of a graph, with other example values."""
    copy = fx.Graph()
    nodes: dict[fx.Node, fx.Node] = {}
    for node in graph.graph.nodes:
        new = nodes[node] = copy.node_copy(node, nodes.__getitem__)
        new.meta = dict(node.meta)
        if value_of(node) is not None:
            new.meta["example_value"] = pytree.tree_map(replaced, value_of(node))
    return fx.GraphModule(graph, copy)

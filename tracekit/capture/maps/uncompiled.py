"""Which modules the operators between compiled pieces serve: engines leave out of them what a compiler cannot take.

No compiler rewrites these graphs, so that their nodes tell whose work they are. What an operator launches, and how
often, nobody knows; where all operators are of one module, nobody has to.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from tracekit.capture.maps.placed import Placed
from tracekit.capture.maps.runs import Runs
from tracekit.capture.maps.texts import module_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import fx

    from tracekit.capture.maps.traced import Traced


def running_uncompiled(
    run: Callable[..., Any], graph: fx.GraphModule, traced: Traced, *, grad: bool
) -> Callable[..., Any]:
    """A piece that runs as it was traced, with ranges that tell whose work it is.

    Args:
        run: Runs the piece.
        graph: Its graph.
        traced: The modules of that graph.
        grad: Whether autograd records its runs.
    """
    runs = Runs(lambda inputs: run(*inputs), _placed(graph, traced), "forward" if grad else "inference", traced)

    def piece(*args: Any) -> Any:  # noqa: ANN401 - whatever the piece takes and returns
        return runs(args)

    return piece


def _placed(graph: fx.GraphModule, traced: Traced) -> Placed:
    """Operators of one module that follow each other stand together, under the name of the first."""
    operators = (node for node in graph.graph.nodes if node.op.startswith("call_") and _name(node) != "getitem")
    texts = groupby(operators, module_text)
    kernels = ((_name(next(nodes)), False, ((traced.numbers[text], 1),)) for text, nodes in texts)
    return Placed(traced.digest, tuple(kernels))


def _name(node: fx.Node) -> str:
    """What a node calls. It is no operator's name: the operator may call others of that name."""
    return str(getattr(node.target, "__name__", node.target))

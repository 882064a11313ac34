"""Puts the pieces of a split graph together: what each argument of a piece is, and the function that runs them all."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tracekit.capture.compile.compiler import needs_grad, real_forward
from tracekit.capture.compile.sizes import value_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from torch import fx

    from tracekit.capture.compile.inputs import StaticInputs
    from tracekit.capture.compile.piece import Piece
    from tracekit.capture.compile.split import Split


class Arguments(NamedTuple):
    """What the tensor arguments of a piece are.

    Attributes:
        watched: Places of those that may lie elsewhere at the next call: all but parameters and buffers.
        given: Places of those that the caller of the model gives, with their names in the graph.
    """

    watched: tuple[int, ...]
    given: dict[int, str]


def arguments(made: Split, name: str, static: Collection[str]) -> Arguments:
    """What the arguments of one piece are.

    Args:
        made: The split graph.
        name: The piece.
        static: Names of the graph's inputs that stay where they are.
    """
    (call,) = made.graph.graph.find_nodes(op="call_module", target=name)
    part: fx.GraphModule = getattr(made.graph, name)
    values = [value_of(node) for node in part.graph.find_nodes(op="placeholder")]
    watched: list[int] = []
    given: dict[int, str] = {}
    for at, (node, value) in enumerate(zip(call.args, values, strict=True)):
        if not isinstance(value, torch.Tensor) or node.op == "get_attr" or node.name in static:
            continue
        watched.append(at)
        if node.op == "placeholder":
            given[at] = node.name
    return Arguments(tuple(watched), given)


def stitched(made: Split, pieces: Mapping[str, Piece]) -> Callable[..., Any]:
    """What runs the pieces in order; the split graph is used up.

    The graph's own code calls them, and lets go of each value after its last use.
    """
    for name, piece in pieces.items():
        delattr(made.graph, name)
        made.graph.__dict__[name] = piece
    return real_forward(made.graph)


def fresh_results(made: Split, splitting: Collection[str]) -> frozenset[int]:
    """Places of the results that no captured graph can have written: those of splitting operators."""
    (output,) = made.graph.graph.find_nodes(op="output")
    results = output.args[0]
    if not isinstance(results, tuple | list):
        return frozenset()
    return frozenset(at for at, node in enumerate(results) if _made_by(node) in splitting)


def _made_by(node: object) -> str | None:
    taken = getattr(node, "args", ())
    if getattr(node, "target", None) is not operator.getitem or not taken:
        return None
    return str(taken[0].target)


class BoundCall:
    """A call of a graph whose pieces are bound to memory at some sizes.

    At these sizes inputs are copied into buffers that stay, if there are any, and results are copied out of what the
    next call overwrites.

    Args:
        run: Runs the pieces.
        bound: Whether a call with these arguments has such a size.
        inputs: The buffers; None to let inputs lie where they lie.
        fresh: Places of the results that need no copy; None to copy none.
        always: Whether some piece is bound at all sizes, so that all results are copied.
    """

    def __init__(
        self,
        run: Callable[..., Any],
        bound: Callable[[Sequence[Any]], bool],
        inputs: StaticInputs | None,
        fresh: frozenset[int] | None,
        *,
        always: bool,
    ) -> None:
        self._run = run
        self._inputs = inputs
        self._bound = bound
        self._fresh = fresh
        self._always = always

    def __call__(self, *args: Any) -> Any:  # noqa: ANN401 - whatever the model takes and gives
        """Runs the graph."""
        if needs_grad(args):
            return self._run(*args)
        if not self._bound(args):
            results = self._run(*args)
            return self._copied(results) if self._always else results
        if self._inputs is None:
            return self._copied(self._run(*args))
        filled = self._inputs.filled(args)
        results = self._run(*filled)
        self._inputs.give_back(filled, args)
        return self._copied(results)

    def _copied(self, results: Any) -> Any:  # noqa: ANN401
        fresh = self._fresh
        if fresh is None or not isinstance(results, tuple | list):
            return results
        return tuple(
            item.clone() if isinstance(item, torch.Tensor) and at not in fresh else item
            for at, item in enumerate(results)
        )

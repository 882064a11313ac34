"""Joins the pieces of a split graph: describes each piece's arguments, and builds the function that runs all pieces."""

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
    """The tensor arguments of a piece, by index.

    Attributes:
        watched: Those whose address may change from call to call: all except parameters and buffers.
        given: Those that the model's caller passes, with their names in the graph.
    """

    watched: tuple[int, ...]
    given: dict[int, str]


def arguments(split_graph: Split, name: str, static: Collection[str]) -> Arguments:
    """Describes the arguments of one piece.

    Args:
        split_graph: The split graph.
        name: The piece.
        static: Names of the graph's inputs whose addresses never change.
    """
    (call,) = split_graph.graph.graph.find_nodes(op="call_module", target=name)
    part: fx.GraphModule = getattr(split_graph.graph, name)
    values = [value_of(node) for node in part.graph.find_nodes(op="placeholder")]
    watched: list[int] = []
    given: dict[int, str] = {}
    for index, (node, value) in enumerate(zip(call.args, values, strict=True)):
        if not isinstance(value, torch.Tensor) or node.op == "get_attr" or node.name in static:
            continue
        watched.append(index)
        if node.op == "placeholder":
            given[index] = node.name
    return Arguments(tuple(watched), given)


def stitched(split_graph: Split, pieces: Mapping[str, Piece]) -> Callable[..., Any]:
    """Returns the function that runs the pieces in order. It consumes the split graph.

    The graph's own code calls the pieces, and releases each value after its last use.
    """
    for name, piece in pieces.items():
        delattr(split_graph.graph, name)
        split_graph.graph.__dict__[name] = piece
    return real_forward(split_graph.graph)


def fresh_results(split_graph: Split, splitting: Collection[str]) -> frozenset[int]:
    """Indices of the results that no CUDA graph can have written: those of splitting operators."""
    (output,) = split_graph.graph.graph.find_nodes(op="output")
    results = output.args[0]
    if not isinstance(results, tuple | list):
        return frozenset()
    return frozenset(index for index, node in enumerate(results) if _producer(node) in splitting)


def _producer(node: object) -> str | None:
    """The name of the piece that a result was taken from."""
    args = getattr(node, "args", ())
    if getattr(node, "target", None) is not operator.getitem or not args:
        return None
    return str(args[0].target)


class BoundGraph:
    """Calls a graph whose pieces are bound to memory at some sizes.

    At these sizes it copies the inputs into static buffers, if there are any, and copies the results out of the memory
    that the next call overwrites.

    Args:
        run: Runs the pieces.
        bound: Whether a call with these arguments has such a size.
        inputs: The static buffers; None to pass inputs as they are.
        fresh: Indices of the results that need no copy; None to copy none.
        always: Whether some piece is bound at every size, so that results are always copied.
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

    def __call__(self, *args: Any) -> Any:  # noqa: ANN401 - whatever the model takes and returns
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
            item.clone() if isinstance(item, torch.Tensor) and index not in fresh else item
            for index, item in enumerate(results)
        )

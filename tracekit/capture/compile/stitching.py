"""Joins the pieces of a split graph: describes each piece's arguments, and builds the function that runs all pieces."""

from __future__ import annotations

import logging
import operator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tracekit.capture.compile.compiler import needs_grad, real_forward
from tracekit.capture.compile.sizes import value_of
from tracekit.capture.compile.writes import memory

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from contextlib import AbstractContextManager

    from torch import fx

    from tracekit.capture.compile.inputs import StaticInputs
    from tracekit.capture.compile.piece import Piece
    from tracekit.capture.compile.split import Split

_LOG = logging.getLogger("tracekit.capture")


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


def fresh_results(split_graph: Split) -> frozenset[int]:
    """Indices of the results in memory of their own: splitting operators made them, and not as views of inputs."""
    (output,) = split_graph.graph.graph.find_nodes(op="output")
    results = output.args[0]
    if not isinstance(results, tuple | list):
        return frozenset()
    splitting = {part.name: part.graph for part in split_graph.parts if part.splitting}
    return frozenset(index for index, node in enumerate(results) if _is_fresh(node, splitting))


def _is_fresh(node: object, splitting: Mapping[str, fx.GraphModule]) -> bool:
    """Whether a result is taken from one of these pieces and shares no memory with what the piece was given."""
    args = getattr(node, "args", ())
    if getattr(node, "target", None) is not operator.getitem or not args or str(args[0].target) not in splitting:
        return False
    graph = splitting[str(args[0].target)].graph
    (output,) = graph.find_nodes(op="output")
    made = value_of(output.args[0][args[1]])
    inputs = (value_of(item) for item in graph.find_nodes(op="placeholder"))
    given = {memory(value) for value in inputs if isinstance(value, torch.Tensor)}
    return isinstance(made, torch.Tensor) and memory(made) not in given


class StaticAddresses:
    """Notices when parameters or buffers have moved, as by ``p.data = …`` or ``load_state_dict(assign=True)``.

    Args:
        static: Indices of the parameters and buffers among a graph's inputs.
        pieces: The pieces whose CUDA graphs read them.
    """

    def __init__(self, static: Sequence[int], pieces: Sequence[Piece]) -> None:
        self._static = tuple(static)
        self._pieces = tuple(pieces)
        self._addresses: list[int] | None = None

    def check(self, args: Sequence[Any]) -> None:
        """Drops the CUDA graphs if any parameter or buffer lies elsewhere than before; they are captured again."""
        addresses = [args[index].data_ptr() for index in self._static]
        if addresses == self._addresses:
            return
        if self._addresses is not None:
            _LOG.info("parameters or buffers have other addresses than before, so CUDA graphs are captured again")
            for piece in self._pieces:
                piece.drop_graphs()
        self._addresses = addresses


class BoundMemory(NamedTuple):
    """The memory that the CUDA graphs of a graph's pieces are bound to.

    Attributes:
        static: Checks the addresses of parameters and buffers.
        inputs: Static buffers to copy inputs into; None to pass inputs as they are.
        fresh: Indices of the results that lie elsewhere and need no copy; None to copy none.
        lock: Held while a call uses the memory.
    """

    static: StaticAddresses
    inputs: StaticInputs | None
    fresh: frozenset[int] | None
    lock: AbstractContextManager[object]


class BoundGraph:
    """Calls a graph whose pieces are bound to memory at some sizes, one thread at a time.

    At these sizes it copies the inputs into static buffers, if there are any, and copies the results out of the memory
    that the next call overwrites.

    Args:
        run: Runs the pieces.
        bound: Whether a call with these arguments has such a size.
        memory: What the pieces are bound to.
        always: Whether some piece is bound at every size, so that results are always copied.
    """

    def __init__(
        self, run: Callable[..., Any], bound: Callable[[Sequence[Any]], bool], memory: BoundMemory, *, always: bool
    ) -> None:
        self._run = run
        self._bound = bound
        self._static, self._inputs, self._fresh, self._lock = memory
        self._always = always

    def __call__(self, *args: Any) -> Any:  # noqa: ANN401 - whatever the model takes and returns
        """Runs the graph."""
        if needs_grad(args):
            return self._run(*args)
        bound = self._bound(args)
        if not bound and not self._always:
            return self._run(*args)
        with self._lock:
            self._static.check(args)
            if self._inputs is None or not bound:
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

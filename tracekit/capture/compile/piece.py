"""Pieces at run time: each chooses its code for a size, is captured as a CUDA graph and replayed, and marks how it ran.

CUDA graphs are bound to memory: the addresses of their inputs, and their results, which the next replay overwrites.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from typing import Any, NamedTuple

import torch

from tracekit.capture.compile.compiler import counters
from tracekit.capture.compile.cudagraph import Call, Graphs, random_numbers_kept
from tracekit.capture.compile.sizes import CodeSize, GraphFacts, Size, memory_of, needs_grad
from tracekit.capture.compile_config import CompileConfig
from tracekit.capture.emit import Emitter, quiet_emitter
from tracekit.errors import CaptureError
from tracekit.markers import formatting

_LOG = logging.getLogger("tracekit.capture")
#: CUDA refuses to capture two graphs at once in one process.
_GRAPH_CAPTURE = threading.RLock()


@dataclass(eq=False)
class Codes:
    """The code that a piece was compiled to. The first that fits counts; the general code is made when it is needed."""

    way: str
    codes: Sequence[tuple[CodeSize, Call]]
    make_general: Callable[[], Call]

    @cached_property
    def general(self) -> Call:
        """The code for all other sizes."""
        with random_numbers_kept():
            return self.make_general()

    def chosen(self, size: int | None) -> tuple[str, Call]:
        """The code for a size, after the name of what it was compiled for."""
        for at, run in self.codes:
            if size is not None and at.holds(size):
                return str(at.sizes), run
        return "general", self.general


class GraphCapturePlan(NamedTuple):
    """How a piece is captured as CUDA graphs.

    Attributes:
        graphs: What captures the graphs.
        config: At which sizes, and how. A piece that has no size is captured once.
        watched: Arguments that may have another address at the next call: index → name if the model's caller passes it.
        repeatable: Whether running a call twice is harmless. If not, the caller's own calls are the warm-up.
    """

    graphs: Graphs
    config: CompileConfig
    watched: Mapping[int, str | None]
    repeatable: bool


@dataclass(eq=False)
class Piece:
    """The callable that the split graph calls for a piece: the one of this name in the graph of this number."""

    graph: int
    name: str
    size: Size
    codes: Codes
    plan: GraphCapturePlan | None
    _runs: dict[int | None, "_Run"] = field(default_factory=dict)

    def __call__(self, *args: Any) -> Any:  # noqa: ANN401 - whatever the piece takes and returns
        """Runs the piece."""
        size = self.size.of(args)
        if (run := self._runs.get(size)) is None:
            run = self._runs[size] = _Run(self, size)
        return run(args)

    def drop_graphs(self) -> None:
        """Drops its CUDA graphs: each size is warmed up and captured again."""
        self._runs = {size: run for size, run in self._runs.items() if run.plan is None}


class _Run:
    """A piece at one size."""

    def __init__(self, piece: Piece, size: int | None) -> None:
        self.piece = piece
        self.size = size
        self.compiled_for, self.code = piece.codes.chosen(size)
        plan = piece.plan
        self.plan = plan if plan and size in (None, *plan.config.cudagraph_sizes) else None
        self.warmups = 0 if plan is None or plan.repeatable else plan.config.cudagraph_warmups
        self.replay: Call | None = None
        self.addresses: dict[int, int] = {}
        self.emitter: Emitter | None = None
        self.openers: dict[str, Callable[[], object]] = {}

    def __call__(self, args: Sequence[Any]) -> Any:  # noqa: ANN401
        run, way = self.code, self.piece.codes.way
        if self.plan is not None:
            run, way = self._graph(self.plan, args) or (run, way)
        if (emitter := quiet_emitter()) is not self.emitter:
            self.emitter, self.openers = emitter, {}
        if (opener := self.openers.get(way)) is None:
            code = None if self.piece.codes.way == "eager" else self.compiled_for
            text = formatting.piece(self.piece.name, self.piece.graph, way, size=self.size, code=code)
            opener = self.openers[way] = emitter.opener(text)
        opener()
        try:
            return run(*args)
        finally:
            emitter.close()

    def _graph(self, plan: GraphCapturePlan, args: Sequence[Any]) -> tuple[Call, str] | None:
        if (plan.graphs.bound and needs_grad(args)) or not plan.graphs.ready():
            return None
        if self.replay is not None:
            moved = [index for index, address in self.addresses.items() if args[index].data_ptr() != address]
            given = filter(None, map(plan.watched.get, moved))
            if plan.config.debug and (name := next(given, None)) is not None:
                raise CaptureError(
                    f"{self.piece.name}: {name} has another address than at the graph capture for size {self.size}; "
                    f"pass the same tensor again, or set copy_inputs=True"
                )
            if not moved or not plan.graphs.bound:
                return self.replay, "replayed"
            _warn_moved()
            return None
        if self.warmups:
            self.warmups -= 1
            return None
        return partial(self._capture_graph, plan), "captured"

    def _capture_graph(self, plan: GraphCapturePlan, *args: Any) -> Any:  # noqa: ANN401
        try:
            self.addresses = {index: args[index].data_ptr() for index in plan.watched}
            with _GRAPH_CAPTURE:
                warmups = plan.config.cudagraph_warmups if plan.repeatable else 0
                self.replay = plan.graphs.capture_graph(self.code, args, warmups=warmups)
        except RuntimeError as error:
            # If the model itself failed, it fails again below.
            self.plan = None
            reason = str(error).partition("\n")[0]
            _LOG.warning("%s cannot be captured as a CUDA graph at size %s: %s", self.piece.name, self.size, reason)
            return self.code(*args)
        counters.graphs_captured += 1
        return self.replay(*args)


@cache
def _warn_moved() -> None:
    _LOG.warning(
        "pieces run without their CUDA graphs because inputs have other addresses than at the graph capture; pass the "
        "same tensors again, or set copy_inputs=True"
    )


class StaticInputs:
    """Buffers for the inputs of one graph, with one view per size. One thread at a time may use them.

    ``mutated`` has all inputs that the graph writes to; those that are moving are copied back. If there are any, inputs
    that share memory stay where they are.
    """

    def __init__(self, moving: Collection[int], mutated: Collection[int]) -> None:
        self._moving = tuple(moving)
        self._mutated = frozenset(mutated)
        self._memory: dict[int, torch.Tensor] = {}
        self._views: dict[Hashable, torch.Tensor] = {}

    def filled(self, args: Sequence[Any]) -> list[Any]:
        """The arguments, with moving inputs replaced by buffers that hold copies."""
        filled = list(args)
        shared = _sharing(args) if self._mutated else ()
        for index in self._moving:
            if (tensor := args[index]).layout is torch.strided and index not in shared and not _overlaps(tensor):
                filled[index] = self._buffer(index, tensor).copy_(tensor)
        return filled

    def give_back(self, filled: Sequence[Any], args: Sequence[Any]) -> None:
        """Copies what the graph wrote into buffers back to the caller's tensors."""
        for index in self._mutated.intersection(self._moving):
            if filled[index] is not args[index]:
                args[index].copy_(filled[index])

    def _buffer(self, index: int, tensor: torch.Tensor) -> torch.Tensor:
        key = (index, tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        if key not in self._views:
            needed, memory = _span(tensor), self._memory.get(index)
            if memory is None or memory.numel() < needed or memory.dtype != tensor.dtype:
                # Views of other sizes keep the old memory alive.
                # What is made in inference mode could not be written to outside of it.
                with torch.inference_mode(mode=False):
                    memory = self._memory[index] = torch.empty(needed, dtype=tensor.dtype, device=tensor.device)
            self._views[key] = memory.as_strided(tensor.shape, tensor.stride())
        return self._views[key]


class BoundGraph:
    """Calls a graph whose pieces are bound to memory at some sizes, one thread at a time.

    At these sizes it copies the inputs into static buffers, if there are any, and copies the results out of the memory
    that the next call overwrites. If parameters or buffers have moved, as by ``p.data = …`` or
    ``load_state_dict(assign=True)``, it drops the CUDA graphs: they are captured again.
    """

    def __init__(
        self, run: Call, facts: GraphFacts, pieces: Sequence[Piece], inputs: StaticInputs | None, plan: GraphCapturePlan
    ) -> None:
        self._run, self._facts, self._pieces, self._inputs = run, facts, pieces, inputs
        self._lock = plan.graphs.lock
        self._sizes = {None, *plan.config.cudagraph_sizes}
        self._copied = plan.config.copy_outputs and (inputs is not None or plan.graphs.bound)
        # Pieces that have no size are bound at all sizes.
        self._always = any(piece.plan and piece.size.at is piece.size.fixed is None for piece in pieces)
        self._addresses: list[int] | None = None

    def __call__(self, *args: Any) -> Any:  # noqa: ANN401 - whatever the model takes and returns
        """Runs the graph."""
        bound = self._facts.size.of(args) in self._sizes
        if needs_grad(args) or not (bound or self._always):
            return self._run(*args)
        with self._lock:
            self._check_addresses(args)
            if self._inputs is None or not bound:
                return self._results(self._run(*args))
            filled = self._inputs.filled(args)
            results = self._run(*filled)
            self._inputs.give_back(filled, args)
            return self._results(results)

    def _check_addresses(self, args: Sequence[Any]) -> None:
        before, self._addresses = self._addresses, [args[index].data_ptr() for index in self._facts.static]
        if before not in (None, self._addresses):
            _LOG.info("parameters or buffers have other addresses than before, so CUDA graphs are captured again")
            for piece in self._pieces:
                piece.drop_graphs()

    def _results(self, results: Any) -> Any:  # noqa: ANN401
        if self._copied:
            return tuple(item.clone() if isinstance(item, torch.Tensor) else item for item in results)
        return results


def _overlaps(tensor: torch.Tensor) -> bool:
    """Whether elements share memory for certain, as those of what is expanded, which torch does not copy to."""
    return torch._debug_has_internal_overlap(tensor) == 1


def _span(tensor: torch.Tensor) -> int:
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in pairs) if tensor.numel() else 0


def _sharing(args: Sequence[Any]) -> set[int]:
    """Indices of the arguments that are views of the same memory as others."""
    memory = {index: memory_of(value) for index, value in enumerate(args) if isinstance(value, torch.Tensor)}
    uses = Counter(memory.values())
    return {index for index, used in memory.items() if uses[used] > 1}

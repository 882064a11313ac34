"""One piece at run time: chooses the code for a size, captures it as a CUDA graph, replays it, and marks how it ran."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property, partial
from typing import Any, NamedTuple

from tracekit.capture.compile.counters import counters
from tracekit.capture.compile.cudagraph import Call, Graphs, random_numbers_kept
from tracekit.capture.compile.sizes import CodeSize, Size, needs_grad
from tracekit.capture.compile_config import CompileConfig
from tracekit.capture.emit import Emitter, quiet_emitter
from tracekit.errors import CaptureError
from tracekit.markers import formatting

_LOG = logging.getLogger("tracekit.capture")
#: Above this many sizes, a piece forgets which code it chose for the earlier ones.
_MOST_RUNS = 4_096
#: CUDA refuses to capture two graphs at once in one process.
_GRAPH_CAPTURE = threading.RLock()


class Codes:
    """The code that a piece was compiled to. The first that fits counts; the general code is made when it is needed."""

    def __init__(self, way: str, codes: Sequence[tuple[CodeSize, Call]], make_general: Callable[[], Call]) -> None:
        self.way = way
        self._codes = tuple(codes)
        self._make_general = make_general

    @cached_property
    def general(self) -> Call:
        """The code for all other sizes."""
        with random_numbers_kept():
            return self._make_general()

    def chosen(self, size: int | None) -> tuple[str, Call]:
        """The code for a size, after the name of what it was compiled for."""
        for at, run in self._codes:
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


class Piece:
    """The callable that the split graph calls for a piece: the one of this name in the graph of this number."""

    def __init__(self, graph: int, name: str, size: Size, codes: Codes, plan: GraphCapturePlan | None) -> None:
        self.graph = graph
        self.name = name
        self.size = size
        self.codes = codes
        self.plan = plan
        self._runs: dict[int | None, _Run] = {}

    def __call__(self, *args: Any) -> Any:  # noqa: ANN401 - whatever the piece takes and returns
        """Runs the piece."""
        size = self.size.of(args)
        run = self._runs.get(size) or self._run(size)
        return run(args)

    def drop_graphs(self) -> None:
        """Drops its CUDA graphs: each size is warmed up and captured again."""
        self._runs = {size: run for size, run in self._runs.items() if run.plan is None}

    def _run(self, size: int | None) -> "_Run":
        if len(self._runs) >= _MOST_RUNS:
            self._runs = {size: run for size, run in self._runs.items() if run.replay is not None}
        run = self._runs[size] = _Run(self, size)
        return run


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
        (self.openers.get(way) or self._opener(emitter, way))()
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

    def _opener(self, emitter: Emitter, way: str) -> Callable[[], object]:
        code = None if self.piece.codes.way == "eager" else self.compiled_for
        text = formatting.piece(self.piece.name, self.piece.graph, way, size=self.size, code=code)
        opener = self.openers[way] = emitter.opener(text)
        return opener


@cache
def _warn_moved() -> None:
    _LOG.warning(
        "pieces run without their CUDA graphs because inputs have other addresses than at the graph capture; pass the "
        "same tensors again, or set copy_inputs=True"
    )

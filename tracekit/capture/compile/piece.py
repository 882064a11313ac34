"""One piece at run time: chooses the code for a size, captures it as a CUDA graph, replays it, and marks how it ran."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from tracekit.capture.compile.config import SizeRange
from tracekit.capture.compile.counters import counters
from tracekit.capture.compile.cudagraph import Graphs, Replay, random_numbers_kept
from tracekit.capture.compile.sizes import needs_grad
from tracekit.capture.emit import Emitter, quiet_emitter
from tracekit.errors import CaptureError
from tracekit.markers import formatting

_LOG = logging.getLogger("tracekit.capture")
#: Above this many sizes, a piece forgets which code it chose for the earlier ones.
_MOST_RUNS = 4_096
GENERAL = "general"
#: CUDA refuses to capture two graphs at once in one process.
_GRAPH_CAPTURE = threading.RLock()


class Place(NamedTuple):
    """Where a piece is in its graph, and where its size is in its arguments, unless all calls have one ``size``."""

    graph: int
    name: str
    size_at: int | None = None
    size: int | None = None


class RangeCode(NamedTuple):
    """Code for a range of sizes, and whether what the compiler took for granted holds for a size, if that is known."""

    sizes: SizeRange
    run: Callable[..., Any]
    holds: Callable[[int], bool] | None


class Codes:
    """The code that a piece was compiled to. The first matching range counts; ``general`` is made when it is needed."""

    def __init__(self, make_general: Callable[[], Callable[..., Any]], way: str) -> None:
        self.sizes: dict[int, Callable[..., Any]] = {}
        self.ranges: list[RangeCode] = []
        self.general: Callable[..., Any] | None = None
        self.way = way
        self._make_general = make_general
        self._lock = threading.Lock()

    def chosen(self, size: int | None) -> tuple[str, Callable[..., Any]]:
        """The code for a size, after the name of what it was compiled for. Single sizes come first, then ranges."""
        if size in self.sizes and size is not None:
            return str(size), self.sizes[size]
        for sizes, code, holds in self.ranges:
            if size is not None and size in sizes and (holds is None or holds(size)):
                return f"{sizes.start}-{sizes.end}", code
        with self._lock:
            if self.general is None:
                with random_numbers_kept():
                    self.general = self._make_general()
            return GENERAL, self.general


class GraphCapturePlan(NamedTuple):
    """How and at which sizes a piece is captured as a CUDA graph.

    Attributes:
        graphs: What captures the graphs.
        sizes: The sizes to capture; None stands for a piece that has no size.
        watched: Indices of the arguments that may have another address at the next call.
        given: Those of them that the model's caller passes: index → name.
        warmups: Number of runs before the graph capture.
        repeatable: Whether running a call twice is harmless. If not, the caller's own calls are the warm-up.
        first: Whether it is the first piece of its graph to be captured.
        debug: Whether moved arguments are an error. If not, such a call runs without its graph.
    """

    graphs: Graphs
    sizes: frozenset[int | None]
    watched: tuple[int, ...]
    given: Mapping[int, str]
    warmups: int
    repeatable: bool
    first: bool
    debug: bool


class Piece:
    """The callable that the split graph calls for a piece."""

    def __init__(self, place: Place, codes: Codes, plan: GraphCapturePlan | None) -> None:
        self.place = place
        self.codes = codes
        self.graph_capture = plan
        self._runs: dict[int | None, _Run] = {}

    def __call__(self, *args: Any) -> Sequence[Any]:  # noqa: ANN401 - whatever the piece takes
        """Runs the piece."""
        size_at = self.place.size_at
        size = self.place.size if size_at is None else args[size_at]
        run = self._runs.get(size) or self._run(size)
        return run(args)

    @property
    def graph_capture_sizes(self) -> frozenset[int | None]:
        """The sizes at which it is captured as a CUDA graph; None stands for a piece without a size."""
        return frozenset() if self.graph_capture is None else self.graph_capture.sizes

    def drop_graphs(self) -> None:
        """Drops its CUDA graphs: each size is warmed up and captured again."""
        self._runs = {size: run for size, run in self._runs.items() if run.graph_capture is None}

    def _run(self, size: int | None) -> "_Run":
        if len(self._runs) >= _MOST_RUNS:
            self._runs = {size: run for size, run in self._runs.items() if run.replay is not None}
        plan = self.graph_capture
        if plan is not None and size not in plan.sizes:
            plan = None
        run = self._runs[size] = _Run(self, size, plan)
        return run


class _Run:
    """A piece at one size."""

    __slots__ = (
        "code",
        "compiled_for",
        "emitter",
        "graph_capture",
        "openers",
        "place",
        "replay",
        "size",
        "warmups",
        "way",
    )

    def __init__(self, piece: Piece, size: int | None, plan: GraphCapturePlan | None) -> None:
        self.place = piece.place
        self.size = size
        self.compiled_for, self.code = piece.codes.chosen(size)
        self.way = piece.codes.way
        self.graph_capture = plan
        self.replay: Replay | None = None
        self.warmups = 0 if plan is None or plan.repeatable else plan.warmups
        self.emitter: Emitter | None = None
        self.openers: dict[str, Callable[[], object]] = {}

    def __call__(self, args: Sequence[Any]) -> Sequence[Any]:
        way = self.way if self.graph_capture is None else self._way(self.graph_capture, args)
        if (emitter := quiet_emitter()) is not self.emitter:
            self.emitter, self.openers = emitter, {}
        (self.openers.get(way) or self._opener(emitter, way))()
        try:
            if way == "captured" and self.graph_capture is not None:
                return self._capture_graph(self.graph_capture, args)
            if way == "replayed" and self.replay is not None:
                return self.replay(args)
            result: Sequence[Any] = self.code(*args)
            return result
        finally:
            emitter.close()

    def _way(self, plan: GraphCapturePlan, args: Sequence[Any]) -> str:
        graphs = plan.graphs
        if (graphs.bound and needs_grad(args)) or not graphs.ready():
            return self.way
        if self.replay is not None:
            if plan.debug:
                self._check_addresses(plan, self.replay, args)
            if self.replay.fits(args):
                return "replayed"
            _warn_moved()
            return self.way
        if self.warmups:
            self.warmups -= 1
            return self.way
        return "captured"

    def _capture_graph(self, plan: GraphCapturePlan, args: Sequence[Any]) -> Sequence[Any]:
        try:
            with _GRAPH_CAPTURE:
                self.replay = plan.graphs.capture_graph(
                    self.code,
                    args,
                    watched=plan.watched,
                    warmups=plan.warmups if plan.repeatable else 0,
                    first=plan.first,
                )
        except RuntimeError as error:
            # If the model itself failed, it fails again below.
            self.graph_capture = None
            reason = str(error).partition("\n")[0]
            _LOG.warning("%s cannot be captured as a CUDA graph at size %s: %s", self.place.name, self.size, reason)
            result: Sequence[Any] = self.code(*args)
            return result
        counters.graphs_captured += 1
        return self.replay(args)

    def _check_addresses(self, plan: GraphCapturePlan, replay: Replay, args: Sequence[Any]) -> None:
        for index in replay.moved(args):
            if (name := plan.given.get(index)) is not None:
                raise CaptureError(
                    f"{self.place.name}: {name} has another address than at the graph capture for size {self.size}; "
                    f"pass the same tensor again, or set copy_inputs=True"
                )

    def _opener(self, emitter: Emitter, way: str) -> Callable[[], object]:
        code = None if self.way == "eager" else self.compiled_for
        text = formatting.piece(self.place.name, self.place.graph, way, size=self.size, code=code)
        opener = self.openers[way] = emitter.opener(text)
        return opener


@cache
def _warn_moved() -> None:
    _LOG.warning(
        "pieces run without their CUDA graphs because inputs have other addresses than at the graph capture; pass the "
        "same tensors again, or set copy_inputs=True"
    )

"""One piece at run time: chooses the code for a size, captures and replays it, and marks how it ran."""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from tracekit.capture.compile.compiler import needs_grad
from tracekit.capture.compile.counters import counters
from tracekit.capture.emit import quiet_emitter
from tracekit.errors import CaptureError
from tracekit.markers import spelling

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tracekit.capture.compile.config import SizeRange
    from tracekit.capture.compile.cudagraph import GraphCapture, Replay
    from tracekit.capture.emit import Emitter

_LOG = logging.getLogger("tracekit.capture")
#: A piece that sees more sizes than this forgets the code it chose for them.
_MOST_RUNS = 4_096
GENERAL = "general"


class Place(NamedTuple):
    """Where a piece is.

    Attributes:
        graph: Number of its graph in this process.
        name: Its name in the graph.
        size_at: Which of its arguments is its dynamic size; None if it has none.
        size: The size of all its calls, where that is fixed.
    """

    graph: int
    name: str
    size_at: int | None = None
    size: int | None = None


class Codes:
    """What a piece was compiled to.

    Attributes:
        sizes: Code for exactly one size.
        ranges: Code for a range of sizes, looked through in order.
        general: Code for all others; None until :attr:`make_general` has made it.
        way: How it runs when nothing is captured: ``compiled`` or ``eager``.
    """

    def __init__(self, make_general: Callable[[], Callable[..., Any]], way: str) -> None:
        self.sizes: dict[int, Callable[..., Any]] = {}
        self.ranges: list[tuple[SizeRange, Callable[..., Any]]] = []
        self.general: Callable[..., Any] | None = None
        self.way = way
        self._make_general = make_general

    def chosen(self, size: int | None) -> tuple[str, Callable[..., Any]]:
        """The code for a size, and what it was compiled for: a size goes before ranges, they before all others."""
        if size in self.sizes and size is not None:
            return str(size), self.sizes[size]
        for within, code in self.ranges:
            if size in within:
                return f"{within.start}-{within.end}", code
        if self.general is None:
            self.general = self._make_general()
        return GENERAL, self.general


class Capturing(NamedTuple):
    """How and at which sizes the calls of a piece are captured.

    Attributes:
        graphs: What captures them.
        sizes: At which sizes; None for a piece that has no size.
        watched: Which arguments may lie elsewhere at the next call.
        given: Those of them that the caller of the model gives, with their names.
        warmups: Calls or runs before.
        repeatable: Whether running a call twice does no harm: else warm-ups are calls that somebody made.
        first: Whether it is the first piece of its graph that is captured.
        debug: Whether arguments that lie elsewhere are an error, rather than a call that is not replayed.
    """

    graphs: GraphCapture
    sizes: frozenset[int | None]
    watched: tuple[int, ...]
    given: Mapping[int, str]
    warmups: int
    repeatable: bool
    first: bool
    debug: bool


class Piece:
    """What the split graph calls in place of a piece's graph."""

    def __init__(self, place: Place, codes: Codes, capturing: Capturing | None) -> None:
        self.place = place
        self.codes = codes
        self.capturing = capturing
        self._runs: dict[int | None, _Run] = {}

    def __call__(self, *args: Any) -> Sequence[Any]:  # noqa: ANN401 - whatever the piece takes
        """Runs the piece."""
        at = self.place.size_at
        size = self.place.size if at is None else args[at]
        run = self._runs.get(size) or self._run(size)
        return run(args)

    @property
    def captured_at(self) -> frozenset[int | None]:
        """At which sizes its calls are captured; None stands for a piece without a size."""
        return frozenset() if self.capturing is None else self.capturing.sizes

    def _run(self, size: int | None) -> _Run:
        if len(self._runs) >= _MOST_RUNS:
            captured = {key: run for key, run in self._runs.items() if run.replay is not None}
            self._runs = captured
        capturing = self.capturing
        if capturing is not None and size not in capturing.sizes:
            capturing = None
        made = self._runs[size] = _Run(self, size, capturing)
        return made


class _Run:
    """A piece at one size."""

    __slots__ = (
        "capturing",
        "code",
        "compiled_for",
        "emitter",
        "openers",
        "place",
        "replay",
        "size",
        "warmups",
        "way",
    )

    def __init__(self, piece: Piece, size: int | None, capturing: Capturing | None) -> None:
        self.place = piece.place
        self.size = size
        self.compiled_for, self.code = piece.codes.chosen(size)
        self.way = piece.codes.way
        self.capturing = capturing
        self.replay: Replay | None = None
        self.warmups = 0 if capturing is None or capturing.repeatable else capturing.warmups
        self.emitter: Emitter | None = None
        self.openers: dict[str, Callable[[], object]] = {}

    def __call__(self, args: Sequence[Any]) -> Sequence[Any]:
        way = self.way if self.capturing is None else self._way(self.capturing, args)
        if (emitter := quiet_emitter()) is not self.emitter:
            self.emitter, self.openers = emitter, {}
        (self.openers.get(way) or self._opener(emitter, way))()
        try:
            if way == "captured" and self.capturing is not None:
                return self._capture(self.capturing, args)
            if way == "replayed" and self.replay is not None:
                return self.replay(args)
            result: Sequence[Any] = self.code(*args)
            return result
        finally:
            emitter.close()

    def _way(self, capturing: Capturing, args: Sequence[Any]) -> str:
        graphs = capturing.graphs
        if (graphs.bound and needs_grad(args)) or not graphs.ready():
            return self.way
        if self.replay is not None:
            if capturing.debug:
                self._check_addresses(capturing, self.replay, args)
            if self.replay.fits(args):
                return "replayed"
            _tell_moved()
            return self.way
        if self.warmups:
            self.warmups -= 1
            return self.way
        return "captured"

    def _capture(self, capturing: Capturing, args: Sequence[Any]) -> Sequence[Any]:
        try:
            self.replay = capturing.graphs.capture(
                self.code,
                args,
                watched=capturing.watched,
                warmups=capturing.warmups if capturing.repeatable else 0,
                first=capturing.first,
            )
        except RuntimeError as error:
            # What the model itself gets wrong it gets wrong again, below.
            self.capturing = None
            why = str(error).partition("\n")[0]
            _LOG.warning("%s cannot be captured at size %s: %s", self.place.name, self.size, why)
            result: Sequence[Any] = self.code(*args)
            return result
        counters.graphs_captured += 1
        return self.replay(args)

    def _check_addresses(self, capturing: Capturing, replay: Replay, args: Sequence[Any]) -> None:
        for at in replay.moved(args):
            if (name := capturing.given.get(at)) is not None:
                raise CaptureError(
                    f"{self.place.name}: {name} lies elsewhere than when it was captured at size {self.size}; "
                    f"pass the same tensor again, or set copy_inputs"
                )

    def _opener(self, emitter: Emitter, way: str) -> Callable[[], object]:
        code = None if self.way == "eager" else self.compiled_for
        text = spelling.piece(self.place.name, self.place.graph, way, size=self.size, code=code)
        opener = self.openers[way] = emitter.opener(text)
        return opener


@cache
def _tell_moved() -> None:
    """Says so once; that each call costs time is no reason to say it each time."""
    _LOG.warning(
        "pieces run without their CUDA graphs where inputs lie elsewhere than at capture; pass the same tensors "
        "again, or set copy_inputs"
    )

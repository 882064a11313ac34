"""A program: processes that run a few compiled graphs, each several times, below several modules."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from tests.simulator.compiled.captures import Capture
from tests.simulator.compiled.graphs import Shop
from tests.simulator.compiled.plan import features
from tests.simulator.compiled.recording import Recording
from tests.simulator.compiled.runs import Process
from tracekit.markers.kernel_map_text import compiled_graph

if TYPE_CHECKING:
    from tests.simulator.compiled.graphs import Piece
    from tests.simulator.compiled.plan import Features
    from tests.simulator.compiled.recording import Served


class Program(NamedTuple):
    """A program that ran.

    Attributes:
        features: What it has.
        lines: The trace.
        truth: By process and start, whom each piece of work serves.
    """

    features: Features
    lines: list[str]
    truth: dict[tuple[int, int], Served]


def program(seed: int, has: Features | None = None, *, first_process: int = 1, tag: str = "x") -> Program:
    """A program.

    Args:
        seed: What all chance comes from.
        has: What it has; None for something at random.
        first_process: The number of its first process.
        tag: Stands in all its names, so that several programs can be in one report.
    """
    rng = Random(seed)
    chosen = features(rng)
    recording = Recording(rng, has if has is not None else chosen)
    Script(recording, Shop(rng, recording.has, tag), f"top_{tag}").run(first_process)
    return Program(recording.has, recording.lines(), recording.truth)


@dataclass
class Script:
    """What the processes of a program do."""

    recording: Recording
    shop: Shop
    top: str

    def run(self, first_process: int) -> None:
        """Each runs the same graphs."""
        rng, has = self.recording.rng, self.recording.has
        named = has.unmarked or has.class_root
        roots = ["Layer" if named else f"{self.top}.layers.{number}" for number in range(rng.randint(1, 3))]
        pieces = [self.shop.piece(root) for root in roots]
        backward = [self.shop.piece(root) for root in roots]
        for number in range(rng.randint(2, 3) if has.processes else 1):
            process = Process(first_process + number, self.recording, tells=not (number and has.told_elsewhere))
            for _ in range(rng.randint(1, 3)):
                self._iteration(process, pieces, backward)
            for piece in [*pieces, *backward]:
                process.tell(process.main, piece, at_last=True)

    def _iteration(self, process: Process, pieces: list[Piece], backward: list[Piece]) -> None:
        main, has, rng = process.main, self.recording.has, self.recording.rng
        turns = [(number, layer) for number in range(len(pieces)) for layer in range(rng.randint(1, 3))]
        with process.inside(main, None if has.unmarked else f"{{'Module': '{self.top}'}}"):
            for number, layer in turns:
                self._layer(process, pieces[number], layer + 3 * number)
        if not has.backward:
            return
        thread = process.autograd
        with process.inside(main, "Backward"):
            thread.clock = max(thread.clock, main.clock)
            for number, layer in reversed(turns):
                process.run(thread, backward[number], *self._where(backward[number], layer + 3 * number), "backward")
            if not has.overlapping:
                main.clock = max(thread.clock, main.clock)

    def _where(self, piece: Piece, layer: int) -> tuple[str, str]:
        """Its root in markers, and where that stands; backward work has no call around it."""
        if self.recording.has.unmarked or self.recording.has.class_root:
            return piece.root, piece.root
        return (f"{self.top}.layers.{layer}",) * 2

    def _layer(self, process: Process, piece: Piece, layer: int) -> None:
        main, has, rng = process.main, self.recording.has, self.recording.rng
        path = f"{self.top}.layers.{layer}"
        root, place = self._where(piece, layer)
        marked = not has.unmarked and not has.class_root and rng.random() < 0.8
        if has.class_root and not has.unmarked:
            marked = rng.random() < 0.5
            place = f"{path}.{root}" if marked else f"{self.top}.{root}"
        run = piece, root, place, "forward" if has.backward else "inference"
        with process.inside(main, f"{{'Module': '{path}'}}" if marked else None):
            if rng.random() < 0.3:
                around = None if has.unmarked else path if marked else self.top
                process.eager(main, around)
            if not (has.graphs or has.whole) or rng.random() < 0.3:
                process.run(main, *run)
            elif has.capture_inside:
                self._captured_inside(process, run)
            else:
                self._captured(process, run)

    def _captured(self, process: Process, run: tuple[Piece, str, str, str]) -> None:
        """A graph capture around a run, or two, replayed later."""
        rng = self.recording.rng
        capture = self._capture(process)
        for _ in range(rng.randint(1, 2)):
            process.run(process.main, *run)
        capture.end()
        for _ in range(rng.randint(0, 2)):
            capture.replay()

    def _captured_inside(self, process: Process, run: tuple[Piece, str, str, str]) -> None:
        """Runs that capture and replay by themselves."""
        piece, root, place, graph_pass = run
        main = process.main
        text = compiled_graph(piece.map_id, graph_pass, None if root == piece.root else root)
        process.tell(main, piece)
        with process.inside(main, text):
            capture = self._capture(process)
            process.kernels(main, piece, root, place)
            capture.end()
            capture.replay()
        for _ in range(self.recording.rng.randint(0, 2)):
            with process.inside(main, text):
                capture.replay()

    def _capture(self, process: Process) -> Capture:
        process.captures += 1
        return Capture(self.recording, process.main, process.captures)

"""What a thread does with CUDA graphs: captures whole models or pieces of them, and replays what its process has.

As ``script.py``, whose calls and launches it captures, it yields after every action.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulator import graphs

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from tests.simulator.graphs import Graph
    from tests.simulator.models import Module
    from tests.simulator.script import Script

SHAPES = ("decode 1", "decode 2", "prefill")
ACTIONS_OF_A_CAPTURE = 3
"""What a capture counts as, whatever happens in it."""


class Capturing:
    """The captures of one thread."""

    def __init__(self, script: Script) -> None:
        self.script, self.thread, self.plan = script, script.thread, script.plan
        self.left = script.plan.graph_captures
        self.pieces: dict[tuple[Module, int], Graph] = {}
        """What replaces a callee of a module that runs piece by piece, by its number."""

    def warm_up(self) -> Iterator[None]:
        """Captures models as a whole, and makes executables of what any thread of the process has captured."""
        script, process = self.script, self.thread.process
        while self.left and script.chance(0.7):
            model, shape = script.rng.choice(script.models), script.rng.choice(SHAPES)
            graph = yield from self.capture(model, shape)
            if self.plan.graph_updates and script.chance(0.4):
                yield from self.updated(graph)
            if script.chance(0.85):
                yield from self.executable(graph)
        if process.captured and script.chance(0.3):
            yield from self.executable(script.rng.choice(process.captured))

    def before(self) -> Iterator[None]:
        """Captures before the recording begins, and after that the same, which becomes no executable."""
        model, shape = self.script.rng.choice(self.script.models), self.script.rng.choice(SHAPES)
        graph = yield from self.capture(model, shape)
        yield from self.executable(graph)
        self.thread.forget()
        yield from self.capture(model, shape)

    def capture(self, module: Module, shape: str) -> Generator[None, None, Graph]:
        """Captures a call of ``module``; one with the same ``shape`` in the same place is the same once more."""
        script, thread = self.script, self.thread
        self.left -= 1
        graph = graphs.begin_capture(thread, f"{self.plan.seed} {module.path} {shape}")
        assert graph.capture is not None
        saved = script.rng, thread.actions
        script.rng, thread.actions = graph.capture.shape, 0
        yield
        beside = (self.plan.outside_work or bool(thread.stack)) and script.chance(0.5)
        if beside:
            yield from script.launch()
        yield from script.call(module)
        if beside:
            yield from script.launch()
        script.rng, thread.actions = saved[0], saved[1] + ACTIONS_OF_A_CAPTURE
        graphs.end_capture(thread, crossed=self.plan.crossed_nodes)
        yield
        return graph

    def executable(self, graph: Graph) -> Generator[None, None, Graph]:
        """Makes one or more executables, some of a clone or of a clone's clone; the last one."""
        rng = self.script.rng
        while self.plan.graph_clones and self.script.chance(0.4):
            graph = graphs.clone(self.thread, graph)
            yield from self.script.done()
        made = graph
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            busy = rng.choice((0, 0, 1)) if self.plan.graph_extras else 0
            idle = rng.choice((0, 4)) if self.plan.graph_extras else 0
            made = graphs.instantiate(self.thread, graph, idle_nodes=idle, busy_nodes=busy)
            yield from self.script.done()
        return made

    def updated(self, graph: Graph) -> Iterator[None]:
        """Updates an executable that was captured by the same recipe, if there is one."""
        for executable in self.thread.process.executables:
            same = executable.topology[: len(graph.nodes)] == graph.topology
            if executable.recipe == graph.recipe and same:
                graphs.update(self.thread, executable, graph)
                yield from self.script.done()
                return

    def replay(self) -> Iterator[None]:
        """Replays any executable of the process, whichever thread made it."""
        if self.thread.process.executables:
            yield from self.script.replay_of(self.script.rng.choice(self.thread.process.executables))

    def piecewise(self, module: Module) -> Iterator[None]:
        """What stands for the forward of a module of which every other callee runs from a graph."""
        for number, callee in enumerate(module.callees()):
            if number % 2:
                yield from self.script.call(callee)
            else:
                yield from self.piece(module, number, callee)
            yield from self.script.between()

    def piece(self, module: Module, number: int, callee: Module) -> Iterator[None]:
        """A callee from its graph, which is captured at the first time."""
        known = self.pieces.get((module, number))
        if known is None and not self.left:
            yield from self.script.call(callee)
            return
        if known is None:
            graph = yield from self.capture(callee, "piece")
            known = self.pieces[module, number] = yield from self.executable(graph)
            if self.script.chance(0.5):
                return
        yield from self.script.replay_of(known)

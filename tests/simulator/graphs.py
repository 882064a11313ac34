"""CUDA graphs: captured, cloned, made executable, updated and replayed, and the records that this leaves."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from tests.simulator import events
from tests.simulator.events import Capture, GraphRecord, Node, NodeRecord

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from tests.simulator.events import Launch, Stream
    from tests.simulator.models import Module
    from tests.simulator.script import Script
    from tests.simulator.threads import Process, Thread


NODE_CREATED, EXECUTABLE_CREATED, GRAPH_CREATED, GRAPH_CLONED = 77, 94, 95, 96
RECORD_NAMES = {NODE_CREATED: "Graph Node Creation", EXECUTABLE_CREATED: "GraphExec Creation"}
RECORD_NAMES |= {GRAPH_CREATED: "Graph Creation", GRAPH_CLONED: "Graph Clone"}


@dataclass(slots=True, eq=False, kw_only=True)
class Graph:
    """A graph, or a clone or an executable one made of ``source``."""

    id: int
    process: Process
    nodes: list[Node] = field(default_factory=list)  # those that do something when it is replayed
    capture: Capture | None = None  # the one that it is made by, while that lasts and after
    recipe: str = ""  # graphs captured by one recipe have the same calls and launches in them
    source: Graph | None = None
    ready_ns: int  # no thread can use it earlier

    def add(self, launch: Launch, kinds: list[str]) -> None:
        assert self.capture is not None
        self.capture.launches.append(launch)
        for number, kind in enumerate(kinds, start=1):
            node = self.new_node(kind, *events.chosen(self.capture.shape, kind))
            node.captured_by = launch
            self.nodes.append(node)
            self.record(node, launch, launch.start_ns + number)

    def new_node(self, kind: str, name: str, full_name: str, copy_kind: int) -> Node:
        number = self.id << 32 | len(self.nodes)
        return Node(id=number, kind=kind, name=name, full_name=full_name, copy_kind=copy_kind)

    def record(self, node: Node, launch: Launch, time_ns: int, *, original: Node | None = None) -> None:
        said = NodeRecord(thread=launch.thread, node=node, time_ns=time_ns, original=original)
        node.records.append(said)
        self.process.recorded_nodes.append(said)

    @property
    def topology(self) -> list[tuple[str, str]]:
        return [(node.kind, node.name) for node in self.nodes]


def _graph(thread: Thread, **what: object) -> Graph:
    number = next(thread.process.graphs)
    return Graph(id=number, process=thread.process, ready_ns=thread.clock, **what)  # type: ignore[arg-type]


def _record(thread: Thread, event_class: int, time_ns: int, graph: int, **others: int) -> None:
    said = GraphRecord(thread=thread.id, event_class=event_class, time_ns=time_ns, graph=graph, **others)
    thread.process.recorded_graphs.append(said)


def begin_capture(thread: Thread, recipe: str) -> Graph:
    capture = Capture(shape=Random(recipe))
    graph = _graph(thread, capture=capture, recipe=recipe)
    capture.begin = thread.api("cudaStreamBeginCapture_v10000", least=1)
    capture.begin.capture, capture.begin.kept = capture, True
    _record(thread, GRAPH_CREATED, capture.begin.start_ns + 1, graph.id)
    thread.capturing = graph
    return graph


def end_capture(thread: Thread) -> Graph:
    graph = thread.capturing
    assert graph is not None
    assert graph.capture is not None
    least = len(graph.nodes) + 1
    graph.capture.end = thread.api("cudaStreamEndCapture_v10000", least=least)
    graph.capture.end.kept = True
    thread.capturing = None
    thread.clock += least
    graph.ready_ns = thread.clock
    thread.process.captured.append(graph)
    return graph


def clone(thread: Thread, graph: Graph) -> Graph:
    thread.clock = max(thread.clock, graph.ready_ns)
    launch = thread.api("cudaGraphClone_v10000", least=2 * len(graph.nodes) + 2)
    cloned = _graph(thread, recipe=graph.recipe, source=graph)
    _record(thread, GRAPH_CLONED, launch.start_ns + 1, cloned.id, original=graph.id)
    _clone_nodes(graph, cloned, launch)
    cloned.ready_ns = thread.clock
    return cloned


def instantiate(thread: Thread, graph: Graph, *, idle_nodes: int = 0, busy_nodes: int = 0) -> Graph:
    """Makes an executable graph, with so many further nodes without an original that run nothing, or something."""
    thread.clock = max(thread.clock, graph.ready_ns)
    least = 2 * (len(graph.nodes) + idle_nodes + busy_nodes) + 4
    launch = thread.api("cudaGraphInstantiate_v12000", least=least)
    executable = _graph(thread, recipe=graph.recipe, source=graph)
    beside = next(thread.process.graphs)
    _record(thread, GRAPH_CREATED, launch.start_ns + 1, executable.id)
    _record(thread, GRAPH_CREATED, launch.start_ns + 2, beside)
    _clone_nodes(graph, executable, launch)
    for number in range(busy_nodes + idle_nodes):
        node = executable.new_node("memset", *events.chosen(thread.rng, "memset"))
        node.id += max(0, number - busy_nodes)
        executable.record(node, launch, launch.end_ns - 1)
        if number < busy_nodes:
            executable.nodes.append(node)
    _record(thread, EXECUTABLE_CREATED, launch.end_ns - 1, graph.id, executable=executable.id)
    executable.ready_ns = thread.clock
    thread.process.executables.append(executable)
    return executable


def _clone_nodes(source: Graph, target: Graph, launch: Launch) -> None:
    time_ns = launch.start_ns + 1
    for original in source.nodes:
        node = target.new_node(original.kind, original.name, original.full_name, original.copy_kind)
        node.original = original
        target.nodes.append(node)
        target.record(node, launch, time_ns)
        target.record(node, launch, time_ns + 1, original=original)
        time_ns += 2


def update(thread: Thread, executable: Graph, graph: Graph) -> None:
    """Puts a graph of the same topology in the place of the one that ``executable`` was made of.

    No clone is recorded: what runs keeps the ids, and so the lineage, of the first.
    """
    assert executable.topology[: len(graph.nodes)] == graph.topology
    thread.clock = max(thread.clock, graph.ready_ns, executable.ready_ns)
    thread.api("cudaGraphExecUpdate_v10020")
    executable.ready_ns = thread.clock


def captured_earlier(thread: Thread) -> Graph:
    executable = _graph(thread, source=_graph(thread))
    kinds = ["kernel"] + [thread.rng.choice(("kernel", "memset", "memcpy")) for _ in range(thread.rng.randrange(4))]
    for kind in kinds:
        executable.nodes.append(executable.new_node(kind, *events.chosen(thread.rng, kind)))
    return executable


def replay_by_node(thread: Thread, executable: Graph) -> None:
    """Branches of a graph run on streams of their own, in any order; a stream runs nodes as they were captured."""
    thread.clock = max(thread.clock, executable.ready_ns)
    launch = thread.api("cudaGraphLaunch_v10000")
    branches: defaultdict[Stream, list[Node]] = defaultdict(list)
    for node in executable.nodes:
        branches[thread.rng.choice(thread.process.streams)].append(node)
    turns = [stream for stream, nodes in branches.items() for _ in nodes]
    for stream in thread.rng.sample(turns, len(turns)):
        node = branches[stream].pop(0)
        thread.work(node.kind, launch, node, stream)


def replay_as_a_whole(thread: Thread, executable: Graph) -> None:
    assert executable.source is not None
    thread.clock = max(thread.clock, executable.ready_ns)
    work = thread.work("graph", thread.api("cudaGraphLaunch_v10000"))
    work.graph_id, work.graph_exec = executable.source.id, executable.id
    first = executable
    while first.source is not None:
        first = first.source
    work.captured = first.capture


SHAPES = ("decode 1", "decode 2", "prefill")
ACTIONS_OF_A_CAPTURE = 3  # what a capture counts as, whatever happens in it


class Capturing:
    """The captures of one thread."""

    def __init__(self, script: Script) -> None:
        self.script, self.thread, self.plan = script, script.thread, script.plan
        self.left = script.plan.graph_captures
        #: What replaces a callee of a module that runs piece by piece, by its number.
        self.pieces: dict[tuple[Module, int], Graph] = {}

    def warm_up(self) -> Iterator[None]:
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
        model, shape = self.script.rng.choice(self.script.models), self.script.rng.choice(SHAPES)
        graph = yield from self.capture(model, shape)
        yield from self.executable(graph)
        self.thread.forget()
        yield from self.capture(model, shape)

    def capture(self, module: Module, shape: str) -> Generator[None, None, Graph]:
        """Captures a call of ``module``; one with the same ``shape`` in the same place is the same once more."""
        script, thread = self.script, self.thread
        self.left -= 1
        graph = begin_capture(thread, f"{self.plan.seed} {module.path} {shape}")
        assert graph.capture is not None
        rng, actions = script.rng, thread.actions
        script.rng, thread.actions = graph.capture.shape, 0
        yield
        beside = (self.plan.outside_work or bool(thread.stack)) and script.chance(0.5)
        if beside:
            yield from script.launch()
        yield from script.call(module)
        if beside:
            yield from script.launch()
        script.rng, thread.actions = rng, actions + ACTIONS_OF_A_CAPTURE
        end_capture(thread)
        yield
        return graph

    def executable(self, graph: Graph) -> Generator[None, None, Graph]:
        rng = self.script.rng
        while self.plan.graph_clones and self.script.chance(0.4):
            graph = clone(self.thread, graph)
            yield from self.script.done()
        made = graph
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            busy = rng.choice((0, 0, 1)) if self.plan.graph_extras else 0
            idle = rng.choice((0, 4)) if self.plan.graph_extras else 0
            made = instantiate(self.thread, graph, idle_nodes=idle, busy_nodes=busy)
            yield from self.script.done()
        return made

    def updated(self, graph: Graph) -> Iterator[None]:
        for executable in self.thread.process.executables:
            same = executable.topology[: len(graph.nodes)] == graph.topology
            if executable.recipe == graph.recipe and same:
                update(self.thread, executable, graph)
                yield from self.script.done()
                return

    def replay(self) -> Iterator[None]:
        if self.thread.process.executables:
            yield from self.script.replay_of(self.script.rng.choice(self.thread.process.executables))

    def piecewise(self, module: Module) -> Iterator[None]:
        for number, callee in enumerate(module.callees()):
            if number % 2:
                yield from self.script.call(callee)
            else:
                yield from self.piece(module, number, callee)
            yield from self.script.between()

    def piece(self, module: Module, number: int, callee: Module) -> Iterator[None]:
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

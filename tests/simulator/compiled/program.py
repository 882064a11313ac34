"""Programs of compiled graphs with kernel maps: processes that run graphs, what is recorded, and the true owners."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from tests.simulator.compiled.graphs import Features, Kernel, Piece, Shop, features
from tracekit.markers.kernel_maps import compiled_graph

KERNEL_CALLS = "cudaLaunchKernel_v7000", "cuLaunchKernelEx", "cudaLaunchKernelExC_v11060"
CALLS = {"memcpy": "cudaMemcpyAsync_v3020", "memset": "cudaMemsetAsync_v3020"}
QUIET_CALLS = "cudaEventRecord_v3020", "cudaStreamWaitEvent_v3020", "cudaStreamIsCapturing_v10000"
_REGIONS = "Torch-Compiled Region: 0/1", "## Call CompiledFxGraph fkyo5v2ux3 ##", "graph_3_inductor_wrapper_call"
_SOON, _LATE = 3, 400


class Served(NamedTuple):
    """Whom a kernel serves."""

    modules: Mapping[str, float]  # with their weights; none if the map does not tell it
    within: str  # the module that was compiled: whatever it is for, it is part of that
    certain: bool  # whether a report that holds everything tells it without a doubt


class Program(NamedTuple):
    """A program that ran."""

    features: Features  # what it has
    lines: list[str]
    truth: dict[tuple[int, int], Served]  # by process and start, whom each kernel serves


def program(seed: int, has: Features | None = None, *, first_process: int = 1, tag: str = "x") -> Program:
    """A program with some features, or some at random; ``tag`` stands in all its names: one report can hold several."""
    rng = Random(seed)
    by_chance = features(rng)
    recording = Recording(rng, has or by_chance)
    has, shop, top = recording.has, Shop(rng, recording.has, tag), f"top_{tag}"
    named = has.unmarked or has.class_root
    roots = ["Layer" if named else f"{top}.layers.{number}" for number in range(rng.randint(1, 3))]
    forward, backward = ([shop.piece(root) for root in roots] for _ in range(2))
    for number in range(rng.randint(2, 3) if has.processes else 1):
        process = Process(recording, first_process + number, top, tells=not (number and has.told_elsewhere))
        for _ in range(rng.randint(1, 3)):
            process.iteration(forward, backward)
        for piece in [*forward, *backward]:
            process.tell(process.main, piece, at_last=True)
    return Program(has, recording.lines(), recording.truth)


class Run(NamedTuple):
    """A run of a graph of the module ``root``, as markers name it, which stands at ``place``."""

    piece: Piece
    root: str
    place: str
    graph_pass: str

    @property
    def text(self) -> str:
        return compiled_graph(self.piece.map_id, self.graph_pass, None if self.root == self.piece.root else self.root)


class Process:
    """A process, and what its threads do."""

    def __init__(self, recording: Recording, number: int, top: str, *, tells: bool) -> None:
        self.rng, self.has, self.top, self.tells = recording.rng, recording.has, top, tells
        self.main, self.autograd = (Thread(recording, number, thread) for thread in (1, 2))
        self.told: set[str] = set()  # the maps that it told already
        self.captures = 0

    def iteration(self, forward: list[Piece], backward: list[Piece]) -> None:
        main, thread = self.main, self.autograd
        turns = [(number, layer) for number in range(len(forward)) for layer in range(self.rng.randint(1, 3))]
        with main.inside(None if self.has.unmarked else f"{{'Module': '{self.top}'}}"):
            for number, layer in turns:
                self._layer(forward[number], f"{self.top}.layers.{layer + 3 * number}")
        if not self.has.backward:
            return
        with main.inside("Backward"):
            thread.clock = max(thread.clock, main.clock)
            for number, layer in reversed(turns):
                piece, path = backward[number], f"{self.top}.layers.{layer + 3 * number}"
                root = piece.root if self.has.unmarked or self.has.class_root else path
                self.run(thread, Run(piece, root, root, "backward"))
            if not self.has.overlapping:
                main.clock = max(thread.clock, main.clock)

    def _layer(self, piece: Piece, path: str) -> None:
        has, rng = self.has, self.rng
        marked = not has.unmarked and not has.class_root and rng.random() < 0.8
        root = place = piece.root if has.unmarked or has.class_root else path
        if has.class_root and not has.unmarked:
            marked = rng.random() < 0.5
            place = f"{path}.{root}" if marked else f"{self.top}.{root}"
        run = Run(piece, root, place, "forward" if has.backward else "inference")
        with self.main.inside(f"{{'Module': '{path}'}}" if marked else None):
            if rng.random() < 0.3:
                self.main.eager(None if has.unmarked else path if marked else self.top)
            if not (has.graphs or has.whole) or rng.random() < 0.3:
                self.run(self.main, run)
            elif has.capture_inside:
                self._captured_inside(run)
            else:
                self._captured(run)

    def _captured(self, run: Run) -> None:
        with self._capture() as graph:
            for _ in range(self.rng.randint(1, 2)):
                self.run(self.main, run)
        for _ in range(self.rng.randint(0, 2)):
            self.main.replay(graph)

    def _captured_inside(self, run: Run) -> None:
        self.tell(self.main, run.piece)
        with self.main.inside(run.text):
            with self._capture() as graph:
                self._kernels(self.main, run)
            self.main.replay(graph)
        for _ in range(self.rng.randint(0, 2)):
            with self.main.inside(run.text):
                self.main.replay(graph)

    @contextmanager
    def _capture(self) -> Iterator[Graph]:
        self.captures += 1
        with self.main.captured(self.captures) as graph:
            yield graph

    def tell(self, thread: Thread, piece: Piece, *, at_last: bool = False) -> None:
        late = self.has.told_late and not at_last and not piece.inner and self.rng.random() < 0.5
        if late or not self.tells or piece.map_id in self.told:
            return
        if not (self.has.told_late and self.rng.random() < 0.3):
            self.told.add(piece.map_id)
        for text in piece.texts:
            if not (self.has.lost_parts and self.rng.random() < 0.2):
                thread.mark(text)

    def run(self, thread: Thread, run: Run) -> None:
        self.tell(thread, run.piece)
        # Of a run inside another whose range is lost nobody can tell that it is not the outer one's work.
        lost = self.has.lost_ranges and not run.piece.inner and self.rng.random() < 0.15
        region = self.rng.choice(_REGIONS) if self.has.profiler_ranges else None
        outer, inner = (region, None) if self.rng.random() < 0.5 else (None, region)
        with thread.inside(outer), thread.inside(None if lost else run.text), thread.inside(inner):
            self._kernels(thread, run)

    def _kernels(self, thread: Thread, run: Run) -> None:
        kernels = run.piece.kernels
        chosen = [self.rng.choice(kernel.launches) for kernel in kernels]
        certain = _certain(kernels, chosen, operators=self.has.operators or self.has.cpu)
        for kernel, names, sure in zip(kernels, chosen, certain, strict=True):
            user = "mine" if self.has.user_ranges and self.rng.random() < 0.3 else None
            operator = kernel.operator if self.has.operators else None
            if self.has.profiler_ranges and kernel.told.generated:
                user = kernel.told.name
            with thread.inside(user), thread.inside(operator and f"{operator}, op_id = 7"):
                if kernel.inner is None:
                    self._launch(thread, kernel, names, _served(run.place, kernel, certain=sure))
                else:
                    self._inside(thread, kernel.inner, run)

    def _launch(self, thread: Thread, kernel: Kernel, names: list[str], served: Served) -> None:
        if self.has.cpu:
            name = kernel.launches[0][0] if kernel.told.generated else kernel.operator
            for single in [name] if name else names:
                thread.operator(single, served, 0 if kernel.told.generated else len(names) - 1)
            return
        for name in names:
            user = "mine" if self.has.user_ranges and self.rng.random() < 0.1 else None
            with thread.inside(user):
                thread.launch(name, served)

    def _inside(self, thread: Thread, inner: Piece | str, around: Run) -> None:
        """What a kernel of a library runs by itself: another graph, or a module."""
        below = (inner if isinstance(inner, str) else inner.root)[len(around.piece.root) :]
        root, place = around.root + below, around.place + below
        if isinstance(inner, Piece):
            self.run(thread, Run(inner, root, place, "inference"))
            return
        with thread.inside(f"{{'Module': '{root}'}}"):
            for _ in range(self.rng.randint(1, 3)):
                thread.eager(place)


def _certain(kernels: list[Kernel], chosen: list[list[str]], *, operators: bool) -> list[bool]:
    library = [not kernel.told.generated for kernel in kernels]
    quiet = [not names and kernel.launches != [[]] for kernel, names in zip(kernels, chosen, strict=True)]
    told = all(kernel.inner is None for kernel in kernels) and not (operators and any(quiet))
    named = [told and operators and kernel.operator is not None for kernel in kernels]
    sure = [not each for each in library]
    between: list[int] = []
    for at in range(len(library) + 1):
        if at < len(library) and library[at] and not named[at]:
            between += [at] * (kernels[at].launches != [[]])
            continue
        single = all(len(chosen[kernel]) == 1 and kernels[kernel].busy for kernel in between)
        for kernel in between:
            sure[kernel] = told and (len(between) == 1 or single)
        between = []
    return [known or name for known, name in zip(sure, named, strict=True)]


def _served(place: str, kernel: Kernel, *, certain: bool) -> Served:
    total = sum(weight for _, weight in kernel.told.modules)
    modules = {f"{place}.{path}".strip("."): weight / total for path, weight in kernel.told.modules}
    return Served(modules, place, certain)


@dataclass(eq=False, slots=True)
class Event:
    """A line of the trace; a call of CUDA's gets its number when all is known."""

    kind: str
    thread: str
    start: int
    end: int
    rest: str
    of: Event | None = None
    number: int = 0

    def line(self, low: int, high: int) -> str:
        """What a recording from ``low`` to ``high`` has of it."""
        if not low <= self.start <= high or (self.kind == "op" and self.end > high):
            return ""
        end = str(self.end) if self.end <= high or self.kind != "range" else "-"
        number = (self.of or self).number
        return f"{self.kind} {self.thread} {self.start} {end} {f'#{number} ' if number else ''}{self.rest}"


class Node(NamedTuple):
    """A node of a CUDA graph: what runs, and whom it serves."""

    number: int
    name: str
    served: Served


class Graph(NamedTuple):
    """An executable graph."""

    name: str
    nodes: list[Node]


@dataclass
class Recording:
    """All that happened."""

    rng: Random  # what all chance comes from
    has: Features  # what the program has
    events: list[Event] = field(default_factory=list)
    truth: dict[tuple[int, int], Served] = field(default_factory=dict)  # by process and start, whom each kernel serves
    streams: dict[int, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    nodes: int = 0

    def new_node(self) -> int:
        self.nodes += 1
        return self.nodes

    def losses(self) -> tuple[bool, bool]:
        """Whether a launch is lost, and whether its work is; of both nothing would be left to tell it."""
        if not self.has.lost_launches or self.rng.random() > 0.06:
            return False, False
        return self.rng.choice(((True, False), (False, True)))

    def lines(self) -> list[str]:
        kept = [event for event in self.events if event.kind == "launch"]
        calls = dict.fromkeys([*kept, *(event.of for event in self.events if event.of)])
        for number, call in enumerate(sorted(calls, key=lambda event: event.start), 1):
            call.number = number
        last = max(event.end for event in self.events if not event.of)
        low = self.rng.randint(0, last // 2) if self.has.cut_start else -1
        high = self.rng.randint(2 * last // 3, last) if self.has.cut_end else 1 << 60
        return [line for event in self.events if (line := event.line(low, high))]


class Thread:
    """A thread of a process; while it captures, what it launches becomes nodes."""

    def __init__(self, recording: Recording, process: int, number: int) -> None:
        self.recording, self.rng, self.has = recording, recording.rng, recording.has
        self.process, self.name, self.clock = process, f"{process}/{number}", 10
        self.nodes: list[Node] | None = None

    def later(self) -> int:
        self.clock += self.rng.randint(2, 9)
        return self.clock

    def _add(self, kind: str, start: int, end: int, rest: str) -> Event:
        event = Event(kind, self.name, start, end, rest)
        self.recording.events.append(event)
        return event

    @contextmanager
    def inside(self, text: str | None) -> Iterator[None]:
        start = self.later()
        yield
        if text is not None:
            self._add("range", start, self.later(), text)

    def mark(self, text: str) -> None:
        now = self.later()
        self._add("range", now, now, text)

    def call(self, name: str) -> Event:
        return self._add("launch", self.later(), self.later(), name)

    def made(self, when: int, what: str, kind: str = "made") -> None:
        if kind == "made" or not self.has.unrecorded_nodes:
            self._add(kind, when, when, what)

    def eager(self, module: str | None) -> None:
        served = Served({module: 1.0} if module else {}, module or "", certain=module is not None)
        if self.has.cpu:
            self.operator("aten::relu", served, 0)
        else:
            self.launch("relu", served)

    def operator(self, name: str, served: Served, inside: int) -> None:
        start = self.later()
        while (self.process, start) in self.recording.truth:
            start = self.later()
        for _ in range(inside):
            self.operator(self.rng.choice(("aten::copy_", "aten::add")), served, 0)
        self._add("op", start, self.later(), name)
        self.recording.truth[self.process, start] = served

    def launch(self, name: str, served: Served) -> None:
        if self.rng.random() < 0.2:
            self.call(self.rng.choice(QUIET_CALLS))
        call = self.call(CALLS.get(name) or self.rng.choice(KERNEL_CALLS))
        launch_lost, work_lost = self.recording.losses()
        if launch_lost:
            self.recording.events.remove(call)
        if self.nodes is None:
            if not work_lost:
                self._work(call, name, served)
            return
        node = Node(self.recording.new_node(), name, served)
        self.nodes.append(node)
        if not work_lost and not self.has.whole:
            self.made(call.start + 1, "", f"node!{node.number}")

    @contextmanager
    def captured(self, number: int) -> Iterator[Graph]:
        graph = Graph(f"exec {100 + number} of {number}", [])
        call = self.call("cudaStreamBeginCapture_v10000")
        self.nodes = nodes = []
        if self.has.whole:
            self.made(call.start, f"graph {number}")
        yield graph
        self.nodes = None
        self.call("cudaStreamEndCapture_v10000")
        call = self.call("cudaGraphInstantiate_v10000")
        graph.nodes.extend(node._replace(number=self.recording.new_node()) for node in nodes)
        if self.has.whole:
            self.made(call.start, graph.name)
            return
        for node, copy in zip(nodes, graph.nodes, strict=True):
            self.made(call.start, str(node.number), f"node!{copy.number}")

    def replay(self, graph: Graph) -> None:
        call = self.call("cudaGraphLaunch_v10000")
        if not self.has.whole:
            for node in graph.nodes:
                if not self.recording.losses()[1]:
                    self._work(call, node.name, node.served, f"!{node.number}")
        elif graph.nodes:
            within = dict.fromkeys((node.served.within for node in graph.nodes), 0.0)
            self._work(call, graph.name, Served(within, next(iter(within)), certain=False), kind="graph")

    def _work(self, call: Event, name: str, served: Served, node: str = "", kind: str = "") -> None:
        truth, clocks = self.recording.truth, self.recording.streams[self.process]
        stream = self.rng.randrange(2) if self.has.streams else 0
        start = max(clocks[stream], call.start) + self.rng.randint(_SOON, _LATE if self.rng.random() < 0.3 else 20)
        while (self.process, start) in truth:
            start += 1
        clocks[stream] = start + 2
        kind = kind or (name if name in CALLS else "kernel")
        text = "64" if kind in CALLS else name
        self.recording.events.append(Event(f"{kind}{node}", f"{self.process}/1", start, start + 2, text, of=call))
        truth[self.process, start] = served

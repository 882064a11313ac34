"""Programs of compiled graphs with kernel maps: processes that run graphs, what is recorded, and the true owners."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from math import isclose
from random import Random
from typing import Any, NamedTuple

from tests.simulator.compiled.graphs import Features, Kernel, Piece, Shop, features
from tracekit.dataset.opening import Dataset
from tracekit.markers.kernel_maps import compiled_graph


class Program(NamedTuple):
    """A program that ran."""

    features: Features  # what it has
    lines: list[str]
    truth: dict[tuple[int, int], Served]  # by process and start, whom each kernel serves


def program(seed: int, has: Features | None = None, *, first_process: int = 1, tag: str = "x") -> Program:
    """A program with some features, or some at random; ``tag`` stands in all its names: one report can hold several."""
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
        rng = self.recording.rng
        capture = self._capture(process)
        for _ in range(rng.randint(1, 2)):
            process.run(process.main, *run)
        capture.end()
        for _ in range(rng.randint(0, 2)):
            capture.replay()

    def _captured_inside(self, process: Process, run: tuple[Piece, str, str, str]) -> None:
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


_REGIONS = "Torch-Compiled Region: 0/1", "## Call CompiledFxGraph fkyo5v2ux3 ##", "graph_3_inductor_wrapper_call"


@dataclass
class Process:
    """A process."""

    number: int
    recording: Recording  # what is recorded of all processes
    tells: bool = True  # whether it tells maps
    told: set[str] = field(default_factory=set)  # the maps that it told already
    captures: int = 0  # how many graph captures it began

    def __post_init__(self) -> None:
        self.main, self.autograd = Thread(f"{self.number}/1", 10), Thread(f"{self.number}/2", 10)
        self.rng, self.has = self.recording.rng, self.recording.has

    def tell(self, thread: Thread, piece: Piece, *, at_last: bool = False) -> None:
        late = self.has.told_late and not at_last and not piece.inner and self.rng.random() < 0.5
        if late or not self.tells or piece.map_id in self.told:
            return
        if not (self.has.told_late and self.rng.random() < 0.3):
            self.told.add(piece.map_id)
        for text in piece.texts:
            if not (self.has.lost_parts and self.rng.random() < 0.2):
                self.recording.mark(thread, text)

    @contextmanager
    def inside(self, thread: Thread, text: str | None) -> Iterator[None]:
        start = thread.later(rng=self.rng)
        yield
        if text is not None:
            self.recording.range(thread, start, text)

    def run(self, thread: Thread, piece: Piece, root: str, place: str, graph_pass: str) -> None:
        """Runs a graph of the module ``root``, as markers name it, which stands at ``place``."""
        self.tell(thread, piece)
        text: str | None = compiled_graph(piece.map_id, graph_pass, None if root == piece.root else root)
        # Of a run inside another whose range is lost nobody can tell that it is not the outer one's work.
        if self.has.lost_ranges and not piece.inner and self.rng.random() < 0.15:
            text = None
        region = self.rng.choice(_REGIONS) if self.has.profiler_ranges else None
        outer, inner = (region, None) if self.rng.random() < 0.5 else (None, region)
        with self.inside(thread, outer), self.inside(thread, text), self.inside(thread, inner):
            self.kernels(thread, piece, root, place)

    def kernels(self, thread: Thread, piece: Piece, root: str, place: str) -> None:
        chosen = [self.rng.choice(kernel.launches) for kernel in piece.kernels]
        certain = _certain(piece, chosen, operators=self.has.operators or self.has.cpu)
        for kernel, names, sure in zip(piece.kernels, chosen, certain, strict=True):
            user = "mine" if self.has.user_ranges and self.rng.random() < 0.3 else None
            operator = kernel.operator if self.has.operators else None
            if self.has.profiler_ranges and kernel.told.generated:
                user = kernel.told.name
            with self.inside(thread, user), self.inside(thread, operator and f"{operator}, op_id = 7"):
                if kernel.inner is None:
                    self._launch(thread, kernel, names, _served(place, kernel, certain=sure))
                else:
                    self._inside(thread, kernel.inner, piece.root, (root, place))

    def _launch(self, thread: Thread, kernel: Kernel, names: list[str], served: Served) -> None:
        if self.has.cpu:
            name = kernel.launches[0][0] if kernel.told.generated else kernel.operator
            for single in [name] if name else names:
                self.recording.operator(thread, single, served, 0 if kernel.told.generated else len(names) - 1)
            return
        for name in names:
            user = "mine" if self.has.user_ranges and self.rng.random() < 0.1 else None
            with self.inside(thread, user):
                self.recording.launch(thread, name, served)

    def _inside(self, thread: Thread, inner: Piece | str, old: str, new: tuple[str, str]) -> None:
        """What a kernel of a library runs by itself: another graph, or a module; its root is here and stands there."""
        root, place = new
        if isinstance(inner, Piece):
            below = inner.root[len(old) :]
            self.run(thread, inner, root + below, place + below, "inference")
            return
        below = inner[len(old) :]
        with self.inside(thread, f"{{'Module': '{root}{below}'}}"):
            for _ in range(self.rng.randint(1, 3)):
                self.eager(thread, f"{place}{below}")

    def eager(self, thread: Thread, module: str | None) -> None:
        served = Served({module: 1.0} if module else {}, module or "", certain=module is not None)
        if self.has.cpu:
            self.recording.operator(thread, "aten::relu", served, 0)
        else:
            self.recording.launch(thread, "relu", served)


def _certain(piece: Piece, chosen: list[list[str]], *, operators: bool) -> list[bool]:
    library = [not kernel.told.generated for kernel in piece.kernels]
    quiet = [not names and kernel.launches != [[]] for kernel, names in zip(piece.kernels, chosen, strict=True)]
    told = all(kernel.inner is None for kernel in piece.kernels) and not (operators and any(quiet))
    named = [told and operators and kernel.operator is not None for kernel in piece.kernels]
    sure = [not each for each in library]
    between: list[int] = []
    for at in range(len(library) + 1):
        if at < len(library) and library[at] and not named[at]:
            between += [at] * (piece.kernels[at].launches != [[]])
            continue
        single = all(len(chosen[kernel]) == 1 and piece.kernels[kernel].busy for kernel in between)
        for kernel in between:
            sure[kernel] = told and (len(between) == 1 or single)
        between = []
    return [known or name for known, name in zip(sure, named, strict=True)]


def _served(place: str, kernel: Kernel, *, certain: bool) -> Served:
    total = sum(weight for _, weight in kernel.told.modules)
    modules = {f"{place}.{path}".strip("."): weight / total for path, weight in kernel.told.modules}
    return Served(modules, place, certain)


class Capture:
    """A graph capture on a thread, which has begun, and its replays."""

    def __init__(self, recording: Recording, thread: Thread, graph: int) -> None:
        self._recording, self._thread = recording, thread
        self._instance = f"exec {100 + graph} of {graph}"
        self._copies: list[Node] = []
        call = recording.call(thread, "cudaStreamBeginCapture_v10000")
        thread.nodes = []
        if recording.has.whole:
            recording.made(thread, call.start, f"graph {graph}")

    def end(self) -> None:
        recording, thread = self._recording, self._thread
        nodes, thread.nodes = thread.nodes or [], None
        recording.call(thread, "cudaStreamEndCapture_v10000")
        call = recording.call(thread, "cudaGraphInstantiate_v10000")
        self._copies = [node._replace(number=recording.new_node()) for node in nodes]
        if recording.has.whole:
            recording.made(thread, call.start, self._instance)
            return
        for node, copy in zip(nodes, self._copies, strict=True):
            recording.made(thread, call.start, str(node.number), f"node!{copy.number}")

    def replay(self) -> None:
        if self._recording.has.whole:
            self._recording.replay_whole(self._thread, self._copies, self._instance)
        else:
            self._recording.replay(self._thread, self._copies)


KERNEL_CALLS = "cudaLaunchKernel_v7000", "cuLaunchKernelEx", "cudaLaunchKernelExC_v11060"
CALLS = {"memcpy": "cudaMemcpyAsync_v3020", "memset": "cudaMemsetAsync_v3020"}
QUIET_CALLS = "cudaEventRecord_v3020", "cudaStreamWaitEvent_v3020", "cudaStreamIsCapturing_v10000"
_SOON, _LATE = 3, 400


class Served(NamedTuple):
    """Whom a kernel serves."""

    modules: Mapping[str, float]  # with their weights; none if the map does not tell it
    within: str  # the module that was compiled: whatever it is for, it is part of that
    certain: bool  # whether a report that holds everything tells it without a doubt


@dataclass(eq=False, slots=True)
class Event:
    """A line of the trace; a call of CUDA's may get its number later."""

    kind: str
    thread: str
    start: int
    end: int
    rest: str
    of: Event | None = None
    number: int = 0


class Node(NamedTuple):
    """A node of a CUDA graph: what runs, and whom it serves."""

    number: int
    name: str
    served: Served


@dataclass(eq=False)
class Thread:
    """A thread of a process; while it captures, what it launches becomes nodes."""

    name: str
    clock: int
    nodes: list[Node] | None = None

    @property
    def process(self) -> str:
        return self.name.split("/")[0]

    def later(self, least: int = 2, most: int = 9, *, rng: Random) -> int:
        self.clock += rng.randint(least, most)
        return self.clock


@dataclass
class Recording:
    """All that happened."""

    rng: Random  # what all chance comes from
    has: Features  # what the program has
    events: list[Event] = field(default_factory=list)
    truth: dict[tuple[int, int], Served] = field(default_factory=dict)  # by process and start, whom each kernel serves
    _streams: dict[str, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    _nodes: int = 0

    def range(self, thread: Thread, start: int, text: str) -> Event:
        return self._add(Event("range", thread.name, start, thread.later(rng=self.rng), text))

    def mark(self, thread: Thread, text: str) -> None:
        now = thread.later(rng=self.rng)
        self._add(Event("range", thread.name, now, now, text))

    def call(self, thread: Thread, name: str) -> Event:
        start = thread.later(rng=self.rng)
        return self._add(Event("launch", thread.name, start, thread.later(rng=self.rng), name))

    def operator(self, thread: Thread, name: str, served: Served, inside: int) -> None:
        start = thread.later(rng=self.rng)
        while (int(thread.process), start) in self.truth:
            start = thread.later(rng=self.rng)
        for _ in range(inside):
            self.operator(thread, self.rng.choice(("aten::copy_", "aten::add")), served, 0)
        self._add(Event("op", thread.name, start, thread.later(rng=self.rng), name))
        self.truth[int(thread.process), start] = served

    def launch(self, thread: Thread, name: str, served: Served) -> None:
        if self.rng.random() < 0.2:
            self.call(thread, self.rng.choice(QUIET_CALLS))
        call = self.call(thread, CALLS.get(name) or self.rng.choice(KERNEL_CALLS))
        launch_lost, work_lost = self._losses()
        if launch_lost:
            self.events.remove(call)
        if thread.nodes is None:
            if not work_lost:
                self._work(thread.process, call, name, served)
            return
        node = Node(self.new_node(), name, served)
        thread.nodes.append(node)
        if not work_lost and not self.has.whole:
            self.made(thread, call.start + 1, "", f"node!{node.number}")

    def replay(self, thread: Thread, nodes: list[Node]) -> None:
        call = self.call(thread, "cudaGraphLaunch_v10000")
        for node in nodes:
            if not self._losses()[1]:
                self._work(thread.process, call, node.name, node.served, f"!{node.number}")

    def replay_whole(self, thread: Thread, nodes: list[Node], graph: str) -> None:
        call = self.call(thread, "cudaGraphLaunch_v10000")
        if nodes:
            parts = dict.fromkeys((node.served.within for node in nodes), 0.0)
            self._work(thread.process, call, graph, Served(parts, nodes[0].served.within, certain=False), kind="graph")

    def made(self, thread: Thread, when: int, what: str, kind: str = "made") -> None:
        if kind == "made" or not self.has.unrecorded_nodes:
            self._add(Event(kind, thread.name, when, when, what))

    def new_node(self) -> int:
        self._nodes += 1
        return self._nodes

    def _work(self, process: str, call: Event, name: str, served: Served, node: str = "", kind: str = "") -> None:
        stream = self.rng.randrange(2) if self.has.streams else 0
        clocks = self._streams[process]
        start = max(clocks[stream], call.start) + self.rng.randint(_SOON, _LATE if self.rng.random() < 0.3 else 20)
        while (int(process), start) in self.truth:
            start += 1
        clocks[stream] = start + 2
        kind = kind or (name if name in CALLS else "kernel")
        rest = "64" if kind in CALLS else name
        self._add(Event(f"{kind}{node}", f"{process}/1", start, start + 2, rest, of=call))
        self.truth[int(process), start] = served

    def _add(self, event: Event) -> Event:
        self.events.append(event)
        return event

    def _losses(self) -> tuple[bool, bool]:
        """Whether a launch is lost, and whether its work is; of both nothing would be left to tell it."""
        if not self.has.lost_launches or self.rng.random() > 0.06:
            return False, False
        return self.rng.choice(((True, False), (False, True)))

    def lines(self, first_id: int = 1) -> list[str]:
        calls = sorted((event for event in self.events if event.kind == "launch"), key=lambda event: event.start)
        lost = [event.of for event in self.events if event.of and event.of not in set(calls)]
        for number, call in enumerate(sorted([*calls, *dict.fromkeys(lost)], key=lambda event: event.start), first_id):
            call.number = number
        low, high = self._cuts()
        return [line for event in self.events if (line := _line(event, low, high))]

    def _cuts(self) -> tuple[int, int]:
        last = max(event.end for event in self.events if not event.of)
        low = self.rng.randint(0, last // 2) if self.has.cut_start else -1
        return low, self.rng.randint(2 * last // 3, last) if self.has.cut_end else 1 << 60


def _line(event: Event, low: int, high: int) -> str:
    if not low <= event.start <= high:
        return ""
    end = str(event.end) if event.end <= high or event.kind != "range" else "-"
    if event.kind == "op" and event.end > high:
        return ""
    of = event.of or event
    number = f"#{of.number} " if of.number else ""
    return f"{event.kind} {event.thread} {event.start} {end} {number}{event.rest}"


class Answer(NamedTuple):
    """What a dataset says of a kernel, and the truth."""

    row: dict[str, Any]
    found: dict[str, float]
    served: Served

    @property
    def exact(self) -> bool:
        true = self.served.modules
        return self.found.keys() == true.keys() and all(isclose(self.found[path], true[path]) for path in true)

    @property
    def truthful(self) -> bool:
        """Whether it names one module of which all are part; where a map tells none, the call around the run."""
        if len(self.found) != 1 or not (self.served.modules or self.row["method"] != "compiled"):
            return False
        (path,) = self.found
        return all(f"{served}.".startswith(f"{path}.") for served in self.served.modules or [self.served.within])


def answers(made: Program, dataset: Dataset) -> Iterator[Answer]:
    kernels = dataset.table("kernels").to_pylist()
    paths = dataset.table("modules", ["path"]).column("path").to_pylist()
    found: dict[int, dict[str, float]] = defaultdict(dict)
    for row in dataset.table("kernel_modules").to_pylist():
        found[row["kernel_id"]][paths[row["module_id"]]] = row["weight"]
    for row in kernels:
        served = made.truth.get((row["pid"], row["start_ns"]))
        if served is not None:
            yield Answer(row, found.get(row["kernel_id"], {}), served)


def wrong(made: Program, dataset: Dataset) -> list[Answer]:
    return [answer for answer in answers(made, dataset) if not _right(answer)]


def _right(answer: Answer) -> bool:
    row, found = answer.row, answer.found
    if (row["method"] is None) == bool(found) or (row["cause"] is None) != bool(found):
        return False
    if not found:
        return row["module"] is None
    heaviest = [path for path in found if isclose(found[path], max(found.values()))]
    return (answer.exact or answer.truthful) and row["module"] == _around(heaviest)


def _around(paths: Iterable[str]) -> str:
    parts = zip(*(path.split(".") for path in paths))  # noqa: B905 - up to where the shortest ends
    return ".".join(part[0] for part in takewhile(lambda part: len({*part}) == 1, parts))


def undetermined(made: Program, dataset: Dataset) -> list[Answer]:
    if not made.features.whole_report:
        return []
    return [answer for answer in answers(made, dataset) if answer.served.certain and not answer.exact]


def determined(made: Program, dataset: Dataset) -> Mapping[str, int]:
    counts = {"exact": 0, "around": 0, "none": 0}
    for answer in answers(made, dataset):
        counts["exact" if answer.exact else "around" if answer.found else "none"] += 1
    return counts

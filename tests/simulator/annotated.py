"""Programs that annotate themselves with plain ranges: the lines of a report, and the node of every kernel.

    program = annotated(seed)
    report(path, "\\n".join(program.lines))     # as ``tests/trace_lines.py`` writes reports
    program.truth                                # what each kernel belongs to, by its name

Threads take turns event by event, so nothing happens at the same time. The truth comes from the ranges that were open
when a launch began and are still open when it returns, never from comparing times: of a replay those around it, and
below these what opened inside the graph capture. Texts are made of a template and
numbers, so what is folded is known as they are made, but for numbers that only the whole report decides.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple
from uuid import UUID

#: The words of texts that are always one place; of a counter; of a place that is numbered; of what the report decides.
WORDS = ("forward", "backward pass", "Computing softmax!", "höhe ≥, 模型", "loss", "aten::mul", "all_reduce")
COUNTERS = ("iteration {}", "Warm-up Step {}", "step={}", "[batch #{}] run", "epoch_{}", "Request {}", "seq: {} of x")
PLACES = ("layer_{}", "block {}", "conv{}", "Stage-{}", "layers/{}/mlp")
UNDECIDED = ("tile {}", "chunk {}", "{} of {} pieces", "<{}> {}")
DOMAINS = ("app", "NCCL", "cuBLAS")
LIBRARIES = {"NCCL", "cuBLAS"}
EVALUATING = "autograd::engine::evaluate_function: {}Backward0"

Part = tuple[str, str]


class Text(NamedTuple):
    """A text and what it names.

    Attributes:
        text: As it stands in the report.
        name: Its name, where the text alone tells it.
        template: What is undecided of it; None if nothing is.
        kind: The kind of its node.
        path: The path in its marker, of a module.
    """

    text: str
    name: str
    template: str | None = None
    kind: str = "range"
    path: str | None = None


@dataclass(slots=True, eq=False)
class Range:
    """A range, as the profiler saw it: a pop ends what was pushed last in its domain."""

    text: Text
    thread: Thread
    start: int
    domain: str | None = None
    end: int | None = None
    with_users: bool = False
    """Contains ranges that are no library's."""
    others: list[Other] = field(default_factory=list)
    """Of an evaluation on an autograd thread, what the other threads did meanwhile."""
    within: int | None = None
    """The graph capture that it began in."""

    @property
    def library(self) -> bool:
        return self.domain in LIBRARIES


@dataclass(slots=True, eq=False)
class Thread:
    """A thread: its open ranges, in the order of their starts."""

    process: int
    number: int
    open: list[Range] = field(default_factory=list)
    launching: bool = False
    waits: bool = False
    acted: int = 0
    """How many launches and ranges it began."""
    capture: int | None = None
    """The graph capture that it has begun."""

    @property
    def id(self) -> str:
        return f"{self.process}/{self.number}"


class Other(NamedTuple):
    """What another thread was inside of as something began and as it ended, and whether it did something meanwhile."""

    before: list[Range]
    after: list[Range]
    busy: bool


class Launch(NamedTuple):
    """What was open around a launch.

    Attributes:
        inside: The ranges around it, outermost first.
        others: For an autograd thread what each other thread did meanwhile.
        captured: For a replay the ranges that opened inside the graph capture around the captured launch.
    """

    inside: list[Range]
    others: list[Other]
    captured: list[Range]


@dataclass(slots=True)
class Features:
    """What a program has."""

    modules: bool = False
    autograd: str | None = None
    """How autograd's threads are known: ``named`` or ``evaluating``."""
    loaders: bool = False
    domains: bool = False
    graphs: bool = False


class Truth(NamedTuple):
    """What a kernel belongs to.

    Attributes:
        chain: Name and kind of the nodes around it, outermost first; empty for none.
        method: How that is known; None for none.
    """

    chain: tuple[Part, ...]
    method: str | None


class Program:
    """A program that runs, event by event."""

    def __init__(self, seed: int, features: Features, *, processes: int = 2, events: int = 160) -> None:
        self.rng = Random(f"annotated {seed}")
        self.features = features
        self.clock = 0
        self.lines: list[str] = []
        self.ranges: list[Range] = []
        self.launches: dict[str, Launch] = {}
        self.counts: Counter[str] = Counter()
        self.events = events
        self.graph_nodes: dict[int, list[list[tuple[int, list[Range]]]]] = defaultdict(list)
        self._domains()
        actors = [actor for process in range(1, processes + 1) for actor in self._process(process)]
        while actors:
            actor = self.rng.choice(actors)
            if next(actor, "done") == "done":
                actors.remove(actor)
        self.one_domain = False
        self._write_ranges()
        self.truth = {name: self._truth(launch) for name, launch in self.launches.items()}

    def _domains(self) -> None:
        self.number = {name: at for at, name in enumerate(DOMAINS, start=1)}
        for process in (1, 2):
            self.lines += [f"domain {process}/1 0 - {at} {name}" for name, at in self.number.items()]

    def now(self) -> int:
        self.clock += self.rng.choice((1, 1, 2, 50))
        return self.clock

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    # Who is there.

    def _process(self, process: int) -> Iterator[Iterator[None]]:
        main = Thread(process, 1)
        threads = [main]
        if self.features.autograd:
            worker = Thread(process, 2)
            if self.features.autograd == "named":
                self.lines.append(f"named {worker.id} 0 0 pt_autograd_0")
            threads.append(worker)
        if self.features.loaders:
            loader = Thread(process, 3)
            threads.append(loader)
            yield self._annotating(loader, [], self.events // 8)
        yield self._annotating(main, threads, self.events)

    def _annotating(self, thread: Thread, threads: list[Thread], events: int) -> Iterator[None]:
        """The life of a thread that annotates; with ``threads``, it also calls backward passes."""
        acts: list[tuple[float, Callable[[Thread], Iterator[None]]]] = [(5, self._push), (4, self._pop), (4, self._run)]
        if self.features.graphs:
            acts += [(1, self._capture), (1.5, self._replay)]
        weights = [weight for weight, _ in acts]
        for _ in range(events):
            [(_, act)] = self.rng.choices(acts, weights)
            yield from act(thread)
            if len(threads) > 1 and self.features.autograd and self.chance(0.12):
                yield from self._backward(thread, threads)
        while thread.open:
            yield from self._pop(thread)

    # What they do.

    def _push(self, thread: Thread, text: Text | None = None) -> Iterator[None]:
        if len(thread.open) < 7:
            self._begin(thread, text or self.text(thread))
            yield

    def _begin(self, thread: Thread, text: Text) -> None:
        domain = self.rng.choice((None, None, *DOMAINS)) if self.features.domains and not text.path else None
        begun = Range(text, thread, self.now(), domain, within=thread.capture)
        thread.acted += 1
        for pushed in thread.open:
            pushed.with_users |= not begun.library
        thread.open.append(begun)
        self.ranges.append(begun)

    def _pop(self, thread: Thread) -> Iterator[None]:
        if thread.open:
            self._finish(thread.open[-1])
            yield

    def _finish(self, ended: Range) -> None:
        ended.end = self.now()
        ended.thread.open.remove(ended)

    def _run(self, thread: Thread) -> Iterator[None]:
        yield from self._launch(thread, [])

    def _launch(self, thread: Thread, others: list[Thread]) -> Iterator[None]:
        """One kernel. Others may do something between the begin and the return of the API call."""
        start, around = self.now(), [*thread.open]
        thread.launching = True
        thread.acted += 1
        before = self._watched(others)
        yield
        thread.launching = False
        end = self.now()
        number = len(self.launches) + 1
        self._work(thread, start, end, number)
        inside = [one for one in around if one.end is None]
        self.launches[f"kernel{number}"] = Launch(inside, self._seen(others, before), [])

    def _watched(self, others: list[Thread]) -> list[tuple[list[Range], int, bool]]:
        return [([*other.open], other.acted, other.launching) for other in others]

    def _seen(self, others: list[Thread], before: list[tuple[list[Range], int, bool]]) -> list[Other]:
        pairs = zip(others, before, strict=True)
        return [Other(open_, [*other.open], was or other.acted > count) for other, (open_, count, was) in pairs]

    def _work(self, thread: Thread, start: int, end: int, number: int) -> None:
        self.lines.append(f"launch {thread.id} {start} {end} #{number}")
        self.lines.append(f"kernel {thread.process}/1 {end + 7} {end + 9} #{number} kernel{number}")

    def _backward(self, thread: Thread, threads: list[Thread]) -> Iterator[None]:
        """The thread waits, or does not, while the autograd thread launches."""
        worker, others = threads[1], [other for other in threads if other is not threads[1]]
        meanwhile = self.chance(0.2)
        for _ in range(self.rng.randrange(1, 5)):
            evaluating = self.features.autograd == "evaluating" and (worker.acted == 0 or self.chance(0.5))
            if evaluating:
                operator = EVALUATING.format(self.rng.choice(("Mm", "Add")))
                self._begin(worker, Text(operator, operator, kind="operator"))
                before = self._watched(others)
            if meanwhile and self.chance(0.5):
                # The API calls of the two threads overlap.
                pair = [self._launch(worker, others), self._launch(thread, [])]
                self.rng.shuffle(pair)
                for one in [*pair, *pair]:
                    yield next(one, None)
                for one in pair:
                    yield from one
            else:
                yield from self._launch(worker, others)
            if evaluating:
                worker.open[-1].others = self._seen(others, before)
                self._finish(worker.open[-1])

    # CUDA graphs.

    def _capture(self, thread: Thread) -> Iterator[None]:
        """Captures two launches into a graph and makes it executable; nothing runs yet."""
        process, first = thread.process, self.counts["node"] * 10 + 10
        self.counts["node"] += 1
        self.lines.append(self._api(thread, "cudaStreamBeginCapture_v10000"))
        thread.capture = first
        nodes = []
        for node in (first, first + 1):
            if self.chance(0.5):
                yield from self._push(thread)
            self.lines.append(self._api(thread, "cudaLaunchKernel_v7000", node=node))
            nodes.append((node + 5, [one for one in thread.open if one.within == first]))
            if thread.open and self.chance(0.3):
                self._finish(thread.open[-1])
        thread.capture = None
        self.lines.append(self._api(thread, "cudaStreamEndCapture_v10000"))
        start, end = self.now(), self.now() + 9
        self.clock = end
        self.lines.append(f"launch {thread.id} {start} {end} #{self._correlation()} cudaGraphInstantiate_v12000")
        for at, (clone, _) in enumerate(nodes, start=start + 1):
            self.lines += [f"node!{clone} {thread.id} {at} {at}", f"node!{clone} {thread.id} {at} {at} {clone - 5}"]
        self.graph_nodes[process].append(nodes)
        yield

    def _api(self, thread: Thread, name: str, *, node: int | None = None) -> str:
        start = self.now()
        thread.acted += 1
        self.clock = end = start + 4
        if node is not None:
            self.lines.append(f"node!{node} {thread.id} {start + 2} {start + 2}")
        return f"launch {thread.id} {start} {end} #{self._correlation()} {name}"

    def _correlation(self) -> int:
        self.counts["api"] += 1
        return 1_000_000 + self.counts["api"]

    def _replay(self, thread: Thread) -> Iterator[None]:
        if not (graphs := self.graph_nodes[thread.process]):
            return
        number = self._correlation()
        start = self.now()
        thread.acted += 1
        self.clock = end = start + 3
        self.lines.append(f"launch {thread.id} {start} {end} #{number} cudaGraphLaunch_v10000")
        for at, (node, captured) in enumerate(self.rng.choice(graphs)):
            name = f"kernel{len(self.launches) + 1}"
            self.launches[name] = Launch([*thread.open], [], captured)
            self.lines.append(f"kernel!{node} {thread.process}/1 {end + 9 + at} {end + 10 + at} #{number} {name}")
        yield

    # What ranges are called.

    def text(self, thread: Thread) -> Text:
        """A text of any kind."""
        modules = [pushed.text.path for pushed in thread.open if pushed.text.path]
        if self.features.modules and self.chance(0.5):
            below = self.rng.choice(("fc1", "fc2", "layers.0", "layers.1"))
            path = f"{modules[-1]}.{below}" if modules else "top"
            return Text(f"{{'Module': '{path}'}}", path.removeprefix(f"{modules[-1]}." if modules else ""), path=path)
        kind = self.rng.choice((self._word, self._counter, self._place, self._undecided, self._identified))
        return kind()

    def _word(self) -> Text:
        word = self.rng.choice(WORDS)
        if word.startswith("aten::"):
            fields = self.rng.choice(("", ", seq = {0}", ", op_id = {0}", ", seq = {0}, op_id = {1}"))
            text = word + fields.format(self._count("seq"), self._count("op"))
            return Text(text, word, kind="operator")
        return Text(word, word)

    def _counter(self) -> Text:
        template = self.rng.choice(COUNTERS)
        return Text(template.format(self._count(template)), template.format("*"))

    def _place(self) -> Text:
        text = self.rng.choice(PLACES).format(self.rng.randrange(12))
        return Text(text, text)

    def _undecided(self) -> Text:
        """Always new numbers (``chunk``), or the same ones again and again."""
        template = self.rng.choice(UNDECIDED)
        new = template.startswith(("chunk", "<"))
        numbers = [self._count(template) if new else self.rng.randrange(3) for _ in range(template.count("{}"))]
        text = template.format(*numbers)
        return Text(text, text, template=template)

    def _identified(self) -> Text:
        """Addresses, identifiers and shapes."""
        rng = self.rng
        text, name = rng.choice(
            (
                (f"copy to 0x{rng.getrandbits(40):x}", "copy to *"),
                (f"request {UUID(int=rng.getrandbits(128))}", "request *"),
                (f"blob_{rng.getrandbits(64):016X}", "blob_*"),
                (f"matmul ({rng.randrange(99)}, {rng.randrange(99)})", "matmul (*)"),
                (f"gemm [{rng.randrange(9)},{rng.randrange(99)}, {rng.randrange(9)}] big", "gemm [*] big"),
                (f"tensor {rng.randrange(1, 9)}x{rng.randrange(9)}x{rng.randrange(9)}", "tensor *"),
            )
        )
        return Text(text, name)

    def _count(self, of: str) -> int:
        self.counts[of] += 1
        return self.counts[of]

    # What the report says, and what is true.

    def _write_ranges(self) -> None:
        for one in self.ranges:
            domain = f"@{self.number[one.domain]}" if one.domain else ""
            self.lines.append(f"range{domain} {one.thread.id} {one.start} {one.end} {one.text.text}")
        on_thread = Counter((one.text.text, one.thread) for one in self.ranges)
        again = {text for (text, _), number in on_thread.items() if number > 1}
        alike: dict[str, set[str]] = defaultdict(set)
        for one in self.ranges:
            if one.text.template:
                alike[one.text.template].add(one.text.text)
        self.counting = {
            template for template, texts in alike.items() if len(texts) > 1 and 2 * len(texts & again) < len(texts)
        }
        nodes = {one.domain for one in self.ranges if not one.library and one.text.path is None}
        self.one_domain = len(nodes) == 1

    def _parts(self, node: Range) -> list[Part]:
        text = node.text
        if text.path is not None:
            return [(part, "module") for part in text.name.split(".")]
        name = text.template.replace("{}", "*") if text.template in self.counting else text.name or text.text
        said = node.domain if node.domain and (node.library or not self.one_domain) else None
        return [(f"{said}:{name}" if said else name, text.kind)]

    def _truth(self, launch: Launch) -> Truth:
        captured = self._nodes(launch.captured)
        if nodes := self._nodes(launch.inside) + captured:
            waiting = self._waiting(nodes[0].others)
            method = "autograd_thread" if waiting else "graph_node" if captured else "range"
            return Truth(self._chain(waiting + nodes), method)
        waiting = self._waiting(launch.others)
        return Truth(self._chain(waiting), "autograd_thread" if waiting else None)

    def _waiting(self, others: list[Other]) -> list[Range]:
        """What the only other thread that is inside of something waits in, if it does nothing."""
        nodes = [(self._nodes(other.before), self._nodes(other.after), other.busy) for other in others]
        candidates = [(before, after, busy) for before, after, busy in nodes if before or after]
        if len(candidates) == 1:
            [(before, after, busy)] = candidates
            if before and after and before[-1] is after[-1] and not busy and not before[-1].library:
                return before
        return []

    def _nodes(self, inside: list[Range]) -> list[Range]:
        return [one for one in inside if not (one.library and one.with_users)]

    def _chain(self, nodes: list[Range]) -> tuple[Part, ...]:
        return tuple(part for node in nodes for part in self._parts(node))


def annotated(seed: int) -> Program:
    """A program with features by its seed."""
    rng = Random(f"features {seed}")
    features = Features(
        modules=rng.random() < 0.5,
        autograd=rng.choice((None, "named", "evaluating")),
        loaders=rng.random() < 0.4,
        domains=rng.random() < 0.4,
        graphs=rng.random() < 0.4,
    )
    return Program(seed, features)

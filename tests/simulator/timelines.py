"""Host threads, streams, events, graphs and collectives of several ranks, as a simulation of what waits for what.

A program is run as a machine has it: with or without synchronization, with faster kernels, as graphs, and so on. Each
run gives its trace as lines of :mod:`tests.trace_lines`, and how long its steps took.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

_CALLS = {"upload": "cudaMemcpyAsync"}
_MEETS = {"collective": "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "send": "ncclDevKernel_SendRecv"}


@dataclass(frozen=True)
class Op:
    """Something that a thread does.

    ``kind`` is ``code``, ``kernel``, ``copy`` (which blocks), ``upload`` (which does not), ``collective`` (of all
    ranks, or of ``meets`` of them; kernels of NCCL keep their ``name``), ``send`` (of two ranks), ``record`` and
    ``wait`` of event ``key``, ``sync`` (of the device, of the stream, or of event ``key``), ``graph``, ``enter`` and
    ``leave`` a module, ``step`` and ``end`` of one, ``range`` of code named ``name``, ``os`` of a call of the system's,
    ``allocate``; ``give`` and ``take`` hand over to another thread. What copies carry is in ``copies``, as
    :mod:`tests.trace_lines` has it.
    """

    kind: str
    ns: int = 0
    stream: int = 7
    name: str = "gemm"
    key: int | None = None
    nodes: tuple[tuple[int, int], ...] = ()
    vary: float = 1.0  # of launches, and of how soon their work starts
    copies: str = "64"
    meets: int = 0


@dataclass(frozen=True)
class Machine:
    """How programs run; times in ns."""

    launch_ns: int = 5_000
    starts_after_ns: int = 2_000
    between_ns: int = 800
    sync_ns: int = 1_500
    returns_after_ns: int = 3_000
    call_ns: int = 900
    device: Callable[[str, str], float] = lambda module, name: 1.0
    host: Callable[[str], float] = lambda module: 1.0
    no_sync: Callable[[str], bool] = lambda module: False
    no_launch_cost: Callable[[str], bool] = lambda module: False
    as_graph: Callable[[str], bool] = lambda module: False
    overlap: bool = False
    interconnect: float = 1.0
    slowness: tuple[float, ...] = ()
    node_ns: int = 0  # what each node adds to the launch of a graph
    begins_after: float = 1.0  # the share of a launch after which its work may start
    held_until: Callable[[int], int] = lambda start: start  # when the device begins what could start at a time


@dataclass(eq=False, repr=False)  # it would be of all work before it
class Work:
    rank: int
    step: int | None
    launched: int
    after: list[Work]
    ns: int
    line: str
    meets: int = 0
    meeting: list[Work] | None = None
    start: int = -1
    end: int = -1

    def settle(self, machine: Machine, ranks: int) -> bool:
        """Whether its end became known."""
        if self.start < 0 and all(one.end >= 0 for one in self.after):
            ready = [one.end + machine.between_ns for one in self.after]
            self.start = machine.held_until(max(self.launched + machine.starts_after_ns, *ready, 0))
        if self.start < 0 or self.end >= 0:
            return False
        starts = [one.start for one in self.meeting or [self] if one.start >= 0]
        if self.meeting is None or len(starts) == (self.meets or ranks):
            self.end = max(starts) + self.ns
        return self.end >= 0


class Thread:
    """A host thread of a rank."""

    def __init__(self, rank: Rank, tid: int) -> None:
        self.rank, self.machine, self.now = rank, rank.run.machine, 1_000
        self.place = f"{rank.number + 7}/{tid}"
        self.modules: list[tuple[str, int]] = [("", 0)]
        self.inside: tuple[int, int] | None = None  # the depth of the call, and when it was launched

    def does(self, ops: list[Op]) -> Iterator[None]:
        for op in ops:
            yield from getattr(self, op.kind)(op) or ()

    @property
    def module(self) -> str:
        return self.modules[-1][0]

    @property
    def costs(self) -> bool:
        return not self.machine.no_launch_cost(self.module)

    def call(self, name: str, ns: int) -> int:
        self.rank.ids += 1
        if self.inside is None:
            self.rank.lines.append(f"launch {self.place} {self.now} {self.now + ns} #{self.rank.ids} {name}")
            self.now += ns
        return self.rank.ids

    def code(self, op: Op) -> None:
        self.now += 0 if self.inside else round(op.ns * self.machine.host(self.module) * self.rank.slow)

    def enter(self, op: Op) -> None:
        self.modules.append((op.name, self.now))
        if self.inside is None and self.machine.as_graph(op.name):
            self.rank.launcher = self.call("cudaGraphLaunch", self.machine.launch_ns)
            self.inside = len(self.modules), self.now

    def leave(self, op: Op) -> None:
        if self.inside and self.inside[0] == len(self.modules):
            self.inside = None
        name, begun = self.modules.pop()
        self.rank.lines.append(f"range {self.place} {begun} {self.now} {{'Module': '{name}'}}")

    def step(self, op: Op) -> None:
        self.rank.step, self.begun_step, self.rank.opened = op.key, self.now, set()
        self.rank.before_step = [work for (of, _), work in self.rank.last.items() if of == "comm"]

    def end(self, op: Op) -> None:
        self.now += 500
        self.rank.on_host[self.rank.step] = self.begun_step, self.now
        self.rank.lines.append(f"range {self.place} {self.begun_step} {self.now} ProfilerStep#{self.rank.step}")

    def give(self, op: Op) -> None:
        self.rank.handed[op.key] = self.now

    def take(self, op: Op) -> Iterator[None]:
        while op.key not in self.rank.handed:
            yield
        self.now = max(self.now, self.rank.handed[op.key] + 700)

    def kernel(self, op: Op) -> None:
        begun, lasts = self.now, self.machine.launch_ns + self.machine.node_ns * len(op.nodes)
        number = self.call(
            "cudaGraphLaunch" if op.nodes else _CALLS.get(op.kind, "cudaLaunchKernel"),
            round(lasts * self.costs * op.vary),
        )
        may_start = begun + round((self.now - begun) * self.machine.begins_after)
        launched = self.inside[1] if self.inside else may_start + round(200 * op.vary)
        for stream, ns in op.nodes or ((op.stream, op.ns),):
            self.rank.work(op, self.module, launched, stream, (ns, self.rank.launcher if self.inside else number))

    collective = send = graph = upload = kernel

    def os(self, op: Op) -> None:
        begun = self.now
        self.code(op)
        self.rank.lines.append(f"{op.kind} {self.place} {begun} {self.now} {op.name}")

    range = os

    def allocate(self, op: Op) -> None:
        self.call("cudaMalloc", op.ns)

    def copy(self, op: Op) -> Iterator[None]:
        if self.machine.no_sync(self.module) or self.inside:
            self.kernel(op)
            return
        begun = self.now
        self.rank.ids = number = self.rank.ids + 1
        work = self.rank.work(op, self.module, begun + self.machine.launch_ns, op.stream, (op.ns, number))
        while work.end < 0:
            yield
        self.now = work.end + self.machine.returns_after_ns
        name = _CALLS.get(op.name, "cudaMemcpy")
        self.rank.lines.append(f"launch {self.place} {begun} {self.now} #{number} {name}")

    def record(self, op: Op) -> None:
        self.call(f"cudaEventRecord stream={op.stream} event={op.key}", self.machine.call_ns * self.costs)
        self.rank.events[op.key] = self.rank.last.get(("work", op.stream))

    def wait(self, op: Op) -> None:
        self.call(f"cudaStreamWaitEvent stream={op.stream} event={op.key}", self.machine.call_ns * self.costs)
        waited = self.rank.events[op.key]
        if waited and not (self.machine.overlap and waited.meeting is not None):
            self.rank.waits.setdefault(op.stream, []).append(waited)

    def sync(self, op: Op) -> Iterator[None]:
        if self.machine.no_sync(self.module) or self.inside:
            return
        last = self.rank.last
        name, awaited = {
            "event": (f"cudaEventSynchronize event={op.key}", [self.rank.events.get(op.key)]),
            "stream": (f"cudaStreamSynchronize stream={op.stream}", [last.get(("work", op.stream))]),
        }.get(op.name, ("cudaDeviceSynchronize", [*last.values()]))
        until = self.now + self.machine.sync_ns
        for work in filter(None, awaited):
            while work.end < 0:
                yield
            until = max(until, work.end + self.machine.returns_after_ns)
        self.call(name, until - self.now)


class Rank:
    """A process with its threads."""

    def __init__(self, number: int, program: dict[int, list[Op]], run: Run) -> None:
        self.number, self.run, self.ids, self.launcher = number, run, 0, 0
        self.lines: list[str] = []
        self.works: list[Work] = []
        self.last: dict[tuple[str, int], Work] = {}
        self.waits: dict[int, list[Work]] = {}
        self.events: dict[int | None, Work | None] = {}
        self.handed: dict[int | None, int] = {}
        self.opened: set[int] = set()
        self.before_step: list[Work] = []
        self.step: int | None = None
        self.on_host: dict[int | None, tuple[int, int]] = {}
        self.slow = run.machine.slowness[number] if run.machine.slowness else 1.0
        self.threads = [Thread(self, tid).does(ops) for tid, ops in program.items()]

    def work(self, op: Op, module: str, launched: int, stream: int, made_of: tuple[int, int]) -> Work:
        (ns, number), machine, collective = made_of, self.run.machine, op.kind in ("collective", "send")
        lane = "comm" if machine.overlap and collective else "work"
        after = self.waits.pop(stream, [])
        after += [self.last[key, stream] for key in {"work", lane} if (key, stream) in self.last]
        if machine.overlap and stream not in self.opened:
            after += self.before_step
        lasts = ns / machine.interconnect if collective else ns * self.slow
        copies = "memcpy", op.copies
        kind, name = {"copy": copies, "upload": copies}.get(op.kind, ("kernel", op.name))
        name = _MEETS[op.kind] if collective and not name.startswith("nccl") else name
        line = f"{kind}:{self.number}+{stream} {self.number + 7}/1 {{}} {{}} #{number} {name}"
        made = Work(self.number, self.step, launched, after, round(lasts * machine.device(module, op.name)), line)
        if collective:
            made.meets = 2 if op.kind == "send" else op.meets
            made.meeting = self.run.meetings.setdefault(op.key, [])
            made.meeting.append(made)
        self.last[lane, stream] = made
        self.opened.add(stream)
        self.works.append(made)
        self.run.pending.append(made)
        return made


@dataclass(repr=False)
class Run:
    """A program that ran on a machine: one program for every rank."""

    machine: Machine
    meetings: dict[int | None, list[Work]] = field(default_factory=dict)
    pending: list[Work] = field(default_factory=list)
    ranks: list[Rank] = field(default_factory=list)

    def lines(self, rank: int, clock: Callable[[int], int] = lambda time: time) -> str:
        """The trace of a rank, on a clock of its own."""
        one = self.ranks[rank]
        text = [*one.lines, *(work.line.format(work.start, work.end) for work in one.works)]

        def moved(line: str) -> str:
            kind, thread, start, end, rest = line.split(" ", 4)
            return " ".join([kind, thread, str(clock(int(start))), str(clock(int(end))), rest])

        return "\n".join(map(moved, text))

    @property
    def per_step_ns(self) -> float:
        """From the first work to the end of the last one, by the number of steps."""
        works = [work for rank in self.ranks for work in rank.works]
        steps = {work.step for work in works if work.step is not None}
        return (max(work.end for work in works) - min(work.start for work in works)) / len(steps)

    @property
    def step_ns(self) -> int:
        """The mean window of a step on a device."""
        windows: list[int] = []
        for rank in self.ranks:
            works = [[work for work in rank.works if work.step == step] for step in rank.on_host]
            edges = [min(rank.on_host[0][0], *(work.start for work in works[0]))]
            for own in works:
                edges += [done] if (done := max(work.end for work in own)) > edges[-1] else []
            edges[-1] = max(edges[-1], rank.on_host[len(works) - 1][1])
            windows += [after - before for before, after in pairwise(edges)]
        return sum(windows) // len(windows)


def run(programs: list[dict[int, list[Op]]], machine: Machine) -> Run:
    """Runs a program for each rank: a list of ops for each of its threads."""
    done = Run(machine)
    done.ranks = [Rank(number, program, done) for number, program in enumerate(programs)]
    threads = [thread for rank in done.ranks for thread in rank.threads]
    while threads:
        threads = [thread for thread in threads if next(thread, "ended") is None]
        while [work for work in done.pending if work.settle(machine, len(done.ranks))]:
            done.pending = [work for work in done.pending if work.end < 0]
    assert not done.pending
    return done

"""What a profiler leaves of what happened: trace lines, of which some are lost, and the truth about all work."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping
    from random import Random

    from tests.simulator.compiled.plan import Features

KERNEL_CALLS = "cudaLaunchKernel_v7000", "cuLaunchKernelEx", "cudaLaunchKernelExC_v11060"
CALLS = {"memcpy": "cudaMemcpyAsync_v3020", "memset": "cudaMemsetAsync_v3020"}
QUIET_CALLS = "cudaEventRecord_v3020", "cudaStreamWaitEvent_v3020", "cudaStreamIsCapturing_v10000"
_SOON, _LATE = 3, 400


class Served(NamedTuple):
    """Whom a piece of work serves.

    Attributes:
        modules: With their weights; none if the map does not tell it.
        within: The module that was compiled: whatever it is for, it is part of that.
        certain: Whether a report that holds everything tells it without a doubt.
    """

    modules: Mapping[str, float]
    within: str
    certain: bool


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
        """A time a little later, to which its clock goes on."""
        self.clock += rng.randint(least, most)
        return self.clock


@dataclass
class Recording:
    """All that happened.

    Attributes:
        rng: What all chance comes from.
        has: What the program has.
        events: What happened.
        truth: By process and start, whom each piece of work serves.
    """

    rng: Random
    has: Features
    events: list[Event] = field(default_factory=list)
    truth: dict[tuple[int, int], Served] = field(default_factory=dict)
    _streams: dict[str, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    _nodes: int = 0

    def range(self, thread: Thread, start: int, text: str) -> Event:
        """A range that ends now."""
        return self._add(Event("range", thread.name, start, thread.later(rng=self.rng), text))

    def mark(self, thread: Thread, text: str) -> None:
        """An empty range."""
        now = thread.later(rng=self.rng)
        self._add(Event("range", thread.name, now, now, text))

    def call(self, thread: Thread, name: str) -> Event:
        """A call of CUDA's that puts no work on the device."""
        start = thread.later(rng=self.rng)
        return self._add(Event("launch", thread.name, start, thread.later(rng=self.rng), name))

    def operator(self, thread: Thread, name: str, served: Served, inside: int) -> None:
        """An operator of a CPU run, and some inside it."""
        start = thread.later(rng=self.rng)
        while (int(thread.process), start) in self.truth:
            start = thread.later(rng=self.rng)
        for _ in range(inside):
            self.operator(thread, self.rng.choice(("aten::copy_", "aten::add")), served, 0)
        self._add(Event("op", thread.name, start, thread.later(rng=self.rng), name))
        self.truth[int(thread.process), start] = served

    def launch(self, thread: Thread, name: str, served: Served) -> None:
        """A launch of work, which runs later, or becomes a node."""
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
        """Replays a graph, node by node."""
        call = self.call(thread, "cudaGraphLaunch_v10000")
        for node in nodes:
            if not self._losses()[1]:
                self._work(thread.process, call, node.name, node.served, f"!{node.number}")

    def replay_whole(self, thread: Thread, nodes: list[Node], graph: str) -> None:
        """Replays a graph that is traced as a whole."""
        call = self.call(thread, "cudaGraphLaunch_v10000")
        if nodes:
            parts = dict.fromkeys((node.served.within for node in nodes), 0.0)
            self._work(thread.process, call, graph, Served(parts, nodes[0].served.within, certain=False), kind="graph")

    def made(self, thread: Thread, when: int, what: str, kind: str = "made") -> None:
        """Records that a graph, an instance or a node of one was made."""
        if kind == "made" or not self.has.unrecorded_nodes:
            self._add(Event(kind, thread.name, when, when, what))

    def new_node(self) -> int:
        """The number of a new node."""
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
        """The trace."""
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

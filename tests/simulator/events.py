"""What happens in a simulated program: ranges, launches and device work, linked as they happened."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from random import Random

    from tests.simulator.models import Module


Shape = tuple[int, ...]

PUSH_POP = "push_pop"
START_END = "start_end"


class ThreadId(NamedTuple):
    """A thread of a process of a machine."""

    hw: int
    pid: int
    tid: int

    @property
    def global_tid(self) -> int:
        return signed(self.hw << 56 | 1 << 48 | self.pid << 24 | self.tid)

    @property
    def global_pid(self) -> int:
        return signed(self.global_tid & 0xFFFF_FFFF_FF00_0000)


def signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number


@dataclass(slots=True, eq=False, kw_only=True)
class Call:
    """One forward of a module: what its marker says."""

    module: Module
    inputs: tuple[Shape, ...]
    kwargs: dict[str, tuple[Shape, ...]]
    outputs: tuple[Shape, ...] = ()


class Step(NamedTuple):
    """A step as its range's text tells it; ``kind`` is None where the text does not say."""

    name: str
    kind: str | None


@dataclass(slots=True, eq=False, kw_only=True)
class Range:
    """An NVTX range. Without ``end_ns`` it was still open when the recording stopped.

    Its end is that of the pop by which the profiler took it to be ended; where ranges were left open, that may be the
    pop of a range around it. ``parent`` is what truly was around it.
    """

    thread: ThreadId
    text: str | None
    start_ns: int
    end_ns: int | None = None
    kind: str = PUSH_POP
    domain: str | None = None
    parent: Range | None = None
    call: Call | None = None
    outputs_of: Range | None = None  # for the second range of a call: the first one
    step: Step | None = None
    empty: bool = False
    end_thread: ThreadId | None = None
    lost: bool = False
    kept: bool = False  # faults leave this row alone (the last sign of life of a thread that was cut off)
    inner_end_ns: int | None = None  # end of the last child that started together with this range
    capture: Capture | None = None  # the capture of a CUDA graph in which it was pushed
    iteration: str | None = None  # the turn of a loop in which it was pushed


@dataclass(slots=True, eq=False, kw_only=True)
class Launch:
    """A CUDA API call, whether or not it puts work on a device."""

    thread: ThreadId
    name: str
    event_class: int
    correlation: int
    start_ns: int
    end_ns: int
    inside: Range | None
    spans: tuple[Range, ...] = ()  # start/end ranges that this thread had begun and not yet ended
    work: list[Work] = field(default_factory=list)
    capture: Capture | None = None  # the one that it begins, ends, or adds nodes to instead of device work
    iteration: str | None = None  # the turn of a loop in which it was made
    lost: bool = False
    kept: bool = False


@dataclass(slots=True, eq=False, kw_only=True)
class Capture:
    """What one thread does between ``cudaStreamBeginCapture`` and ``cudaStreamEndCapture``."""

    shape: Random  # decides what is captured: captures with equal ones have the same calls and launches
    begin: Launch | None = None
    end: Launch | None = None  # none until it ends; for ever where the thread was cut off in the middle
    launches: list[Launch] = field(default_factory=list)


@dataclass(slots=True, eq=False, kw_only=True)
class Node:
    """A node of a CUDA graph, executable or not. Its id is ``graph id << 32 | index``, as seen since 2022."""

    id: int
    kind: str
    name: str
    full_name: str
    copy_kind: int = 0
    captured_by: Launch | None = None  # the API call that added it, where it was captured
    original: Node | None = None  # the node that it was cloned from
    records: list[NodeRecord] = field(default_factory=list)

    @property
    def root(self) -> Node:
        node = self
        while node.original is not None:
            node = node.original
        return node


@dataclass(slots=True, eq=False, kw_only=True)
class NodeRecord:
    """A row that says a node was created; of a clone's two rows the second names its ``original``."""

    thread: ThreadId
    node: Node
    time_ns: int
    original: Node | None = None
    late: bool = False  # written after the end of the capture, so that no launch lies around it
    lost: bool = False


@dataclass(slots=True, eq=False, kw_only=True)
class GraphRecord:
    """A row that says a graph was created, cloned or made executable."""

    thread: ThreadId
    event_class: int
    time_ns: int
    graph: int
    original: int | None = None
    executable: int | None = None
    lost: bool = False


@dataclass(slots=True, eq=False, kw_only=True)
class Work:
    """One piece of device work; without ``launch`` nobody asked for it by an API call."""

    kind: str
    name: str
    full_name: str
    start_ns: int
    end_ns: int
    on: Stream
    correlation: int | None
    launch: Launch | None
    bytes: int | None = None  # of copies and sets of memory
    copy_kind: int = 0
    node: Node | None = None  # the node of an executable graph that it ran from
    graph_id: int | None = None  # for a graph traced as a whole: the graph
    graph_exec: int | None = None  # for a graph traced as a whole: the executable one that was made of it
    captured: Capture | None = None  # for a graph traced as a whole: what was captured into it
    lost: bool = False
    early: bool = False  # the file says that it ran before it was launched

    @property
    def replayed(self) -> bool:
        return self.node is not None or self.graph_exec is not None


@dataclass(slots=True, eq=False, kw_only=True)
class Mark:
    """An NVTX row that is no range: a point, a thread's name, a category."""

    thread: ThreadId
    event_type: int
    text: str | None
    start_ns: int
    domain: str | None = None


KERNELS = (
    ("ampere_sgemm_64x32_sliced1x4_nt", "ampere_sgemm_64x32_sliced1x4_nt"),
    ("vectorized_elementwise_kernel", "void at::native::vectorized_elementwise_kernel<(int)4, float>(int, T1)"),
    ("flash_fwd_kernel", "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<(int)128>>(Flash_fwd_params)"),
)
HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE, MIGRATION = 1, 2, 8, 11
COPIES = {
    HOST_TO_DEVICE: "[CUDA memcpy HtoD]",
    DEVICE_TO_HOST: "[CUDA memcpy DtoH]",
    DEVICE_TO_DEVICE: "[CUDA memcpy DtoD]",
    MIGRATION: "[CUDA Unified Memory memcpy HtoD]",
}


@dataclass(frozen=True, slots=True)
class Stream:
    """One stream of one process on one device; context ids repeat between processes, as real ones do."""

    process: ThreadId
    device: int
    context: int
    number: int


@dataclass(slots=True)
class Devices:
    """The devices of a program: until when each stream is busy."""

    rng: Random
    busy_until: dict[Stream, int] = field(default_factory=dict)
    done: list[Work] = field(default_factory=list)

    def run(
        self, kind: str, stream: Stream, launch: Launch | None, *, not_before: int, node: Node | None = None
    ) -> Work:
        """Runs one kernel on ``stream`` when the stream is free, some time after ``not_before``.

        What a graph's node runs was decided at its capture.
        """
        rng = self.rng
        ready = not_before + rng.choice((1, 2, 900, 40_000))
        start = max(ready, self.busy_until.get(stream, ready) + rng.choice((0, 0, 1, 700)))
        end = start + rng.choice((1, 37, 2_000, rng.randrange(1, 90_000)))
        self.busy_until[stream] = end
        name, full_name, copy = (node.name, node.full_name, node.copy_kind) if node else chosen(rng, kind)
        size = rng.choice((0, 4, 95_846_400, 5 << 32)) if kind in {"memcpy", "memset"} else None
        correlation = launch.correlation if launch else None
        what = {"kind": kind, "name": name, "full_name": full_name, "copy_kind": copy, "bytes": size, "node": node}
        work = Work(start_ns=start, end_ns=end, on=stream, correlation=correlation, launch=launch, **what)
        self.done.append(work)
        if launch:
            launch.work.append(work)
        return work


def chosen(rng: Random, kind: str) -> tuple[str, str, int]:
    if kind == "kernel":
        return *rng.choice(KERNELS), 0
    copy = 0
    if kind == "memcpy":
        copy = rng.choice((HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE))
    name = {"memcpy": COPIES.get(copy, ""), "memset": "[CUDA memset]", "graph": "CUDA graph"}[kind]
    return name, name, copy

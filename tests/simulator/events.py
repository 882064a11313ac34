"""What happens in a simulated program: ranges, launches and device work, linked as they happened.

The links are the truth. A launch knows the range that was open when it was made, a range knows the range that was
open when it was pushed, a call's range knows its call; a graph's node knows the launch that added it or the node it
was cloned from. Nothing here is ever found again by comparing times.
"""

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
    """An unsigned 64-bit number as SQLite keeps it."""
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
    outputs_of: Range | None = None
    """For the second range of a call: the first one."""
    doubles: Range | None = None
    """For the range of another set of hooks: that of the first."""
    step: Step | None = None
    empty: bool = False
    end_thread: ThreadId | None = None
    lost: bool = False
    kept: bool = False
    """Faults leave this row alone (the last sign of life of a thread that was cut off)."""
    inner_end_ns: int | None = None
    """End of the last child that started together with this range."""
    capture: Capture | None = None
    """The capture of a CUDA graph in which it was pushed."""
    iteration: str | None = None
    """The turn of a loop in which it was pushed."""


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
    spans: tuple[Range, ...] = ()
    """Start/end ranges that this thread had begun and not yet ended."""
    work: list[Work] = field(default_factory=list)
    capture: Capture | None = None
    """The capture that this call is part of: it begins it, ends it, or adds nodes instead of device work."""
    iteration: str | None = None
    """The turn of a loop in which it was made."""
    lost: bool = False
    kept: bool = False


@dataclass(slots=True, eq=False, kw_only=True)
class Capture:
    """What one thread does between ``cudaStreamBeginCapture`` and ``cudaStreamEndCapture``."""

    shape: Random
    """Decides what is captured: captures with equal ones have the same calls and launches."""
    begin: Launch | None = None
    end: Launch | None = None
    """None until it ends; for ever where the thread was cut off in the middle."""
    launches: list[Launch] = field(default_factory=list)


@dataclass(slots=True, eq=False, kw_only=True)
class Node:
    """A node of a CUDA graph, executable or not. Its id is ``graph id << 32 | index``, as seen since 2022."""

    id: int
    kind: str
    name: str
    full_name: str
    copy_kind: int = 0
    captured_by: Launch | None = None
    """The API call that added it, where it was captured."""
    original: Node | None = None
    """The node that it was cloned from."""
    records: list[NodeRecord] = field(default_factory=list)

    @property
    def root(self) -> Node:
        """The node at the beginning of its lineage."""
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
    late: bool = False
    """Written after the end of the capture, so that no launch lies around it."""
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
    process: ThreadId
    device: int
    context: int
    stream: int
    correlation: int | None
    launch: Launch | None
    bytes: int = 0
    copy_kind: int = 0
    node: Node | None = None
    """The node of an executable graph that it ran from."""
    graph_id: int | None = None
    """For a graph traced as a whole: the graph."""
    graph_exec: int | None = None
    """For a graph traced as a whole: the executable one that was made of it."""
    captured: Capture | None = None
    """For a graph traced as a whole: what was captured into it."""
    updated: bool = False
    """For a graph traced as a whole: it may run what was captured later."""
    lost: bool = False
    early: bool = False
    """The file says that it ran before it was launched."""

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

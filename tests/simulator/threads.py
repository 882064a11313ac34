"""A thread of a program: its clock, its open ranges and its API calls.

Time passes only here. Starts and ends touch whenever the file still says who is inside whom; where two intervals
would become equal, or an empty range would lie in two others at once, the clock moves on by a nanosecond first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

from tests.simulator import events
from tests.simulator.graphs import Graph


@dataclass(slots=True, eq=False)
class Process:
    """A process: its ids, its devices and all that its threads record."""

    main: events.ThreadId
    devices: events.Devices
    streams: list[events.Stream]
    recorded_ranges: list[events.Range] = field(default_factory=list)
    recorded_launches: list[events.Launch] = field(default_factory=list)
    recorded_marks: list[events.Mark] = field(default_factory=list)
    # Start/end ranges that any thread of the process may still end.
    spans: list[events.Range] = field(default_factory=list)
    correlations: count[int] = field(default_factory=lambda: count(1001))
    graphs: count[int] = field(default_factory=lambda: count(2))  # numbers graphs and executable graphs alike
    captured: list[Graph] = field(default_factory=list)  # graphs that any thread of the process may instantiate
    executables: list[Graph] = field(default_factory=list)  # graphs that any thread of the process may replay
    recorded_nodes: list[events.NodeRecord] = field(default_factory=list)
    recorded_graphs: list[events.GraphRecord] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Thread:
    """One thread. Whatever it does moves its clock."""

    id: events.ThreadId
    process: Process
    rng: Random
    clock: int
    stack: list[events.Range] = field(default_factory=list)
    recorded: dict[str | None, list[events.Range]] = field(default_factory=dict)
    """What the profiler takes to be open, by domain: also what was left open."""
    actions: int = 0
    last_seen_ns: int | None = None  # when the recording of this thread was cut off
    last_end: int | None = None  # when a range of this thread ended last
    last_end_was_empty: bool = False
    capturing: Graph | None = None  # what launches are captured into, instead of being run
    iteration: str | None = None  # the turn of a loop that it works for

    def pause(self, least: int = 0) -> None:
        self.clock += max(least, self.rng.choice((0, 0, 0, 1, 1, 3, self.rng.randrange(2, 3_000))))

    @property
    def _here(self) -> dict[str, Any]:
        return {"thread": self.id, "capture": self.capture, "iteration": self.iteration}

    def push(
        self, text: str | None, *, domain: str | None = None, empty: bool = False, **of: events.Call | events.Step
    ) -> events.Range:
        """Opens a range, of a ``call`` or a ``step`` or none, inside the one open now."""
        self.pause()
        if self.clock == self.last_end and (empty or self.last_end_was_empty):
            self.clock += 1
        given = {"text": text, "start_ns": self.clock, "domain": domain, "parent": self.open_range(), "empty": empty}
        pushed = events.Range(**given, **of, **self._here)
        self.stack.append(pushed)
        self.recorded.setdefault(domain, []).append(pushed)
        self.process.recorded_ranges.append(pushed)
        return pushed

    def pop(self) -> events.Range:
        ended = self.stack.pop()
        if not ended.empty:
            self.pause()
            if self.clock in {ended.start_ns, ended.inner_end_ns} or (
                self.last_end_was_empty and self.last_end == self.clock
            ):
                self.clock += 1
        self.recorded[ended.domain].pop().end_ns = self.clock
        if ended.parent is not None and ended.parent.start_ns == ended.start_ns:
            ended.parent.inner_end_ns = self.clock
        self.last_end_was_empty = ended.empty or (self.last_end_was_empty and self.last_end == self.clock)
        self.last_end = self.clock
        return ended

    def leave_open(self) -> None:
        self.stack.pop()

    def open_range(self) -> events.Range | None:
        return self.stack[-1] if self.stack else None

    def begin_span(self, text: str | None, domain: str | None) -> None:
        self.pause()
        span = events.Range(thread=self.id, text=text, start_ns=self.clock, kind=events.START_END, domain=domain)
        self.process.spans.append(span)
        self.process.recorded_ranges.append(span)

    def end_span(self, span: events.Range) -> None:
        self.pause()
        self.clock = max(self.clock, span.start_ns)
        span.end_ns = self.clock
        span.end_thread = None if span.thread == self.id else self.id
        self.process.spans.remove(span)

    @property
    def capture(self) -> events.Capture | None:
        return self.capturing.capture if self.capturing else None

    def api(self, name: str, *, event_class: int = 0, least: int = 0) -> events.Launch:
        """Calls the CUDA API; takes a nanosecond at least, and ``least`` more."""
        self.pause()
        start = self.clock
        self.clock += least + self.rng.choice((1, 5, 2_500))
        spans = tuple(span for span in self.process.spans if span.thread == self.id)
        given = {"name": name, "event_class": event_class, "correlation": next(self.process.correlations)}
        around = {"start_ns": start, "end_ns": self.clock, "inside": self.open_range(), "spans": spans}
        called = events.Launch(**given, **around, **self._here)
        self.process.recorded_launches.append(called)
        return called

    def mark(self, event_type: int, text: str | None, domain: str | None = None) -> None:
        mark = events.Mark(thread=self.id, event_type=event_type, text=text, start_ns=self.clock, domain=domain)
        self.process.recorded_marks.append(mark)

    def launch(self, name: str, kinds: list[str], *, event_class: int = 0) -> events.Launch:
        """Calls the CUDA API to put work on streams of this thread's choice, or into the graph being captured."""
        if self.capturing:
            launch = self.api(name, event_class=event_class, least=len(kinds) + 1)
            self.capturing.add(launch, kinds)
            return launch
        launch = self.api(name, event_class=event_class)
        for kind in kinds:
            self.work(kind, launch)
        return launch

    def block(self, launch: events.Launch) -> None:
        self.pause(least=1)
        self.clock = max(self.clock, *(work.end_ns + 1 for work in launch.work))
        launch.end_ns = self.clock

    def work(
        self, kind: str, launch: events.Launch, node: events.Node | None = None, stream: events.Stream | None = None
    ) -> events.Work:
        stream = stream or self.rng.choice(self.process.streams)
        return self.process.devices.run(kind, stream, launch, not_before=launch.start_ns, node=node)

    def forget(self) -> None:
        process = self.process
        for event in [*process.recorded_ranges, *process.recorded_launches]:
            event.lost |= event.thread == self.id
        for record in [*process.recorded_nodes, *process.recorded_graphs]:
            record.lost |= record.thread == self.id

    def cut_off(self) -> None:
        """Ends the recording of this thread in the middle, with ranges open and one last sign of life.

        Two ranges that began together and never end would be equal, so the inner ones are popped before.
        """
        began = [span for span in self.process.recorded_ranges if span.thread == self.id]
        self.clock = max([self.clock, *(span.end_ns for span in began if span.end_ns is not None)])
        self.process.spans[:] = [span for span in self.process.spans if span.thread != self.id]
        starts = [pushed.start_ns for pushed in self.stack]
        while len(set(starts)) < len(starts):
            self.pop()
            starts.pop()
        self.clock += 1
        self.api("cudaStreamSynchronize_v3020").kept = True
        self.last_seen_ns = self.clock

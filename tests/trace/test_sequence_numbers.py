"""Random programs of several threads with forward and backward passes: no node is given to an operator of another."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tracekit.recording.tables import NOT_RECORDED
from tracekit.trace.counters import Numbered
from tracekit.trace.sequence_numbers import makers

if TYPE_CHECKING:
    from tracekit.trace.sequence_numbers import Made

OPERATORS = "aten::mul", "aten::native_layer_norm", "aten::t"
NODES = "MulBackward0", "NativeLayerNormBackward0", "TBackward0"
NAMES = [*OPERATORS, *NODES, "CheckpointFunctionBackward"]
SPAN = 100_000


@dataclass
class Event:
    """An operator, or the evaluation of a node that another event made."""

    thread: int
    number: int
    name: int
    start: int
    end: int = 0
    maker: Event | None = None
    evaluates: bool = False


@dataclass
class Program:
    """A program that runs: its events, and the counter of each thread."""

    seed: int
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.counters: dict[int, int] = {}
        self.now = 0

    def tick(self) -> int:
        self.now += self.random.randint(1, 3)
        return self.now

    def operator(self, thread: int) -> Event | None:
        """Runs an operator; returns it if it made a node."""
        number, name = self.counters.setdefault(thread, 0), self.random.randrange(3)
        event = Event(thread, number, name, self.tick())
        self.events.append(event)
        if self.random.random() < 0.2:
            # One operator that calls another one: both tell the number, and the inner one made the node.
            event = replace(event, start=self.tick(), end=self.tick())
            self.events.append(event)
            self.events[-2].end = self.tick()
        else:
            event.end = self.tick()
        if self.random.random() < 0.3:
            return None
        self.counters[thread] += 1
        return event

    def evaluation(self, thread: int, maker: Event, depth: int = 0) -> list[Event]:
        """Runs a node; returns the operators inside that made nodes which run later."""
        event = Event(thread, maker.number, 3 + maker.name, self.tick(), maker=maker, evaluates=True)
        self.events.append(event)
        made = [self.operator(thread) for _ in range(self.random.choice((0, 0, 0, 1, 3)))]
        later = [item for item in made if item is not None]
        if later and depth < 2 and self.random.random() < 0.5:
            for item in later[::-1]:
                self.evaluation(thread, item, depth + 1)
            later = []
        event.end = self.tick()
        return later

    def run(self, threads: int, *, reuse: bool) -> None:
        """Forward passes on several threads, and backward passes on one of two others."""
        flights: list[list[Event]] = []
        for _ in range(self.random.randint(3, 12)):
            thread = self.random.randrange(threads)
            told = [(item.start, item.number) for item in self.events if item.thread == thread and not item.evaluates]
            # Only numbers that fall show that another thread has the id now.
            if reuse and max(told, default=(0, 0))[1] > 0 and self.random.random() < 0.2:
                self.counters[thread] = 0
            made = [self.operator(thread) for _ in range(self.random.randint(1, 6))]
            flights.append([item for item in made if item is not None])
            while flights and self.random.random() < 0.5:
                flight = flights.pop(self.random.randrange(len(flights)))
                on = self.random.choice((thread, threads, threads + 1))
                again = [item for node in flight[::-1] for item in self.evaluation(on, node)]
                if again:
                    flights.append(again)


def recorded(program: Program, since: int, *, told: bool) -> tuple[Numbered, Numbered, list[Event], list[Event]]:
    """Nodes and operators of what began after a time."""
    events = sorted(
        (item for item in program.events if item.start >= since), key=lambda item: (item.thread, item.start)
    )
    nodes = [item for item in events if item.evaluates]
    operators = [item for item in events if not item.evaluates]
    seen = {item.thread for item in events}
    return _numbered(nodes, seen, told=told), _numbered(operators, seen, told=False), nodes, operators


def _numbered(events: list[Event], seen: set[int], *, told: bool) -> Numbered:
    made_on = [item.maker.thread if told and item.maker else -1 for item in events]
    columns = [
        range(len(events)),
        [item.thread * SPAN + item.start for item in events],
        [item.thread * SPAN + item.end for item in events],
        [item.start for item in events],
        [item.thread for item in events],
        [0] * len(events),
        [thread if thread in seen or thread < 0 else NOT_RECORDED for thread in made_on],
        [item.number for item in events],
        [item.name for item in events],
    ]
    return Numbered(*(np.array(column, dtype=np.int64) for column in columns))


def around(nodes: list[Event], event: Event) -> int:
    """The innermost evaluation around an event."""
    holding = [
        (node.start, row)
        for row, node in enumerate(nodes)
        if node.thread == event.thread and node.start < event.start and event.end < node.end
    ]
    return max(holding)[1] if holding else -1


def found(program: Program, since: int, *, told: bool) -> tuple[Made, list[Event], list[Event]]:
    nodes, operators, ran, operated = recorded(program, since, told=told)
    inside = np.array([around(ran, item) for item in operated], dtype=np.int64)
    return makers(nodes, operators, inside, NAMES), ran, operated


def by_the_rule(node: Event, nodes: list[Event], operators: list[Event], thread: int | None) -> Event | None:
    """Slow and obvious: the operator that made a node, or None; ``thread`` is that which it tells."""
    counters: list[list[Event]] = []
    for item in operators:
        last = counters[-1][-1] if counters else None
        if last is None or last.thread != item.thread or last.number > item.number:
            counters.append([])
        counters[-1].append(item)
    counters = [counter for counter in counters if thread is None or counter[0].thread == thread]
    fits = [
        [item for item in counter if item.number == node.number and item.start < node.start] for counter in counters
    ]
    last_ones = [items[-1] for items in fits if items]
    near = []
    for item in last_ones:
        holder = nodes[at] if (at := around(nodes, item)) >= 0 else None
        if holder and holder.thread == node.thread and holder.start <= node.start and node.end <= holder.end:
            near.append(item)
    if not near and any(counter[0].number > node.number for counter in counters):
        return None
    chosen = near or last_ones
    if len(chosen) > 1:
        chosen = [item for item in chosen if item.name + 3 == node.name]
    return chosen[0] if len(chosen) == 1 else None


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("told", [False, True], ids=["untold", "told"])
def test_makers_are_those_of_the_rule_and_never_wrong(seed: int, told: bool) -> None:
    program = Program(seed)
    late = seed % 2 == 1
    program.run(1 + seed % 4, reuse=not late)
    since = program.random.randrange(program.now) if late else 0
    made, nodes, operators = found(program, since, told=told)
    seen = {item.thread for item in operators}
    for row, node in enumerate(nodes):
        maker = operators[made.operator[row]] if made.operator[row] >= 0 else None
        assert node.maker
        thread = node.maker.thread
        if told and thread not in {item.thread for item in (*nodes, *operators)}:
            thread = NOT_RECORDED
        assert maker is by_the_rule(node, nodes, operators, thread if told else None)
        # Of a thread that does nothing while it is recorded, nobody knows what it did before.
        if maker is not None and (told or node.maker.thread in seen):
            assert maker is node.maker


def test_most_nodes_are_known_where_threads_are_told() -> None:
    known = total = 0
    for seed in range(20):
        program = Program(seed)
        program.run(1 + seed % 4, reuse=False)
        made, nodes, _ = found(program, 0, told=True)
        known, total = known + int((made.operator >= 0).sum()), total + len(nodes)
    assert known == total

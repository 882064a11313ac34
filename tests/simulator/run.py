"""Runs a plan: starts its processes, lets their threads take turns, and then loses what the plan says was lost."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, count
from random import Random
from typing import TYPE_CHECKING

from tests.simulator import faults, models
from tests.simulator.device import Devices, Stream
from tests.simulator.events import ThreadId
from tests.simulator.generations import generation
from tests.simulator.script import Script
from tests.simulator.threads import Process, Thread

if TYPE_CHECKING:
    from tests.simulator.events import GraphRecord, Launch, Mark, NodeRecord, Range, Work
    from tests.simulator.plan import Plan

HW_OF_NEGATIVE_IDS = 0xFE
STREAM_NUMBERS = (7, 13, 14, 20, 21)


@dataclass(frozen=True, slots=True)
class Run:
    """All that happened, lost or not."""

    plan: Plan
    processes: list[Process]
    work: list[Work]
    last_seen_ns: dict[ThreadId, int]
    """When the recording of a thread was cut off; only of threads that were."""

    @property
    def ranges(self) -> list[Range]:
        return list(chain.from_iterable(process.recorded_ranges for process in self.processes))

    @property
    def launches(self) -> list[Launch]:
        return list(chain.from_iterable(process.recorded_launches for process in self.processes))

    @property
    def node_records(self) -> list[NodeRecord]:
        return list(chain.from_iterable(process.recorded_nodes for process in self.processes))

    @property
    def graph_records(self) -> list[GraphRecord]:
        return list(chain.from_iterable(process.recorded_graphs for process in self.processes))

    @property
    def marks(self) -> list[Mark]:
        return list(chain.from_iterable(process.recorded_marks for process in self.processes))


def simulate(plan: Plan) -> Run:
    """Runs the program that ``plan`` describes; the same plan gives the same run."""
    rng = Random(f"{plan.seed}")
    devices = Devices(rng)
    processes = [_process(plan, number, devices, rng) for number in range(plan.processes)]
    threads = _threads(plan, processes, rng)
    _take_turns(plan, threads, rng)
    last_seen = {thread.id: thread.last_seen_ns for thread, _ in threads if thread.last_seen_ns is not None}
    run = Run(plan, processes, devices.done, last_seen)
    if not generation(plan.generation).traces_whole_graphs:
        faults.lose_graph_traces(run.work)
    graphs = [*run.node_records, *run.graph_records]
    if plan.graph_traces and not plan.graph_replays:
        faults.lose_all(run.node_records)
    faults.delay_nodes(run.node_records, faults=plan.faults)
    faults.lose(run.ranges, run.launches, run.work, graphs, faults=plan.faults, rng=rng)
    return run


def _process(plan: Plan, number: int, devices: Devices, rng: Random) -> Process:
    hw = HW_OF_NEGATIVE_IDS if plan.negative_ids else 0
    if plan.same_pid:
        main = ThreadId(hw ^ number, 4711, 4711)
    else:
        pid = 4711 + number * rng.choice((16, 70_001))
        main = ThreadId(hw, pid, pid)
    streams = [
        Stream(main, device, 1, STREAM_NUMBERS[index])
        for device in range(plan.devices)
        for index in range(plan.streams)
    ]
    return Process(main, devices, streams, graphs=count(plan.first_graph))


def _threads(plan: Plan, processes: list[Process], rng: Random) -> list[tuple[Thread, Script]]:
    model_of_all = [models.model(rng, plan, root) for root in _roots(rng)]
    sequence = count(45_000)
    threads = []
    for process in processes:
        own = model_of_all if plan.same_model else [models.model(rng, plan, root) for root in _roots(rng)]
        if plan.namesakes:
            own = [*own, models.namesake(rng, own[0])]
        for index in range(plan.threads):
            identity = process.main._replace(tid=process.main.tid + index)
            thread = Thread(
                identity,
                process,
                rng,
                clock=plan.epoch_ns + rng.randrange(5_000),
                empty_at_end=plan.empty_at_end,
            )
            threads.append((thread, Script(thread, plan, own, sequence)))
    return threads


def _roots(rng: Random) -> list[str]:
    return rng.choice((["top"], ["LlamaForCausalLM"], ["top", "draft"]))


def _take_turns(plan: Plan, threads: list[tuple[Thread, Script]], rng: Random) -> None:
    """Lets the thread whose clock is behind act next, until all are done or cut off."""
    turns = {thread: script.run() for thread, script in threads}
    while turns:
        thread = min(turns, key=lambda candidate: candidate.clock)
        if plan.faults.cut_off and rng.random() < 1 / (2 * plan.actions):
            thread.cut_off()
            del turns[thread]
        elif next(turns[thread], "done") == "done":
            del turns[thread]

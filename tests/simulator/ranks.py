"""Jobs of several ranks whose clocks differ: what each rank's profiler recorded of their collectives, and the truth.

    job = Job(seed=1, ranks=4, slow={2: 80_000})
    run = simulated(job)
    run.lanes                      # the collectives of each rank by stream, on the rank's own clock
    reports(run, folder)           # the same as reports of Nsight Systems
    run.meetings                   # who began each collective when, in true time

Each rank computes and then meets the others of its communicator: in every layer the ranks of its tensor-parallel group
(stream 7), at the end of a step those of its data-parallel group (stream 20) and then all (stream 30); or all of them
on stream 7.
"""

from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy as np

from tests.trace_lines import report
from tracekit.ranks.collectives import Lane

NAMES = (
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
    "ncclDevKernel_ReduceScatter_Sum_f32_RING_SIMPLE",
    "ncclDevKernel_AllGather_RING_LL",
)
#: How long a rank computes, and the most by which ranks end a collective apart.
COMPUTE_NS, ENDS_APART_NS = 200_000, 3_000
_STREAMS = {"tp": 7, "dp": 20, "world": 30}
_NAME_OF = {"tp": 0, "dp": 1, "world": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a job is; everything random comes from the seed."""

    seed: int = 0
    ranks: int = 4
    tensor_parallel: int = 2
    steps: int = 6
    layers: int = 6
    meets_all: bool = True
    jitter: float = 0.3  # how much compute time varies, as a share
    transfer_ns: int = 12_000
    slow: dict[int, int] = field(default_factory=dict)  # by how much more each piece of compute of some ranks takes
    offsets_ns: int = 5_000_000_000
    drift_ppm: float = 30.0
    lost: float = 0.0
    late: dict[int, int] = field(default_factory=dict)  # from which step on some ranks are recorded
    told: bool = False  # payloads of NVTX ranges tell the communicators
    one_stream: bool = False  # all communicators run on one stream of each GPU
    one_name: bool = False  # all collectives run the same kernel

    def stream(self, kind: str) -> int:
        return _STREAMS["tp" if self.one_stream else kind]

    def name(self, kind: str) -> int:
        return 0 if self.one_name else _NAME_OF[kind]


@dataclass(frozen=True, slots=True)
class Meeting:
    """A collective: its communicator, when each rank began and ended it in true time, and in which step and layer."""

    group: tuple[int, ...]
    kind: str
    step: int
    layer: int
    start: dict[int, float]
    end: dict[int, float]

    @property
    def last(self) -> int:
        return max(self.start, key=self.start.__getitem__)


@dataclass(frozen=True, slots=True)
class Event:
    """What one rank recorded of a meeting."""

    meeting: int
    rank: int
    start: int
    end: int


@dataclass(slots=True)
class Run:
    """What happened, and what was recorded."""

    job: Job
    meetings: list[Meeting]
    events: list[list[Event]]
    clocks: list[tuple[float, float]]

    def local(self, rank: int, time: float) -> int:
        offset, drift = self.clocks[rank]
        return round((time - offset) * (1 + drift))

    @property
    def lanes(self) -> list[list[Lane]]:
        return [_lanes(self, rank) for rank in range(self.job.ranks)]

    def true_offset(self, rank: int, reference: int, local: int) -> float:
        offset, drift = self.clocks[rank]
        true = local / (1 + drift) + offset
        other, other_drift = self.clocks[reference]
        return (true - other) * (1 + other_drift) - local


def simulated(job: Job) -> Run:
    rng = Random(job.seed)
    clocks = [
        (rng.uniform(-1, 1) * job.offsets_ns, rng.uniform(-1, 1) * job.drift_ppm * 1e-6) for _ in range(job.ranks)
    ]
    meetings = _meetings(job, rng)
    run = Run(job, meetings, [[] for _ in range(job.ranks)], clocks)
    for number, meeting in enumerate(meetings):
        for rank in meeting.group:
            if rng.random() >= job.lost and meeting.step >= job.late.get(rank, 0):
                times = meeting.start[rank], meeting.end[rank]
                start, end = (run.local(rank, time + rng.uniform(-300, 300)) for time in times)
                run.events[rank].append(Event(number, rank, start, end))
    return run


def _meetings(job: Job, rng: Random) -> list[Meeting]:
    size = job.tensor_parallel
    tensor = [tuple(range(first, first + size)) for first in range(0, job.ranks, size)]
    data = [tuple(range(first, job.ranks, size)) for first in range(size)]
    plan = [("tp", layer, tensor) for layer in range(job.layers)] * (size > 1) + [("dp", 0, data)] * (size < job.ranks)
    plan += [("world", 0, [tuple(range(job.ranks))])] * job.meets_all
    now = [rng.uniform(0, 1e5) for _ in range(job.ranks)]
    return [
        _meeting(job, rng, now, (group, kind, step, layer))
        for step in range(job.steps)
        for kind, layer, groups in plan
        for group in groups
    ]


def _meeting(job: Job, rng: Random, now: list[float], what: tuple) -> Meeting:
    vary = {rank: 1 + rng.uniform(-job.jitter, job.jitter) for rank in what[0]}
    start = {rank: now[rank] + COMPUTE_NS * vary[rank] + job.slow.get(rank, 0) for rank in what[0]}
    done = max(start.values()) + job.transfer_ns * rng.uniform(1, 1.5)
    end = {rank: done + rng.uniform(0, ENDS_APART_NS) for rank in what[0]}
    for rank in what[0]:
        now[rank] = end[rank]
    return Meeting(*what, start, end)


def _lanes(run: Run, rank: int) -> list[Lane]:
    by_lane: dict[tuple, list[Event]] = {}
    for event in run.events[rank]:
        meeting = run.meetings[event.meeting]
        told = hash(meeting.group) if run.job.told else None
        by_lane.setdefault((run.job.stream(meeting.kind), told, run.job.name(meeting.kind)), []).append(event)
    lanes = []
    for (_, told, name), events in by_lane.items():
        meetings = [run.meetings[event.meeting] for event in events]
        layers = [meeting.layer if meeting.kind == "tp" else run.job.layers for meeting in meetings]
        columns = [[event.start for event in events], [event.end for event in events], layers]
        columns += [[meeting.step for meeting in meetings], [-1] * len(meetings), [-1] * len(meetings)]
        lanes.append(Lane(rank, rank, rank + 1, 0, told, name, *(np.array(column, np.int64) for column in columns)))
    return lanes


def reports(run: Run, folder: Path) -> list[Path]:
    folder.mkdir(exist_ok=True)
    return [report(folder / f"rank{rank}.sqlite", "\n".join(_lines(run, rank))) for rank in range(run.job.ranks)]


def _lines(run: Run, rank: int) -> list[str]:
    lines, number = [], 0
    by_step: dict[int, list[Event]] = {}
    for event in run.events[rank]:
        by_step.setdefault(run.meetings[event.meeting].step, []).append(event)
    for step, events in by_step.items():
        first, last = events[0].start - 9_000, events[-1].start + 9_000
        lines.append(f"range 1 {first} {last} ProfilerStep#{step}")
        lines.append(f'range 1 {first + 1} {last - 1} {{"Module": "net"}}')
        for event in events:
            number += 1
            meeting, at = run.meetings[event.meeting], event.start - 5_000
            path = f"net.layers.{meeting.layer}" if meeting.kind == "tp" else "net.sync"
            lines.append(f'range 1 {at - 1_000} {at + 2_000} {{"Module": "{path}"}}')
            lines.append(f"launch 1 {at} {at + 1_000} #{number} cudaLaunchKernel")
            stream, name = run.job.stream(meeting.kind), NAMES[run.job.name(meeting.kind)]
            lines.append(f"kernel+{stream} 1 {event.start} {event.end} #{number} {name}")
    return lines

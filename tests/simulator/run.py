"""Runs a plan: starts its processes, lets their threads take turns, and then loses what the plan says was lost."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count, product
from random import Random

from tests.nsight_tables import GRAPH_TRACE, generation
from tests.simulator import events, models
from tests.simulator.plan import Plan
from tests.simulator.script import Script
from tests.simulator.threads import Process, Thread

Row = events.Range | events.Launch | events.Work | events.NodeRecord | events.GraphRecord
HW_OF_NEGATIVE_IDS = 0xFE
STREAM_NUMBERS = (7, 13, 14, 20, 21)


@dataclass(frozen=True, slots=True)
class Run:
    """All that happened, lost or not."""

    plan: Plan
    processes: list[Process]
    work: list[events.Work]
    last_seen_ns: dict[events.ThreadId, int]  # when the recording of a thread was cut off; only of threads that were
    ranges: list[events.Range]
    launches: list[events.Launch]
    node_records: list[events.NodeRecord]
    graph_records: list[events.GraphRecord]
    marks: list[events.Mark]


def simulate(plan: Plan) -> Run:
    rng = Random(f"{plan.seed}")
    devices = events.Devices(rng)
    processes = [_process(plan, number, devices, rng) for number in range(plan.processes)]
    threads = _threads(plan, processes, rng)
    _take_turns(plan, threads, rng)
    last_seen = {thread.id: thread.last_seen_ns for thread, _ in threads if thread.last_seen_ns is not None}
    kinds = ("ranges", "launches", "nodes", "graphs", "marks")
    recorded = [[one for process in processes for one in getattr(process, f"recorded_{kind}")] for kind in kinds]
    run = Run(plan, processes, devices.done, last_seen, *recorded)
    if GRAPH_TRACE not in generation(plan.generation).tables:
        # Older schemas have no table for graphs traced as a whole: that time is in no file of theirs.
        lose_all(piece for piece in run.work if piece.kind == "graph")
    if plan.graph_traces and not plan.graph_replays:
        lose_all(run.node_records)
    delay_nodes(run)
    lose(run, rng)
    return run


def _process(plan: Plan, number: int, devices: events.Devices, rng: Random) -> Process:
    hw = HW_OF_NEGATIVE_IDS if plan.negative_ids else 0
    if plan.same_pid:
        main = events.ThreadId(hw ^ number, 4711, 4711)
    else:
        pid = 4711 + number * rng.choice((16, 70_001))
        main = events.ThreadId(hw, pid, pid)
    places = product(range(plan.devices), STREAM_NUMBERS[: plan.streams])
    streams = [events.Stream(main, device, 1, number) for device, number in places]
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
            thread = Thread(identity, process, rng, clock=plan.epoch_ns + rng.randrange(5_000))
            threads.append((thread, Script(thread, plan, own, sequence)))
    return threads


def _roots(rng: Random) -> list[str]:
    return rng.choice((["top"], ["LlamaForCausalLM"], ["top", "draft"]))


def _take_turns(plan: Plan, threads: list[tuple[Thread, Script]], rng: Random) -> None:
    turns = {thread: script.run() for thread, script in threads}
    while turns:
        thread = min(turns, key=lambda candidate: candidate.clock)
        if plan.faults.cut_off and rng.random() < 1 / (2 * plan.actions):
            thread.cut_off()
            del turns[thread]
        elif next(turns[thread], "done") == "done":
            del turns[thread]


def lose(run: Run, rng: Random) -> None:
    """Marks the rows that the file will not hold.

    A late start loses whatever began before a moment of the run, also what is still running then; the chances strike
    any other row, except a thread's last sign of life (it says when its open ranges were last seen) and the calls
    that begin and end captures (two of them lost would make one capture out of two; the profiler skips all or none).
    """
    ranges, launches, work, faults = run.ranges, run.launches, run.work, run.plan.faults
    if faults.late_start and ranges:
        moments = sorted(event.start_ns for event in [*ranges, *launches])
        began = rng.choice(moments[: len(moments) // 2 + 1])
        lose_all(event for event in [*ranges, *launches, *work] if event.start_ns < began)
        if not faults.capture_range:
            lose_all(record for record in [*run.node_records, *run.graph_records] if record.time_ns < began)
    if faults.skipped_capture_calls:
        captures = [launch.capture for launch in launches if launch.capture]
        lose_all(bound for capture in captures for bound in (capture.begin, capture.end) if bound)
    lose_all(one for one in ranges if not one.kept and rng.random() < faults.lost_ranges)
    lose_all(one for one in launches if not one.kept and rng.random() < faults.lost_launches)
    lose_all(one for one in run.node_records if rng.random() < faults.lost_nodes)
    spared = {piece for piece in work if piece.node and _lacks_launches(piece.node)}
    lose_all(one for one in work if one not in spared and rng.random() < faults.lost_work)
    misdated = [one for one in work if rng.random() < faults.early_work] if faults.early_work else []
    for piece in misdated:
        if piece.launch and not piece.replayed:
            duration, ahead = piece.end_ns - piece.start_ns, rng.choice((1, 40, 3_000, 5_000_000))
            piece.start_ns = piece.launch.start_ns - ahead
            piece.end_ns = piece.start_ns + duration
            piece.early = True


def delay_nodes(run: Run) -> None:
    """Moves records of captured nodes into the call that ends a graph capture (theirs or a later one) or after it."""
    records, faults = run.node_records, run.plan.faults
    of_capture = Counter(_capture_of(record) for record in records)
    written_at = _batches(records, faults.node_batch)
    for record in records:
        capture = _capture_of(record)
        if capture is None or faults.node_records == "in_time":
            continue
        last = written_at[capture]
        if last.end is None or faults.node_records == "never":
            record.lost = True
            continue
        number = min((record.node.id & 0xFFFF_FFFF) + 1, of_capture[last])
        # Nobody has seen which of the two it is, so both occur.
        inside = last.end.correlation % 2 == 0
        record.time_ns = (last.end.start_ns if inside else last.end.end_ns) + number
        record.late = True
    if faults.node_records == "never":
        lose_all(records)


def _batches(records: list[events.NodeRecord], size: int) -> dict[events.Capture, events.Capture]:
    of_thread: defaultdict[events.ThreadId, dict[events.Capture, None]] = defaultdict(dict)
    for record in records:
        capture = _capture_of(record)
        if capture is not None:
            of_thread[record.thread].setdefault(capture)
    found = {}
    for captures in map(list, of_thread.values()):
        for first in range(0, len(captures), size):
            batch = captures[first : first + size]
            found |= dict.fromkeys(batch, batch[-1])
    return found


def _capture_of(record: events.NodeRecord) -> events.Capture | None:
    launch = record.node.captured_by
    return launch.capture if launch else None


def lose_all(rows: Iterable[Row]) -> None:
    for row in rows:
        row.lost = True


def _lacks_launches(node: events.Node) -> bool:
    """Whether launches of the capture are lost.

    Without node records a file that has lost a launch and also the last node of every replay looks like one that has
    lost nothing: nobody can say which node is which launch's.
    """
    launch = node.root.captured_by
    capture = launch.capture if launch else None
    return capture is not None and any(added.lost for added in capture.launches)

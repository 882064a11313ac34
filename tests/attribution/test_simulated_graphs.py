"""Programs that capture and replay CUDA graphs: whose kernels these are, against what truly happened.

First the truth itself is held against a slow attribution that sees only the rows of the file; then tracekit is held
against the truth.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.parsed_programs import over_programs, parsed, piece, place, placed, same, true_piece
from tests.plain_reading import File, is_call, place_of
from tests.simulator import GENERATIONS, Faults, capturing, simulate, truth_of, write_report
from tests.simulator.strategies import FIRST_GRAPHS, capturing_plans

if TYPE_CHECKING:
    from pathlib import Path

    from tests.parsed_programs import Parsed
    from tests.plain_reading import FileRange
    from tests.simulator import Plan, TrueWork, Truth

ANY_PLAN = capturing_plans() | capturing_plans(faulty=True)
of_any_program = over_programs(ANY_PLAN, 80)
of_any_file = settings(
    max_examples=50,
    deadline=None,
    database=None,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)
ADDS_NODES = {"cudaLaunchKernel", "cuLaunchKernelEx", "cudaMemcpyAsync", "cudaMemsetAsync", "cudaMemcpyBatchAsync"}
THREAD = 0xFFFFFF


class Origin(NamedTuple):
    """What the records of a file say of a node; ``found`` is whether a launch lies around its root's record."""

    root: int
    found: bool
    call: FileRange | None = None
    module: str | None = None


class Lineages:
    """The slow, obvious attribution of nodes: from clone to original, to its launch, to the calls around that."""

    def __init__(self, file: File, dialect: str) -> None:
        self.file, self.dialect = file, dialect
        rows = [*file.rows("CUDA_GRAPH_NODE_EVENTS"), *file.rows("CUDA_GRAPH_EVENTS")]
        self.original, self.created = {}, {}
        for row in rows:
            if "graphNodeId" in row:
                key = row["globalTid"] & ~THREAD, row["graphNodeId"]
                if row["originalGraphNodeId"] is None:
                    self.created[key] = row
                else:
                    self.original[key] = row["originalGraphNodeId"]
        self.known: dict[tuple[int, int], Origin] = {}

    def of(self, process: int, node: int) -> Origin:
        if (process, node) not in self.known:
            self.known[process, node] = self.search(process, node)
        return self.known[process, node]

    def search(self, process: int, node: int) -> Origin:
        while (process, node) in self.original:
            node = self.original[process, node]
        row = self.created.get((process, node))
        around = self.file.api_calls(row["globalTid"], row["start"], row["end"]) if row else []
        launches = [one for one in around if self.file.name(one) in ADDS_NODES]
        if not launches:
            return Origin(node, found=False)
        launch = max(launches, key=lambda one: one["start"])
        ranges = self.file.around(launch["globalTid"], launch["start"], launch["end"])
        calls = [one for one in ranges if is_call(one)]
        if not calls:
            return Origin(node, found=True)
        return Origin(node, True, calls[-1], place_of(calls, self.dialect))


def read(plan: Plan, folder: Path) -> tuple[File, Truth]:
    run = simulate(plan)
    path = folder / "program.sqlite"
    path.unlink(missing_ok=True)
    return File(write_report(run, path)), truth_of(run)


@of_any_file
@seed(1)
@given(plan=ANY_PLAN)
def test_the_truth_of_replays_is_what_the_records_of_the_file_say(tmp_path_factory, plan) -> None:
    file, truth = read(plan, tmp_path_factory.getbasetemp())
    lineages = Lineages(file, plan.dialect)
    origins = defaultdict(list)
    for row in file.work():
        if row.get("graphNodeId") is not None:
            pid = row["globalPid"] >> 24 & THREAD
            key = row["start"], row["end"], pid, row["correlationId"], row["graphNodeId"]
            origins[key].append(lineages.of(row["globalPid"], row["graphNodeId"]))
    replayed = [work for work in truth.work if work.node is not None]
    assert len(replayed) == sum(map(len, origins.values()))
    for work in replayed:
        key = work.start_ns, work.end_ns, work.pid, work.correlation, work.node
        assert any(agrees(work, origin) for origin in origins[key]), (work, origins[key])


def agrees(work: TrueWork, origin: Origin) -> bool:
    """Whether truth and file are of one mind, also on whether the file holds the answer."""
    if not origin.found:
        return "graph_unmapped" in work.causes
    if "graph_unmapped" in work.causes or origin.root != work.original_node:
        return False
    if origin.call is None:
        return work.module is None and work.causes == {"outside_modules"}
    call = work.call and (work.call.start_ns, work.call.end_ns, work.call.text, work.call.tid)
    thread = origin.call.thread & THREAD
    return (work.module, call) == (origin.module, (*origin.call[:3], thread)) and not work.causes


@of_any_file
@seed(2)
@given(plan=ANY_PLAN)
def test_the_phase_of_calls_is_what_the_windows_of_the_file_say(tmp_path_factory, plan) -> None:
    file, truth = read(plan, tmp_path_factory.getbasetemp())
    windows, began = defaultdict(list), {}
    for row in sorted(file.launches.values(), key=lambda row: row["start"]):
        thread = row["globalTid"] >> 24 & THREAD, row["globalTid"] & THREAD
        if file.name(row) == "cudaStreamBeginCapture":
            began[row["globalTid"]] = row["start"]
        elif file.name(row) == "cudaStreamEndCapture" and row["globalTid"] in began:
            windows[thread].append((began.pop(row["globalTid"]), row["end"]))
    for call in truth.calls:
        _, _, start, end, _ = call.key
        inside = any(a < start and end < b for a, b in windows[call.key[:2]])
        if plan.same_pid and inside:
            continue
        assert ("capture" if inside else "forward") in call.phases
        assert not inside or call.phases == {"capture"}


def pieces(it: Parsed) -> dict[tuple, list[TrueWork]]:
    """The truth by what tells one piece of work from the others."""
    found = defaultdict(list)
    for work in it.truth.work:
        found[*true_piece(work), work.node].append(work)
    return found


def rows_with_truth(it: Parsed) -> list[tuple[dict, list[TrueWork]]]:
    truth = pieces(it)
    return [(row, truth[*piece(row), row["graph_node_id"]]) for row in it.tables["kernels"]]


@of_any_program
def test_every_piece_of_work_is_there_once_with_its_node(it) -> None:
    same(
        ((*piece(row), row["graph_node_id"]) for row in it.tables["kernels"]),
        ((*true_piece(work), work.node) for work in it.truth.work),
    )


def wrong(it: Parsed) -> list[dict]:
    """Kernels whose module or call is none that was open when they were launched or captured."""
    calls = it.keys("calls", "call_id")
    return [
        row
        for row, truth in rows_with_truth(it)
        if row["module"] is not None
        and (row["module"], calls[row["call_id"]]) not in {(one.module, placed(one.call)) for one in truth}
    ]


def missing(it: Parsed) -> list[dict]:
    """Kernels without a module whose module the file holds."""
    return [
        row
        for row, truth in rows_with_truth(it)
        if row["module"] is None and not any(one.missing_allowed for one in truth)
    ]


def wrongly_explained(it: Parsed) -> list[dict]:
    """Kernels without a module for another cause than they say; what no launch ever claimed may say any."""
    return [
        row
        for row, truth in rows_with_truth(it)
        if row["module"] is None
        and row["correlation_id"] is not None
        and row["cause"] not in {cause for one in truth for cause in one.causes}
    ]


@of_any_program
def test_no_kernel_has_a_module_that_was_not_open_when_it_was_launched_or_captured(it) -> None:
    assert wrong(it) == []


@of_any_program
def test_no_kernel_lacks_its_module_where_the_file_holds_it(it) -> None:
    assert missing(it) == []


@of_any_program
def test_the_cause_is_the_right_one_where_the_file_does_not_hold_the_module(it) -> None:
    assert wrongly_explained(it) == []


@of_any_program
def test_the_method_says_how_the_module_is_known(it) -> None:
    for row, truth in rows_with_truth(it):
        assert (row["method"] is None) == (row["module"] is None) == (row["cause"] is not None)
        if row["method"] is not None:
            assert row["method"] in {method for work in truth for method in work.methods}


@of_any_program
def test_launch_and_step_of_replayed_work_are_those_of_the_replay(it) -> None:
    """A thread that names no steps may work for one of its process, or for none."""
    steps = it.keys("steps", "step_id")
    naming = set() if it.plan.same_pid else {step.key[:2] for step in it.truth.steps}
    for row, truth in rows_with_truth(it):
        launch = row["tid"], row["launch_start_ns"], row["launch_end_ns"]
        right = [work for work in truth if launch == (work.tid, work.launch_start_ns, work.launch_end_ns)]
        assert right
        if (row["pid"], row["tid"]) in naming:
            assert steps[row["step_id"]] in [placed(work.step) for work in right]


@of_any_program
def test_a_call_made_inside_a_graph_capture_is_of_that_phase(it) -> None:
    phases = defaultdict(set)
    for call in it.truth.calls:
        phases[placed(call.key)] |= call.phases
    same(map(place, it.tables["calls"]), (placed(call.key) for call in it.truth.calls))
    assert [row for row in it.tables["calls"] if row["phase"] not in phases[place(row)]] == []


@of_any_program
def test_times_of_calls_and_modules_are_those_of_their_kernels(it) -> None:
    own, of_module = defaultdict(list), defaultdict(int)
    for row in it.tables["kernels"]:
        own[row["call_id"]].append(row["dur_ns"])
        of_module[row["module"]] += row["dur_ns"]
    for row in it.tables["calls"]:
        mine = own[row["call_id"]]
        assert (row["gpu_self_time_ns"], row["kernel_self_count"]) == (sum(mine), len(mine))
        of_module[row["module"]] -= row["gpu_self_time_ns"]
    assert not any(left for module, left in of_module.items() if module is not None)
    for row in it.tables["calls"]:
        below = [one for one in it.tables["calls"] if one["parent_call_id"] == row["call_id"]]
        total = row["gpu_self_time_ns"] + sum(one["gpu_time_ns"] for one in below)
        assert row["gpu_time_ns"] == total


VARIANTS = {
    **{f"schema {version}": {"generation": version} for version in GENERATIONS},
    **{f"graphs from {number}": {"first_graph": number} for number in FIRST_GRAPHS},
    "negative times": {"epoch_ns": -60_000_000},
    "four threads": {"threads": 4, "processes": 1},
    "late nodes": {"faults": Faults(node_records="late")},
    "late nodes of 2023": {"faults": Faults(node_records="late"), "generation": "3.7.2"},
    "late nodes, lost launches": {"faults": Faults(node_records="late", lost_launches=0.1)},
    "late nodes in twos": {"faults": Faults(node_records="late", node_batch=2)},
    "late nodes of all captures": {"faults": Faults(node_records="late", node_batch=99)},
    "late nodes in twos, some lost": {"faults": Faults(node_records="late", node_batch=2, lost_nodes=0.2)},
    "late nodes in threes, lost launches": {"faults": Faults(node_records="late", node_batch=3, lost_launches=0.1)},
    "late nodes, no windows": {"faults": Faults(node_records="late", skipped_capture_calls=True)},
    "no nodes": {"faults": Faults(node_records="never")},
    "no nodes in 2023": {"faults": Faults(node_records="never"), "generation": "3.7.2"},
    "no nodes, lost work": {"faults": Faults(node_records="never", lost_work=0.2)},
    "captured before": {"faults": Faults(captured_before=True)},
    "captured before, no nodes": {"faults": Faults(captured_before=True, node_records="never")},
    "captured before, late nodes": {"faults": Faults(captured_before=True, node_records="late")},
    "lost nodes": {"faults": Faults(lost_nodes=0.3)},
    "lost launches": {"faults": Faults(lost_launches=0.2)},
    "lost ranges": {"faults": Faults(lost_ranges=0.3)},
    "late start": {"faults": Faults(late_start=True)},
    "late start, all nodes": {"faults": Faults(late_start=True, capture_range=True)},
    "cut off": {"faults": Faults(cut_off=True)},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_in_a_program_with_everything_nothing_is_wrong_and_nothing_missing(variant) -> None:
    it = parsed(capturing(4, actions=25, **VARIANTS[variant]))
    assert any(work.node is not None for work in it.truth.work)
    assert (wrong(it), missing(it), wrongly_explained(it)) == ([], [], [])


@pytest.mark.parametrize("number", range(4))
def test_all_work_of_recorded_graph_captures_is_attributed_by_its_nodes(number) -> None:
    it = parsed(capturing(number, actions=30, orphans=False))
    by_node = [row for row, truth in rows_with_truth(it) if any(one.methods == {"graph_node"} for one in truth)]
    assert by_node
    assert {row["method"] for row in by_node} == {"graph_node"}


def test_eager_and_captured_pieces_of_one_forward_are_in_one_table() -> None:
    it = parsed(capturing(5, actions=30))
    methods = [
        {
            row["method"]
            for row in it.tables["kernels"]
            if (row["pid"], row["tid"]) == (call["pid"], call["tid"])
            and call["start_ns"] <= row["launch_start_ns"] <= call["end_ns"]
        }
        for call in it.tables["calls"]
        if call["parent_call_id"] is None and call["step_id"] is not None
    ]
    assert any({"range", "graph_node"} <= found for found in methods)


WHOLE = {"graph_traces": True, "graph_replays": False}


def rows_of_whole_graphs(it: Parsed) -> list[tuple[dict, list[TrueWork]]]:
    return [(row, truth) for row, truth in rows_with_truth(it) if row["kind"] == "graph"]


@pytest.mark.parametrize("number", range(6))
def test_graphs_traced_as_a_whole_belong_to_the_call_that_holds_their_graph_capture(number) -> None:
    it = parsed(capturing(number, actions=30, graph_updates=False, orphans=False, **WHOLE))
    rows = rows_of_whole_graphs(it)
    assert wrong(it) == []
    assert {row["method"] for row, truth in rows if any(one.module for one in truth)} == {"graph_capture"}


@pytest.mark.parametrize(
    "faults",
    [
        Faults(),
        Faults(lost_launches=0.1),
        Faults(lost_launches=0.4),
        Faults(lost_ranges=0.3),
        Faults(lost_work=0.2),
        Faults(captured_before=True),
        Faults(skipped_capture_calls=True),
        Faults(late_start=True),
        Faults(late_start=True, capture_range=True),
        Faults(cut_off=True),
    ],
)
@pytest.mark.parametrize("threads", [1, 3])
def test_no_graph_traced_as_a_whole_belongs_to_a_call_that_does_not_hold_it(threads, faults) -> None:
    it = parsed(capturing(threads, actions=25, threads=threads, graph_captures=6, faults=faults, **WHOLE))
    assert rows_of_whole_graphs(it)
    assert (wrong(it), wrongly_explained(it)) == ([], [])


@pytest.mark.parametrize("version", ["2020.3", "2.9.1", "3.7.2"])
def test_without_any_record_of_graph_captures_nothing_is_guessed_of_a_replay(version) -> None:
    faults = Faults(node_records="never", skipped_capture_calls=True)
    it = parsed(capturing(2, actions=30, generation=version, faults=faults))
    rows = [row for row in it.tables["kernels"] if row["graph_node_id"] is not None]
    assert rows
    assert {(row["module"], row["cause"]) for row in rows} == {(None, "graph_unmapped")}


ONE_GRAPH = {
    "graph_captures": 2,
    "graph_extras": False,
    "graph_clones": False,
    "piecewise": False,
    "threads": 1,
}
"""Programs simple enough for an order of launches to tell something without any record of a graph."""


@pytest.mark.parametrize("version", GENERATIONS)
@pytest.mark.parametrize("number", range(12))
def test_without_records_a_graph_from_before_is_not_taken_for_its_graph_capture_repeated(version, number) -> None:
    faults = Faults(node_records="never", captured_before=True)
    it = parsed(capturing(number, actions=6, generation=version, faults=faults, graph_replays=False, **ONE_GRAPH))
    assert any(work.node is not None for work in it.truth.work)
    assert (wrong(it), missing(it), wrongly_explained(it)) == ([], [], [])


@pytest.mark.parametrize("when", ["late", "never"])
@pytest.mark.parametrize("number", range(6))
def test_ids_that_do_not_rise_as_nodes_were_captured_mislead_nobody(number, when) -> None:
    """On one stream, where replays run nodes as they were captured; descent knows all the same."""
    plan = capturing(
        number,
        actions=10,
        generation="3.7.2",
        crossed_nodes=True,
        streams=1,
        devices=1,
        graph_replays=False,
        faults=Faults(node_records=when),
        **ONE_GRAPH,
    )
    it = parsed(plan)
    assert any(work.node is not None for work in it.truth.work)
    assert (wrong(it), missing(it), wrongly_explained(it)) == ([], [], [])
    recorded = parsed(replace(plan, faults=Faults()))
    assert (wrong(recorded), missing(recorded)) == ([], [])


@pytest.mark.parametrize("batch", [1, 2, 3, 99])
@pytest.mark.parametrize("number", range(3))
def test_late_nodes_of_any_batch_are_told_apart_where_nothing_is_lost(number, batch) -> None:
    """Ids carry the graph's number; launches that become several nodes have no order that is known."""
    faults = Faults(node_records="late", node_batch=batch)
    it = parsed(
        capturing(
            number,
            actions=12,
            generation="3.7.2",
            faults=faults,
            orphans=False,
            graph_extras=False,
            graph_replays=False,
            graph_captures=6,
        )
    )
    rows = [row for row, _ in rows_with_truth(it) if row["graph_node_id"] is not None]
    assert rows
    assert wrong(it) == []
    assert {row["cause"] for row in rows} <= {None, "outside_modules"}


def test_without_records_order_tells_where_the_program_was_recorded_from_its_start() -> None:
    methods = {
        row["method"]
        for number in range(12)
        for row in parsed(
            capturing(
                number,
                actions=6,
                faults=Faults(node_records="never"),
                graph_replays=False,
                **ONE_GRAPH,
            )
        ).tables["kernels"]
    }
    assert "graph_order" in methods

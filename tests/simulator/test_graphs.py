"""The simulator's captures and replays: its files hold what NVIDIA's do, its programs what real ones do.

The facts are those of ``nsight-sqlite.md``, B6, and of ``graph_mode_v2025.5``.
"""

from __future__ import annotations

import subprocess
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, seed, settings

from tests.nsys import nsys
from tests.plain_reading import File
from tests.simulator import (
    GENERATIONS,
    Faults,
    Oddities,
    capturing,
    simulate,
    truth_of,
    write_report,
)
from tests.simulator.strategies import capturing_plans

if TYPE_CHECKING:
    from pathlib import Path

    from tests.simulator import Plan

FEW = settings(max_examples=12, deadline=None, database=None, suppress_health_check=list(HealthCheck))
ADDS_NODES = {"cudaLaunchKernel", "cuLaunchKernelEx", "cudaMemcpyAsync", "cudaMemsetAsync", "cudaMemcpyBatchAsync"}
MAKES_CLONES = {"cudaGraphClone", "cudaGraphInstantiate"}


def file_of(plan: Plan, folder: Path) -> File:
    path = folder / f"{abs(hash(plan))}.sqlite"
    path.unlink(missing_ok=True)
    return File(write_report(simulate(plan), path))


def nodes_of(file: File) -> list[dict]:
    tables = (file.rows("CUDA_GRAPH_NODE_EVENTS"), file.rows("CUDA_GRAPH_EVENTS"))
    return [row for rows in tables for row in rows if "graphNodeId" in row]


def graphs_of(file: File) -> list[dict]:
    return [row for row in file.rows("CUDA_GRAPH_EVENTS") if "graphId" in row]


def process(row: dict) -> int:
    return row["globalTid"] & ~0xFFFFFF


def graph_of(node: int) -> int:
    return node >> 32 & 0xFFFF_FFFF


def inside_of(file: File, row: dict) -> set[str]:
    return {file.name(one) for one in file.api_calls(row["globalTid"], row["start"], row["end"])}


def records_by_node(file: File) -> dict[tuple[int, int], list[dict]]:
    found = defaultdict(list)
    for row in sorted(nodes_of(file), key=lambda row: row["start"]):
        found[process(row), row["graphNodeId"]].append(row)
    return found


@FEW
@seed(1)
@given(plan=capturing_plans())
def test_a_node_has_one_record_and_a_clone_two_of_which_the_second_names_its_original(tmp_path_factory, plan) -> None:
    file = file_of(plan, tmp_path_factory.getbasetemp())
    records = records_by_node(file)
    for (owner, _), rows in records.items():
        originals = [row["originalGraphNodeId"] for row in rows]
        assert originals[0] is None
        assert len(originals) <= 2
        assert all((owner, original) in records for original in originals[1:])


@FEW
@seed(2)
@given(plan=capturing_plans().filter(lambda plan: not plan.orphans))
def test_a_node_is_recorded_inside_the_api_call_that_made_it(tmp_path_factory, plan) -> None:
    file = file_of(plan, tmp_path_factory.getbasetemp())
    clones = {key for key, rows in records_by_node(file).items() if len(rows) > 1}
    originals = {
        (process(row), row["originalGraphNodeId"]) for row in nodes_of(file) if row["originalGraphNodeId"] is not None
    }
    for row in nodes_of(file):
        key = process(row), row["graphNodeId"]
        around = inside_of(file, row)
        assert len(around) == 1
        if key in clones:
            assert around <= MAKES_CLONES
        elif key in originals:
            assert around <= ADDS_NODES
        else:
            assert around <= {"cudaGraphInstantiate", *ADDS_NODES}


@FEW
@seed(3)
@given(plan=capturing_plans())
def test_what_is_launched_inside_a_capture_runs_nothing(tmp_path_factory, plan) -> None:
    file = file_of(plan, tmp_path_factory.getbasetemp())
    run = {(row["globalPid"], row["correlationId"]) for row in file.work()}
    capturing_threads = {}
    for row in sorted(file.launches.values(), key=lambda row: row["start"]):
        thread, name = row["globalTid"], file.name(row)
        if name == "cudaStreamBeginCapture":
            assert thread not in capturing_threads
            capturing_threads[thread] = row
        elif name == "cudaStreamEndCapture":
            del capturing_threads[thread]
        elif thread in capturing_threads:
            assert (process(row), row["correlationId"]) not in run
            assert name != "cudaGraphLaunch"
    assert not capturing_threads


@FEW
@seed(4)
@given(plan=capturing_plans())
def test_a_replay_runs_every_node_of_one_executable_graph_once(tmp_path_factory, plan) -> None:
    file = file_of(plan, tmp_path_factory.getbasetemp())
    replays = defaultdict(list)
    for row in file.work():
        if row.get("graphNodeId") is not None:
            replays[row["globalPid"], row["correlationId"]].append(row)
    sizes = defaultdict(set)
    executables = {(process(row), row["graphExecId"]) for row in graphs_of(file) if row["graphExecId"]}
    for key, rows in replays.items():
        nodes = [row["graphNodeId"] for row in rows]
        graph = graph_of(nodes[0])
        assert file.name(file.launches[key]) == "cudaGraphLaunch"
        assert {graph_of(node) for node in nodes} == {graph}
        assert sorted(node & 0xFFFF_FFFF for node in nodes) == list(range(len(nodes)))
        assert {row["graphId"] for row in rows if "graphId" in row} <= {graph}
        assert all(row["start"] >= file.launches[key]["start"] for row in rows)
        sizes[key[0], graph].add(len(nodes))
        captured = [one for one in records_by_node(file) if graph_of(one[1]) == graph]
        if captured and executables:
            assert (key[0], graph) in executables
    assert all(len(found) == 1 for found in sizes.values())


@FEW
@seed(5)
@given(plan=capturing_plans())
def test_graphs_are_recorded_inside_the_calls_that_make_them(tmp_path_factory, plan) -> None:
    file = file_of(plan, tmp_path_factory.getbasetemp())
    made_in = {
        95: {"cudaStreamBeginCapture", "cudaGraphInstantiate"},
        94: {"cudaGraphInstantiate"},
        96: {"cudaGraphClone"},
    }
    for row in graphs_of(file):
        assert inside_of(file, row) <= made_in[row["eventClass"]]
        assert inside_of(file, row)
    numbers = [(process(row), row["graphId"]) for row in graphs_of(file) if row["eventClass"] != 94]
    assert len(set(numbers)) == len(numbers)


def test_one_table_name_means_nodes_up_to_2023_and_graphs_from_2024_on(tmp_path) -> None:
    for version in GENERATIONS:
        file = file_of(capturing(1, generation=version), tmp_path)
        new = version in {"3.16.1", "3.25.0"}
        assert ("graphNodeId" in file.rows("CUDA_GRAPH_EVENTS")[0]) == (not new)
        assert bool(file.rows("CUDA_GRAPH_NODE_EVENTS")) == new


def test_a_program_that_captures_has_everything_in_it() -> None:
    runs = [simulate(capturing(number)) for number in range(12)]
    work = [piece for run in runs for piece in run.work if piece.node]
    roots = [piece.node.root for piece in work]
    launches = [root.captured_by for root in roots if root.captured_by]
    names = Counter(launch.name.partition("_v")[0] for run in runs for launch in run.launches)
    assert {"cudaGraphClone", "cudaGraphExecUpdate", "cudaStreamIsCapturing"} <= set(names)
    assert {piece.kind for piece in work} == {"kernel", "memset", "memcpy"}
    assert any(piece.node.original and piece.node.original.original for piece in work)
    assert any(piece.node.original is None and piece.node.records for piece in work)
    assert any(piece.node.original is None and not piece.node.records for piece in work)
    pairs = [(piece.node.root.captured_by, piece.launch) for piece in work]
    assert any(first and first.thread != second.thread for first, second in pairs)
    assert any(first and second.inside and second.inside.call for first, second in pairs)
    assert any(launch.inside is None for launch in launches)
    inside = [launch.inside for launch in launches if launch.inside]
    assert any(one.call and one.capture for one in inside)
    assert any(one.call and not one.capture for one in inside)
    assert any(one.call is None and one.parent for one in inside)


def test_captures_happen_at_once_early_often_and_in_shared_and_recursive_modules() -> None:
    runs = [simulate(capturing(number, epoch_ns=-60_000_000)) for number in range(12)]
    captures = [{launch.capture for launch in run.launches if launch.capture and launch.capture.end} for run in runs]
    assert any(
        a.begin.thread != b.begin.thread and a.begin.start_ns < b.begin.start_ns < a.end.start_ns
        for found in captures
        for a in found
        for b in found
    )
    assert all(one.begin.start_ns < 0 for found in captures for one in found)
    truths = [truth_of(run) for run in runs]
    captured = [call for truth in truths for call in truth.calls if call.phases == {"capture"}]
    assert any(call.alias_of for call in captured)
    assert any(".cell0.cell0" in call.path for call in captured)
    executables = [one for run in runs for process in run.processes for one in process.executables]
    made_of = Counter(id(one.source) for one in executables)
    assert max(made_of.values()) > 1
    shapes = Counter(
        (id(process), graph.recipe, tuple(graph.topology))
        for run in runs
        for process in run.processes
        for graph in process.captured
    )
    assert max(shapes.values()) > 1
    replayed = {piece.node.root.captured_by for run in runs for piece in run.work if piece.node}
    added = [launch for found in captures for one in found for launch in one.launches]
    assert any(launch not in replayed for launch in added)


def test_ids_of_nodes_collide_between_processes_and_may_be_large_or_negative() -> None:
    nodes = defaultdict(set)
    for row in truth_of(simulate(capturing(3))).work:
        nodes[row.pid].add(row.node)
    first, second = nodes.values()
    assert first & second - {None}
    large = truth_of(simulate(capturing(3, first_graph=0x7FFF_FFFA)))
    ids = {row.node for row in large.work if row.node is not None}
    assert max(ids) > 1 << 62
    assert min(ids) < 0


@pytest.mark.parametrize("when", ["late", "never"])
def test_without_node_records_in_time_no_node_is_inside_a_launch(tmp_path, when) -> None:
    plan = capturing(2, faults=Faults(node_records=when), orphans=False)
    file = file_of(plan, tmp_path)
    assert bool(nodes_of(file)) == (when == "late")
    assert not [row for row in nodes_of(file) if inside_of(file, row) & ADDS_NODES]
    work = [one for one in truth_of(simulate(plan)).work if one.node is not None]
    assert {"graph_unmapped"} <= {cause for one in work for cause in one.causes}
    assert all(one.missing_allowed for one in work)


def test_recording_may_begin_after_the_captures_that_it_tells_of(tmp_path) -> None:
    kept = 0
    for number in range(6):
        faults = Faults(late_start=True, capture_range=True)
        file = file_of(capturing(number, faults=faults), tmp_path)
        began = min(row["start"] for row in file.launches.values())
        kept += sum(row["start"] < began for row in nodes_of(file))
    assert kept


def test_one_plan_with_captures_gives_one_program() -> None:
    first, second = (truth_of(simulate(capturing(5))) for _ in range(2))
    assert first == second


def test_what_an_updated_executable_runs_keeps_the_lineage_of_its_first_capture() -> None:
    runs = [simulate(capturing(number, orphans=False)) for number in range(12)]
    executables = [one for run in runs for process in run.processes for one in process.executables]
    updated = [one for one in executables if one.updates]
    replayed = {piece.node for run in runs for piece in run.work if piece.node}
    later = 0
    for executable in updated:
        first = {node.root.captured_by.capture for node in executable.nodes if node.original}
        again = {graph.capture for graph in executable.updates}
        assert len(first) == 1
        assert not first & again
        later += bool(replayed & set(executable.nodes))
        cloned = {said.original for node in executable.nodes for said in node.records}
        assert not cloned & {node for graph in executable.updates for node in graph.nodes}
    assert later


@pytest.mark.nsys
@pytest.mark.parametrize("version", ["3.7.2", "3.25.0"])
def test_nsys_projects_replays_of_captured_graphs_as_the_truth_does(tmp_path, version) -> None:
    plan = capturing(3, generation=version, oddities=Oddities(shuffled=True))
    run = simulate(plan)
    report = write_report(run, tmp_path / "report.sqlite")
    stats = [nsys(), "stats", "-q", "--force-export=false", "--report", "nvtxgpuproj", "--format", "csv"]
    said = subprocess.run(
        [*stats, "--output", "-", report], check=True, capture_output=True, text=True, timeout=240
    ).stdout
    # Names hold quotes that nsys does not double, so the columns are counted from the end.
    rows = [line.rsplit(",", 13)[1:9] for line in said.splitlines()[1:] if line.count(",") >= 13]
    theirs = Counter(tuple(int(row[column]) for column in (2, 3, 0, 1, 5, 6, 7)) for row in rows if row[2])
    ours = Counter(
        (
            one.key.start_ns,
            one.key.end_ns - one.key.start_ns,
            one.gpu_start_ns,
            one.gpu_end_ns - one.gpu_start_ns,
            one.key.pid,
            one.key.tid,
            one.gpu_op_count,
        )
        for one in truth_of(run).ranges
        if one.gpu_op_count
    )
    assert ours
    assert theirs == ours

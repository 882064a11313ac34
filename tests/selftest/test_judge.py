"""Without a GPU nothing fails, and every rule fails where what it compares is broken on purpose.

Reports of one run are broken, then judged again. What only a GPU can show is judged on reports written as lines.
"""

import gzip
import json
import os
import shutil
from pathlib import Path

import pytest

from tests.selftest.reports import (
    ALL,
    EAGER,
    H100,
    H100_WITHOUT_NSYS,
    IN_WINDOW,
    NODES,
    OPERATORS,
    RANGES,
    RENAMED,
    REPLAYS,
    SHORTENED,
    change_truth,
    edit,
    evidence,
    look_at_data,
    problems,
    proved,
    simulated,
)
from tracekit.selftest import PROGRAMS
from tracekit.selftest.judge import Case, profiled_work

pytestmark = pytest.mark.torch
#: As if one of several processes had not been recorded.
NO_RANGES_OF_ONE = "DELETE FROM NVTX_EVENTS WHERE globalTid >> 24 = (SELECT min(globalTid) >> 24 FROM NVTX_EVENTS)"
#: What does not run without a GPU.
NEEDS_A_GPU = {"graph_in_window", "graph_in_warmup"}


@pytest.fixture(scope="module")
def proof(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("proof") / "out"
    names = [program.name for program in PROGRAMS if program.name != "markers"]
    outcomes = proved(place, names, TRACEKIT_NSYS="/absent/nsys")
    for name, one in outcomes.items():
        assert one["verdict"] == ("missing" if name in NEEDS_A_GPU | {"pieces"} else "passed"), one
        assert bool(one["files"]) == (name not in NEEDS_A_GPU)
        assert one["why"].startswith("no GPU that torch can use") == (one["verdict"] == "missing")
        assert all((place / file).is_file() for file in one["files"])
    return place


@pytest.fixture
def copied(proof: Path, tmp_path: Path):
    return lambda name: shutil.copytree(proof / name, tmp_path / name)


def test_small_reports_for_data_can_be_parsed_and_tell_nothing_of_the_machine(proof: Path) -> None:
    look_at_data(proof, "cpu_eager.sqlite")


@pytest.mark.parametrize(
    ("name", "statement", "values", "said"),
    [
        ("eager", SHORTENED, ["aten::relu"], "Chain.layers.1.act has"),
        ("eager", RANGES, ['%"Chain.again"%', 2], "kernels, expected 60"),
        ("backward", RENAMED, ["layers.0.up", "layers.0.out"], "is of Chain.layers.0.out, expected Chain.layers.0.up"),
        ("backward", RANGES, ["%[12, 14]%", 1_000], "Chain.layers.1.up has 0 products"),
        ("backward", RANGES, ['%"Chain.layers.0.up"%backward%', 1], "layers.0.up has 2 backward calls, expected 3"),
        ("processes", OPERATORS, ["aten::addmm", 1], "not as their calls"),
        ("processes", NO_RANGES_OF_ONE, [], "0 calls of the model are in the report"),
        ("script", RANGES, ['{"Module": "Chain%', 22], "2 calls of the model are in the report, expected 3"),
        ("compiled", RANGES, ["%KernelMap%", 1_000], "no work was attributed by a kernel map"),
        ("pieces", RANGES, ['%"How": "replayed"%', 1], "replayed has 8 runs of pieces, expected 9"),
    ],
)
def test_a_rule_fails_where_the_report_is_broken(name: str, statement: str, values: list, said: str, copied) -> None:
    folder = copied(name)
    edit(folder, statement, *values)
    assert said in problems(name, folder)


def test_pieces_fails_where_graphs_or_results_are_not_as_they_follow(copied) -> None:
    folder = copied("pieces")
    counters = Case(ALL["pieces"], folder, H100).truth["counters"]
    change_truth(folder, counters={**counters, "graphs_captured": 2}, right=False)
    found = problems("pieces", folder)
    assert "computed something else" in found
    assert "graphs_captured has 2 counted, expected 3" in found


def test_pieces_fails_where_replayed_kernels_are_not_those_of_an_eager_run(copied) -> None:
    """Without a GPU the operators run again: judged as if on a GPU, they are the replayed kernels."""
    folder = copied("pieces")
    assert not problems("pieces", folder, H100)
    edit(folder, OPERATORS, "aten::addmm", 4)
    assert "Chain.layers.1.down: aten::addmm has 0 kernels in replay" in problems("pieces", folder, H100)


def test_a_graph_passes_where_replays_have_the_modules_of_an_eager_step_and_fails_elsewhere(tmp_path: Path) -> None:
    assert not problems("graph_in_window", simulated(tmp_path / "right", IN_WINDOW), H100)
    assert not problems("graph_in_warmup", simulated(tmp_path / "warmup", IN_WINDOW), H100)
    wrong = problems("graph_in_window", simulated(tmp_path / "wrong", IN_WINDOW, right=False), H100)
    assert "computed something else" in wrong
    swapped = IN_WINDOW.replace("112 112 1\n", "112 112 2\n").replace("113 113 2\n", "113 113 1\n")
    found = problems("graph_in_window", simulated(tmp_path / "swapped", swapped), H100)
    assert "Chain.down: gemm_up has 1 kernels in replay" in found
    found = problems("graph_in_window", simulated(tmp_path / "unknown", IN_WINDOW.replace(NODES, "")), H100)
    assert "Chain.up: gemm_up has 0 kernels in replay" in found
    lost = IN_WINDOW.replace('range   1 900 990 {"Step": 5, "Name": "replay"}', "")
    assert "replay has 1 steps, expected 2" in problems("graph_in_window", simulated(tmp_path / "lost", lost), H100)


def test_replays_of_which_no_nodes_are_known_are_missing_and_fail_without_work(tmp_path: Path) -> None:
    unknown = (EAGER + REPLAYS).replace("!11", "").replace("!12", "")
    found = evidence("graph_in_window", simulated(tmp_path / "unknown", unknown), H100_WITHOUT_NSYS)
    assert found.problems == []
    assert (
        found.unproved == "the modules of replayed work: with torch 2.11.0, none says which node of a CUDA graph it is"
    )
    none = "".join(line for line in unknown.splitlines(keepends=True) if "#8 gemm" not in line)
    none_at_all = problems("graph_in_window", simulated(tmp_path / "none", none), H100)
    assert "Chain.up: gemm_up has 0 kernels in replay" in none_at_all


def test_a_graph_captured_before_the_recording_has_no_modules_and_fails_if_it_has(tmp_path: Path) -> None:
    assert not problems("graph_in_warmup", simulated(tmp_path / "before", EAGER + REPLAYS), H100_WITHOUT_NSYS)
    recorded = simulated(tmp_path / "recorded", IN_WINDOW)
    assert "Chain.up: gemm_up is of a graph without known nodes" in problems(
        "graph_in_warmup", recorded, H100_WITHOUT_NSYS
    )
    assert "no replayed work" in problems("graph_in_warmup", simulated(tmp_path / "none", EAGER), H100_WITHOUT_NSYS)


def test_work_of_a_gpu_belongs_to_the_range_around_its_launch(tmp_path: Path) -> None:
    event = {"ph": "X", "pid": 1, "tid": 1}
    events = [
        {**event, "cat": "user_annotation", "name": "truth:Chain", "ts": 0, "dur": 50},
        {**event, "cat": "user_annotation", "name": "truth:Chain.up", "ts": 10.5, "dur": 10},
        {**event, "cat": "user_annotation", "name": "truth:Other", "ts": 0, "dur": 50, "tid": 2},
        {**event, "cat": "cpu_op", "name": "aten::addmm", "ts": 11, "dur": 5},
        {**event, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 12, "dur": 1, "args": {"correlation": 1}},
        {**event, "cat": "cuda_driver", "name": "cuLaunchKernel", "ts": 30, "dur": 1, "args": {"correlation": 2}},
        {**event, "cat": "cuda_runtime", "name": "cudaMemcpy", "ts": 60, "dur": 1, "args": {"correlation": 3}},
        {**event, "cat": "kernel", "name": "gemm", "ts": 31, "dur": 0.25, "tid": 7, "args": {"correlation": 1}},
        {**event, "cat": "kernel", "name": "gemm", "ts": 70, "dur": 2, "tid": 7, "args": {"correlation": 2}},
        {**event, "cat": "gpu_memcpy", "name": "copy", "ts": 80, "dur": 4, "tid": 7, "args": {"correlation": 3}},
    ]
    with gzip.open(tmp_path / "run.json.gz", "wt") as file:
        json.dump({"traceEvents": events}, file)
    counts, times_ns = profiled_work(tmp_path / "run.json.gz")
    assert counts == {"Chain.up": 1, "Chain": 1, "no module": 1}
    assert times_ns == {"Chain.up": 250, "Chain": 2_000, "no module": 4_000}


def test_clocks_fail_where_a_kernel_starts_before_its_launch(tmp_path: Path) -> None:
    assert not problems("clock_error", simulated(tmp_path / "right", EAGER), H100)
    early = EAGER.replace("kernel  1 440 445 #6", "kernel  1 420 445 #6")
    found = problems("clock_error", simulated(tmp_path / "early", early), H100)
    assert "gemm_up has no launch: no_launch" in found


@pytest.mark.nsys
def test_under_nsys_markers_are_heard_and_what_is_not_fails(tmp_path: Path) -> None:
    place = tmp_path / "out"
    found = proved(place, ["markers"], TRACEKIT_NSYS=os.environ["TRACEKIT_NSYS"])
    assert (found["markers"]["verdict"], found["markers"]["figures"]) == ("passed", {"calls": 33}), found
    look_at_data(place, "cpu_markers.sqlite")
    edit(place / "markers", RANGES, '%"Chain.layers.1.down"%', 2)
    assert "of the model has ['Chain.again', [3, 16]], expected ['Chain.layers.1.down', [3, 14]]" in problems(
        "markers", place / "markers"
    )

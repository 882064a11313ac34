"""Everything runs without a GPU, and every check fails where what it proves is broken on purpose.

Reports of one run are broken, then judged again. What only a GPU can show is judged on reports written as lines.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

import tracekit
from tests.command import ROOT, environment
from tests.gpu import data_files
from tests.gpu.measures import MEASURES, clock_error, marker_cost, replay_speed, roofline
from tests.proof.gpu_reports import on_a_gpu
from tests.trace_lines import report
from tracekit.proof import CHECKS, recording, summary
from tracekit.proof.checks import (
    backward,
    command,
    compiled,
    eager,
    graph_in_warmup,
    graph_in_window,
    markers,
    nccl,
    operators,
    pieces,
    processes,
    script,
    whole_graph,
)
from tracekit.proof.machine import Machine, restored

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tracekit.proof.base import Check

pytestmark = pytest.mark.torch

UNDER_NSYS = (markers, whole_graph, marker_cost)
WITHOUT_NSYS = tuple(check for check in (*CHECKS, *MEASURES) if check not in UNDER_NSYS)
#: What only a GPU can show.
OF_A_GPU = {
    "graph_in_window",
    "graph_in_warmup",
    "whole_graph",
    "pieces",
    "nccl",
    "replay_speed",
    "roofline",
    "clock_error",
}
CPU = Machine()
H100 = Machine(gpus=("NVIDIA H100 80GB HBM3",), nsys_problem=None)
H100_WITHOUT_NSYS = replace(H100, nsys_problem="nsys was not found")


def proved(place: Path, checks: tuple[Check, ...], **env: str) -> Path:
    """Runs checks as maintainers do, without a GPU also where there is one."""
    only = [word for check in checks for word in ("--only", check.NAME)]
    line = [sys.executable, "-m", "tests.gpu", str(place), "--json", *only]
    done = subprocess.run(
        line,
        capture_output=True,
        text=True,
        env=environment(CUDA_VISIBLE_DEVICES="", **env),
        cwd=ROOT,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert json.loads(done.stdout) == json.loads((place / summary.FILE).read_text("utf-8"))
    return place


@pytest.fixture(scope="module")
def proof(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of all that needs no nsys, on a machine without one."""
    return proved(tmp_path_factory.mktemp("proof") / "out", WITHOUT_NSYS, TRACEKIT_NSYS="/absent/nsys")


@pytest.fixture(scope="module")
def heard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of what nsys records."""
    return proved(tmp_path_factory.mktemp("heard") / "out", UNDER_NSYS, TRACEKIT_NSYS=os.environ["TRACEKIT_NSYS"])


def outcomes(place: Path) -> dict[str, dict[str, Any]]:
    values = json.loads((place / summary.FILE).read_text("utf-8"))
    return {outcome["name"]: outcome for outcome in values["checks"]}


def machine_of(place: Path) -> Machine:
    return restored(json.loads((place / "machine" / "machine.json").read_text("utf-8")))


@pytest.fixture
def copied(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Copies the folder of a check, to be broken."""

    def copy(check: Check) -> Path:
        source = request.getfixturevalue("heard" if check in UNDER_NSYS else "proof")
        return shutil.copytree(source / check.NAME, tmp_path / check.NAME)

    return copy


def edit(folder: Path, statement: str, *values: object) -> None:
    """Changes the report in a folder; something must change."""
    with closing(sqlite3.connect(folder / recording.REPORT)) as db, db:
        assert db.execute(statement, values).rowcount > 0, (statement, values)


def tell(folder: Path, **facts: Any) -> None:
    """Changes what the recorded program knew of itself."""
    for file in (folder / recording.TRUTH).glob("*.json"):
        file.write_text(json.dumps({**json.loads(file.read_text("utf-8")), **facts}))


def problems(check: Check, folder: Path, machine: Machine = CPU) -> str:
    return "\n".join(check.judge(folder, machine).problems)


#: Deletes the last ranges, or operators, whose text is like this: so many.
RANGES = """DELETE FROM NVTX_EVENTS WHERE rowid IN (
    SELECT n.rowid FROM NVTX_EVENTS n LEFT JOIN StringIds s ON s.id = n.textId
    WHERE coalesce(n.text, s.value) LIKE ? ORDER BY n.start DESC LIMIT ?)"""
OPERATORS = """DELETE FROM TRACEKIT_CPU_OPS WHERE rowid IN (
    SELECT o.rowid FROM TRACEKIT_CPU_OPS o JOIN StringIds s ON s.id = o.nameId
    WHERE s.value LIKE ? ORDER BY o.start DESC LIMIT ?)"""
SHORTENED = """UPDATE TRACEKIT_CPU_OPS SET "end" = "end" - 200 WHERE rowid = (
    SELECT max(o.rowid) FROM TRACEKIT_CPU_OPS o JOIN StringIds s ON s.id = o.nameId WHERE s.value = ?)"""
RENAMED = "UPDATE StringIds SET value = replace(value, ?, ?)"


def test_without_a_gpu_nothing_fails_and_what_only_a_gpu_shows_is_missing(proof: Path) -> None:
    found = outcomes(proof)
    assert list(found) == [check.NAME for check in WITHOUT_NSYS]
    verdicts = {name: one["verdict"] for name, one in found.items()}
    assert verdicts == {name: "missing" if name in OF_A_GPU else "passed" for name in found}
    assert all(one["why"].startswith("no GPU that torch can use") for name, one in found.items() if name in OF_A_GPU)
    assert all(not one["why"] for name, one in found.items() if name not in OF_A_GPU)


@pytest.mark.nsys
def test_under_nsys_markers_are_heard(heard: Path) -> None:
    found = outcomes(heard)
    assert {name: one["verdict"] for name, one in found.items()} == {
        "markers": "passed",
        "whole_graph": "missing",
        "marker_cost": "passed",
    }
    assert found["markers"]["figures"]["calls"] == 33


def test_the_page_has_every_verdict_and_names_files_that_exist(proof: Path) -> None:
    page = (proof / "summary.md").read_text("utf-8")
    for name, one in outcomes(proof).items():
        assert f"\n## {name}\n" in page
        assert one["why"] in page
        assert all((proof / file).is_file() for file in one["files"])
    assert not list(proof.rglob("*.partial*"))


def test_small_reports_for_data_can_be_parsed_and_tell_nothing_of_the_machine(proof: Path) -> None:
    look_at_data(proof, "cpu_eager.sqlite")


@pytest.mark.nsys
def test_small_reports_of_nsys_for_data_tell_nothing_of_the_machine_either(heard: Path) -> None:
    look_at_data(heard, "cpu_markers.sqlite")


def look_at_data(proof: Path, expected: str) -> None:
    kept = sorted(path.name for path in (proof / data_files.FOLDER).glob("*.sqlite"))
    assert expected in kept
    table = (proof / data_files.FOLDER / data_files.README).read_text("utf-8")
    assert all(f"| `{name}` |" in table for name in kept)
    for check, one in outcomes(proof).items():
        said = one["about"] if one["verdict"] == "passed" else f"of the check `{check}`, missing: {one['why']}"
        assert f"cpu_{check}.sqlite" not in kept or f"| `cpu_{check}.sqlite` | {said} (real, on a CPU" in table
    for name in kept:
        path = proof / data_files.FOLDER / name
        content = path.read_bytes()
        assert len(content) <= data_files.MOST_BYTES
        assert not [word for word in (str(proof.parent), sys.executable, str(ROOT)) if word.encode() in content]
        assert not {"EXPORT_PARAM", "Hostname", "HOME="} & {*strings(path)}
        checked = proof / name.removeprefix("cpu_").removesuffix(".sqlite")
        assert tables(path) == tables(checked / recording.REPORT), name


def strings(path: Path) -> Iterator[str]:
    """All texts in a file, up to the first sign that is in no name."""
    yield from re.findall(r"[A-Za-z_]{4,}=?", path.read_bytes().decode("latin-1"))


def tables(path: Path) -> list[Any]:
    """What there is to know of the calls and the work in a report."""
    dataset = tracekit.parse(path, path.with_suffix(".tracekit"), force=True)
    found = [dataset.table(name).to_pylist() for name in ("calls", "kernels")]
    shutil.rmtree(dataset.folder)
    return found


@pytest.mark.nsys
def test_markers_fails_where_a_call_was_not_heard(copied) -> None:
    folder = copied(markers)
    edit(folder, RANGES, '%"Chain.layers.1.down"%', 2)
    assert "holds 10 calls, expected 11" in problems(markers, folder)


def test_markers_fails_where_kernels_are_not_those_of_torch_profiler(proof: Path, tmp_path: Path) -> None:
    """A report of operators stands in for one of kernels by nsys: the comparison is the same."""
    folder = shutil.copytree(proof / eager.NAME, tmp_path / "markers")
    shutil.copytree(proof / eager.NAME, folder / "profiled")
    assert not problems(markers, folder, H100)
    edit(folder, OPERATORS, "aten::addmm", 1)
    assert "Chain.again has 59 kernels, expected 60" in problems(markers, folder, H100)


def test_eager_fails_where_a_time_is_not_that_of_torch_profiler(copied) -> None:
    folder = copied(eager)
    edit(folder, SHORTENED, "aten::relu")
    assert "Chain.layers.1.act has" in problems(eager, folder)


def test_eager_fails_where_work_is_of_another_module(copied) -> None:
    folder = copied(eager)
    edit(folder, RANGES, '%"Chain.again"%', 2)
    assert "pieces of work, expected 60" in problems(eager, folder)


def test_operators_fails_where_a_product_is_not_of_its_weight_s_module(copied) -> None:
    folder = copied(operators)
    edit(folder, RENAMED, "Chain.layers.0.up", "Chain.layers.0.out")
    assert "is of Chain.layers.0.out, expected Chain.layers.0.up" in problems(operators, folder)


def test_operators_fails_where_a_linear_has_no_product(copied) -> None:
    folder = copied(operators)
    edit(folder, RANGES, "%[12, 14]%", 1_000)
    assert "Chain.layers.1.up has 0 products" in problems(operators, folder)


def test_backward_fails_where_a_backward_call_is_lost(copied) -> None:
    folder = copied(backward)
    edit(folder, RANGES, '%"Chain.layers.0.up"%backward%', 1)
    assert "Chain.layers.0.up has 2 backward calls, expected 3" in problems(backward, folder)


def test_compiled_fails_without_kernel_maps(copied) -> None:
    folder = copied(compiled)
    edit(folder, RANGES, "%KernelMap%", 1_000)
    assert "no work was attributed by a kernel map" in problems(compiled, folder)


def test_compiled_fails_where_a_map_names_another_module(copied) -> None:
    folder = copied(compiled)
    edit(folder, RENAMED, "layers.0.up", "layers.0.out")
    assert "is of Chain.layers.0.out, expected Chain.layers.0.up" in problems(compiled, folder)


def test_pieces_fails_where_graphs_pieces_or_results_are_not_as_they_follow(copied) -> None:
    folder = copied(pieces)
    tell(folder, counters={**recording.truth(folder)["counters"], "graphs_captured": 2}, right=False)
    edit(folder, RANGES, '%"How": "replayed"%', 1)
    found = problems(pieces, folder)
    assert "computed something else" in found
    assert "graphs_captured has 2 counted, expected 3" in found
    assert "replayed has 8 runs of pieces, expected 9" in found


def test_pieces_fails_where_replayed_kernels_are_not_those_of_an_eager_run(copied) -> None:
    """The stand-in runs the operators again: judged as if on a GPU, they are the replayed kernels."""
    folder = copied(pieces)
    assert not problems(pieces, folder, H100)
    edit(folder, OPERATORS, "aten::addmm", 4)
    assert "lacks Attentive.layers.1.out: aten::addmm" in problems(pieces, folder, H100)


def test_processes_fails_where_a_process_is_not_recorded(copied) -> None:
    folder = copied(processes)
    edit(folder, "DELETE FROM NVTX_EVENTS WHERE globalTid >> 24 = (SELECT min(globalTid) >> 24 FROM NVTX_EVENTS)")
    assert "0 calls of the model are in the report" in problems(processes, folder)


def test_processes_fails_where_work_of_a_process_is_lost(copied) -> None:
    folder = copied(processes)
    edit(folder, OPERATORS, "aten::addmm", 1)
    assert "not as their calls" in problems(processes, folder)


def test_nccl_fails_where_a_module_lacks_what_it_sent(copied) -> None:
    folder = copied(nccl)
    edit(folder, OPERATORS, "c10d::%", 1)
    assert "Ranks.gather has 2 operators of gloo, expected 3" in problems(nccl, folder)


@pytest.mark.parametrize("check", [script, command], ids=["script", "command"])
def test_a_script_or_command_fails_where_a_call_of_the_model_is_lost(check: Check, copied) -> None:
    folder = copied(check)
    edit(folder, RANGES, '{"Module": "Chain%', 22)
    assert "2 calls of the model are in the report, expected 3" in problems(check, folder)


@pytest.mark.parametrize("check", [graph_in_window, graph_in_warmup], ids=["window", "warmup"])
def test_graphs_fail_where_a_replay_is_incomplete_or_wrong(check: Check, copied) -> None:
    folder = copied(check)
    edit(folder, OPERATORS, "aten::addmm", 1)
    tell(folder, right=False)
    found = problems(check, folder)
    assert "11 products in replays, expected 12" in found
    assert "computed something else" in found


ON_A_GPU = (eager, operators, backward, compiled, processes, nccl, script, command, graph_in_window)
KERNELS = """DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE rowid IN (
    SELECT k.rowid FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.demangledName
    WHERE s.value LIKE ? ORDER BY k.start DESC LIMIT ?)"""

REPLAYED = """DELETE FROM CUPTI_ACTIVITY_KIND_{} WHERE correlationId IN (
    SELECT r.correlationId FROM CUPTI_ACTIVITY_KIND_RUNTIME r JOIN StringIds s ON s.id = r.nameId
    WHERE s.value = 'cudaGraphLaunch')"""


@pytest.mark.parametrize("check", ON_A_GPU, ids=lambda check: check.NAME)
def test_kernels_of_a_gpu_in_place_of_operators_pass(check: Check, copied) -> None:
    """Three pieces of work for a product, and steps that replay a graph: what no CPU records."""
    found = check.judge(on_a_gpu(copied(check)), H100_WITHOUT_NSYS)
    assert (found.problems, found.unproved) == ([], None)


@pytest.mark.parametrize(
    ("check", "said"),
    [
        (eager, "Chain.again has 17 pieces of work, expected 18"),
        (processes, "Chain.again has"),
        (graph_in_window, "Chain.again: nvjet_sst_64x48_64x8_4x1_v_bz_splitK_TNT has 1 kernels in replay"),
    ],
    ids=lambda value: getattr(value, "NAME", None),
)
def test_a_kernel_that_is_lost_fails_what_counts_them(check: Check, said: str, copied) -> None:
    folder = on_a_gpu(copied(check))
    edit(folder, KERNELS, "nvjet%", 1)
    assert said in problems(check, folder, H100_WITHOUT_NSYS)


def test_replays_whose_nodes_torch_does_not_tell_are_missing_and_fail_without_work(copied) -> None:
    folder = on_a_gpu(copied(graph_in_window), nodes=False)
    found = graph_in_window.judge(folder, replace(H100_WITHOUT_NSYS, torch="2.11.0"))
    assert found.problems == []
    assert (
        found.unproved == "the modules of replayed work: torch.profiler of torch 2.11.0 tells no nodes of CUDA graphs"
    )
    for kind in ("KERNEL", "MEMSET"):
        edit(folder, REPLAYED.format(kind))
    assert "has 0 kernels in replay" in problems(graph_in_window, folder, H100_WITHOUT_NSYS)


#: A graph capture, an eager step and two replays, as nsys records them by nodes.
CAPTURED = """
    launch  1  11  12 #1 cudaStreamBeginCapture_v10000
    range   1  20 100 {'Module': 'Chain', 'Inputs': [[3, 8]]}
    range   1  21  50 {'Module': 'Chain.up', 'Inputs': [[3, 8]]}
    launch  1  25  30 #2
    range   1  51  90 {'Module': 'Chain.down', 'Inputs': [[3, 9]]}
    launch  1  55  60 #3
    launch  1 101 102 #4 cudaStreamEndCapture_v10000
    launch  1 110 120 #5 cudaGraphInstantiate_v10000
"""
NODES = """
    node!1  1  27  27
    node!2  1  57  57
    node!11 1 112 112
    node!11 1 112 112 1
    node!12 1 113 113
    node!12 1 113 113 2
"""
EAGER = """
    range   1 400 600 {"Step": 3, "Name": "eager"}
    range   1 420 500 {'Module': 'Chain', 'Inputs': [[3, 8]]}
    range   1 421 450 {'Module': 'Chain.up', 'Inputs': [[3, 8]]}
    launch  1 425 430 #6
    range   1 451 490 {'Module': 'Chain.down', 'Inputs': [[3, 9]]}
    launch  1 455 460 #7
    kernel  1 440 445 #6 gemm_up
    kernel  1 470 475 #7 gemm_down
"""
REPLAYS = """
    range   1 700 800 {"Step": 4, "Name": "replay"}
    launch  1 710 720 #8 cudaGraphLaunch_v10000
    kernel!11 1 730 740 #8 gemm_up
    kernel!12 1 741 750 #8 gemm_down
    range   1 900 990 {"Step": 5, "Name": "replay"}
    launch  1 910 920 #9 cudaGraphLaunch_v10000
    kernel!11 1 930 940 #9 gemm_up
    kernel!12 1 941 950 #9 gemm_down
"""
IN_WINDOW = '    range   1   0 300 {"Step": 2, "Name": "capture"}' + CAPTURED + NODES + EAGER + REPLAYS
WHOLE = """
    made 1   11   11 graph 1
    made 1  111  111 graph 2
    made 1  112  112 graph 3
    made 1  119  119 exec 2 of 1
    range   1 700 800 {"Step": 4, "Name": "replay"}
    launch  1 710 720 #8 cudaGraphLaunch_v10000
    graph   1 730 750 #8 exec 2 of 1
    range   1 900 990 {"Step": 5, "Name": "replay"}
    launch  1 910 920 #9 cudaGraphLaunch_v10000
    graph   1 930 950 #9 exec 2 of 1
"""
CALLS = [["Chain", [3, 8]], ["Chain.up", [3, 8]], ["Chain.down", [3, 9]]]


def simulated(folder: Path, lines: str) -> Path:
    """A folder with a report written as lines, and the truth of its program."""
    (folder / recording.TRUTH).mkdir(parents=True)
    report(folder / recording.REPORT, lines)
    pid = recording.dataset(folder).table("calls", ["pid"]).column("pid")[0].as_py()
    truth = {"pid": pid, "calls": [CALLS], "right": True, "linears": {}, "rows": 3}
    (folder / recording.TRUTH / "1.json").write_text(json.dumps(truth))
    return folder


def test_a_graph_passes_where_replays_have_the_modules_of_an_eager_step(tmp_path: Path) -> None:
    assert not problems(graph_in_window, simulated(tmp_path, IN_WINDOW), H100)


def test_a_graph_fails_where_replayed_kernels_are_of_other_modules(tmp_path: Path) -> None:
    swapped = IN_WINDOW.replace("112 112 1\n", "112 112 2\n").replace("113 113 2\n", "113 113 1\n")
    found = problems(graph_in_window, simulated(tmp_path, swapped), H100)
    assert "Chain.down: gemm_up has 1 kernels in replay" in found


def test_a_graph_fails_where_replayed_kernels_have_no_module(tmp_path: Path) -> None:
    found = problems(graph_in_window, simulated(tmp_path, IN_WINDOW.replace(NODES, "")), H100)
    assert "Chain.up: gemm_up has 0 kernels in replay" in found


def test_a_graph_captured_before_the_recording_has_no_modules_and_fails_if_it_has(tmp_path: Path) -> None:
    assert not problems(graph_in_warmup, simulated(tmp_path / "before", EAGER + REPLAYS), H100_WITHOUT_NSYS)
    assert "Chain.up has gemm_up" in problems(
        graph_in_warmup, simulated(tmp_path / "recorded", IN_WINDOW), H100_WITHOUT_NSYS
    )
    assert "no replayed work" in problems(graph_in_warmup, simulated(tmp_path / "none", EAGER), H100_WITHOUT_NSYS)


def whole(folder: Path, lines: str) -> Path:
    """As ``simulated``, with the steps that come before and the call before each graph capture."""
    calls = "".join(
        f"""
    range   1 {at} {at + 90} {{"Step": {number}, "Name": "{name}"}}
    range   1 {at + 1} {at + 9} {{'Module': 'Chain', 'Inputs': [[3, 8]]}}
    range   1 {at + 2} {at + 4} {{'Module': 'Chain.up', 'Inputs': [[3, 8]]}}
    range   1 {at + 5} {at + 8} {{'Module': 'Chain.down', 'Inputs': [[3, 9]]}}
"""
        for number, (at, name) in enumerate([(-300, "eager"), (-200, "eager")])
    )
    aside = """
    range   1   0 300 {"Step": 2, "Name": "capture"}
    range   1   1  10 {'Module': 'Chain', 'Inputs': [[3, 8]]}
    range   1   2   4 {'Module': 'Chain.up', 'Inputs': [[3, 8]]}
    range   1   5   8 {'Module': 'Chain.down', 'Inputs': [[3, 9]]}
"""
    return simulated(folder, calls + aside + CAPTURED + EAGER + lines)


def test_whole_graphs_pass_where_each_is_of_the_model_and_fail_where_not(tmp_path: Path) -> None:
    assert not problems(whole_graph, whole(tmp_path / "right", WHOLE), H100)
    lost = WHOLE.replace("    graph   1 930 950 #9 exec 2 of 1\n", "")
    assert "1 graphs are in the report, expected 2" in problems(whole_graph, whole(tmp_path / "lost", lost), H100)
    unknown = WHOLE.replace("made 1  119  119 exec 2 of 1", "made 1  119  119 exec 2 of 3")
    assert "a graph is of graph_" in problems(whole_graph, whole(tmp_path / "unknown", unknown), H100)
    none = REPLAYS.replace("!11", "").replace("!12", "")
    assert "no graphs traced as a whole" in problems(whole_graph, whole(tmp_path / "none", none), H100)


@pytest.mark.nsys
def test_whole_graphs_fail_where_a_call_was_not_heard(copied) -> None:
    folder = copied(whole_graph)
    edit(folder, RANGES, '%"Chain.again"%', 2)
    assert "holds 10 calls, expected 11" in problems(whole_graph, folder)


@pytest.mark.nsys
def test_the_cost_of_markers_fails_where_none_was_heard(copied) -> None:
    folder = copied(marker_cost)
    edit(folder, "DELETE FROM NVTX_EVENTS")
    assert "nsys heard no marker" in problems(marker_cost, folder, Machine(nsys_problem=None))


def test_the_cost_of_markers_is_missing_without_the_package_that_pushes_them() -> None:
    assert marker_cost.missing(replace(H100, nvtx="0.2.17")) is None
    assert marker_cost.missing(H100) == "the package nvtx, which pushes markers, is not installed"


def test_the_speed_of_replays_fails_where_nothing_was_captured(copied) -> None:
    folder = copied(replay_speed)
    tell(folder, graphs_captured=0, right=False)
    assert "0 graphs were captured, expected 6" in problems(replay_speed, folder)


def test_roofline_fails_where_it_differs_from_events_and_exceeds_what_nvidia_states(copied) -> None:
    folder = copied(roofline)
    tell(folder, tflops_per_s=600.0)
    assert "roofline says" in problems(roofline, folder, H100)
    edit(folder, 'UPDATE TRACEKIT_CPU_OPS SET "end" = start + 1')
    assert "more than the 989.4 that NVIDIA states" in problems(roofline, folder, H100)


def test_clocks_fail_where_a_kernel_starts_before_its_launch(tmp_path: Path) -> None:
    assert not problems(clock_error, simulated(tmp_path / "right", EAGER), H100)
    early = EAGER.replace("kernel  1 440 445 #6", "kernel  1 420 445 #6")
    assert "gemm_up has no launch: impossible_launch" in problems(
        clock_error, simulated(tmp_path / "early", early), H100
    )
    without = EAGER.replace("kernel  1 440 445 #6 gemm_up", "").replace("kernel  1 470 475 #7 gemm_down", "")
    assert "nothing was measured" in problems(clock_error, simulated(tmp_path / "none", without), H100)

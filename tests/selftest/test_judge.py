"""Without a GPU nothing fails, and every rule fails where what it compares is broken on purpose.

Reports of one run are broken, then judged again. What only a GPU can show is judged on reports written as lines.
"""

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tracekit
from tests.command import ROOT, environment
from tests.gpu import data_files, measures
from tests.sqlite import writing
from tests.trace_lines import report
from tracekit.selftest import PROGRAMS, running
from tracekit.selftest.judge import REPORT, RULES, TRUTH, Case, Evidence, Machine, judged, profiled_work

pytestmark = pytest.mark.torch
#: As if one of several processes had not been recorded.
NO_RANGES_OF_ONE = "DELETE FROM NVTX_EVENTS WHERE globalTid >> 24 = (SELECT min(globalTid) >> 24 FROM NVTX_EVENTS)"
#: What does not run without a GPU.
NEEDS_A_GPU = {"graph_in_window", "graph_in_warmup"}
CPU = Machine()
H100 = Machine(gpus=("NVIDIA H100 80GB HBM3",), nsys_problem=None)
H100_WITHOUT_NSYS = Machine(gpus=H100.gpus, nsys_problem="nsys was not found", torch="2.11.0")
ALL = {program.name: program for program in (*PROGRAMS, *measures.PROGRAMS)}


def proved(place: Path, names: list[str], **env: str) -> dict[str, dict[str, Any]]:
    only = [word for name in names for word in ("--only", name)]
    line = [sys.executable, "-m", "tests.gpu", str(place), "--json", *only]
    environ = environment(CUDA_VISIBLE_DEVICES="", **env)
    done = subprocess.run(line, capture_output=True, text=True, env=environ, cwd=ROOT, timeout=900, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    assert json.loads(done.stdout) == json.loads((place / running.FILE).read_text("utf-8"))
    assert not list(place.rglob("*.partial*"))
    return {outcome["name"]: outcome for outcome in json.loads(done.stdout)["checks"]}


def edit(folder: Path, statement: str, *values: object) -> None:
    with writing(folder / REPORT) as db:
        assert db.execute(statement, values).rowcount > 0, (statement, values)


def evidence(name: str, folder: Path, machine: Machine = CPU) -> Evidence:
    RULES.update(measures.RULES)
    return judged(Case(ALL[name], folder, machine))


def problems(name: str, folder: Path, machine: Machine = CPU) -> str:
    return "\n".join(evidence(name, folder, machine).problems)


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
CALLS = [["Chain", [3, 8]], ["Chain.up", [3, 8]], ["Chain.down", [3, 9]]]


def simulated(folder: Path, lines: str, **truth: Any) -> Path:
    (folder / TRUTH).mkdir(parents=True)
    report(folder / REPORT, lines)
    (pid, *_) = {row["pid"] for row in Case(ALL["eager"], folder, CPU).rows("calls", "pid")}
    facts = {"pid": pid, "calls": [CALLS], "right": True, "linears": {}, "rows": 3, **truth}
    (folder / TRUTH / "1.json").write_text(json.dumps(facts))
    return folder


def look_at_data(proof: Path, expected: str) -> None:
    kept = sorted(path.name for path in (proof / data_files.FOLDER).glob("*.sqlite"))
    assert expected in kept
    table = (proof / data_files.FOLDER / data_files.README).read_text("utf-8")
    assert all(f"| `{name}` |" in table for name in kept)
    assert "(real, on a CPU" in table
    for name in kept:
        path = proof / data_files.FOLDER / name
        content = path.read_bytes()
        assert len(content) <= data_files.MOST_BYTES
        assert not [word for word in (str(proof.parent), sys.executable, str(ROOT)) if word.encode() in content]
        strings = re.findall(r"[A-Za-z_]{4,}=?", content.decode("latin-1"))
        assert not {"EXPORT_PARAM", "Hostname", "HOME="} & {*strings}
        made_from = proof / name.removeprefix("cpu_").removesuffix(".sqlite")
        assert _tables(path) == _tables(made_from / REPORT), name


def _tables(path: Path) -> list[Any]:
    dataset = tracekit.parse(path, path.with_suffix(".tracekit"), force=True)
    found = [dataset.table(name).to_pylist() for name in ("calls", "kernels")]
    shutil.rmtree(dataset.folder)
    return found


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
        ("pieces", OPERATORS, ["aten::addmm", 4], "Chain.layers.1.down: aten::addmm has 0 kernels in replay"),
    ],
)
def test_a_rule_fails_where_the_report_is_broken(name, statement, values, said, proof: Path, tmp_path: Path) -> None:
    """Without a GPU, operators of compiled pieces run again: judged as if on a GPU, they are the replayed kernels."""
    folder, machine = shutil.copytree(proof / name, tmp_path / name), H100 if name == "pieces" else CPU
    assert not problems(name, folder, machine)
    edit(folder, statement, *values)
    assert said in problems(name, folder, machine)


def test_pieces_fails_where_graphs_or_results_are_not_as_they_follow(proof: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(proof / "pieces", tmp_path / "pieces")
    (file,) = (folder / TRUTH).glob("*.json")
    truth = json.loads(file.read_text("utf-8"))
    file.write_text(json.dumps({**truth, "counters": {**truth["counters"], "graphs_captured": 2}, "right": False}))
    found = problems("pieces", folder)
    assert "computed something else" in found
    assert "graphs_captured has 2 counted, expected 3" in found


NO_NODES = (EAGER + REPLAYS).replace("!11", "").replace("!12", "")
SWAPPED = IN_WINDOW.replace("112 112 1\n", "112 112 2\n").replace("113 113 2\n", "113 113 1\n")
NOT_REPLAYED = "".join(line for line in NO_NODES.splitlines(keepends=True) if "#8 gemm" not in line)
ONE_STEP = IN_WINDOW.replace('range   1 900 990 {"Step": 5, "Name": "replay"}', "")
EARLY = EAGER.replace("kernel  1 440 445 #6", "kernel  1 420 445 #6")


@pytest.mark.parametrize(
    ("name", "lines", "machine", "said"),
    [
        ("graph_in_window", IN_WINDOW, H100, ""),
        ("graph_in_window", SWAPPED, H100, "Chain.down: gemm_up has 1 kernels in replay"),
        ("graph_in_window", IN_WINDOW.replace(NODES, ""), H100, "Chain.up: gemm_up has 0 kernels in replay"),
        ("graph_in_window", ONE_STEP, H100, "replay has 1 steps, expected 2"),
        (
            "graph_in_window",
            NO_NODES,
            H100_WITHOUT_NSYS,
            "with torch 2.11.0, none says which node of a CUDA graph it is",
        ),
        ("graph_in_window", NOT_REPLAYED, H100, "Chain.up: gemm_up has 0 kernels in replay"),
        ("graph_in_warmup", IN_WINDOW, H100, ""),
        ("graph_in_warmup", EAGER + REPLAYS, H100_WITHOUT_NSYS, ""),
        ("graph_in_warmup", IN_WINDOW, H100_WITHOUT_NSYS, "Chain.up: gemm_up is of a graph without known nodes"),
        ("graph_in_warmup", EAGER, H100_WITHOUT_NSYS, "no replayed work"),
        ("clock_error", EAGER, H100, ""),
        ("clock_error", EARLY, H100, "gemm_up has no launch: no_launch"),
    ],
)
def test_work_of_a_gpu_passes_where_it_is_as_follows_and_fails_elsewhere(name, lines, machine, said, tmp_path) -> None:
    found = evidence(name, simulated(tmp_path / name, lines), machine)
    assert said in (found.unproved or "\n".join(found.problems))
    assert bool(said) == bool(found.unproved or found.problems)


def test_a_wrong_result_of_replays_fails(tmp_path: Path) -> None:
    wrong = simulated(tmp_path / "wrong", IN_WINDOW, right=False)
    assert "computed something else" in problems("graph_in_window", wrong, H100)


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


@pytest.mark.nsys
def test_under_nsys_markers_are_heard_and_what_is_not_fails(tmp_path: Path) -> None:
    place = tmp_path / "out"
    found = proved(place, ["markers"], TRACEKIT_NSYS=os.environ["TRACEKIT_NSYS"])
    assert (found["markers"]["verdict"], found["markers"]["figures"]) == ("passed", {"calls": 33}), found
    look_at_data(place, "cpu_markers.sqlite")
    edit(place / "markers", RANGES, '%"Chain.layers.1.down"%', 2)
    said = "in the model is of ['Chain.again', [3, 16]], expected ['Chain.layers.1.down', [3, 14]]"
    assert said in problems("markers", place / "markers")

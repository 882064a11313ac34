"""Reports that tests break: recorded by a self-test, or written as lines."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import tracekit
from tests.command import ROOT, environment
from tests.gpu import data_files, measures
from tests.sqlite import writing
from tests.trace_lines import report
from tracekit.selftest import PROGRAMS, running
from tracekit.selftest.judge import REPORT, RULES, TRUTH, Case, Evidence, Machine, judged

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


def change_truth(folder: Path, **facts: Any) -> None:
    for file in (folder / TRUTH).glob("*.json"):
        file.write_text(json.dumps({**json.loads(file.read_text("utf-8")), **facts}))


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

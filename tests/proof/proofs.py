"""Proofs that tests break: how they are made, and how their reports, or reports written as lines, are changed."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import tracekit
from tests.command import ROOT, environment
from tests.gpu import data_files
from tests.gpu.measures import clock_error, marker_cost, replay_speed, roofline
from tests.trace_lines import report
from tracekit.proof import recording, summary
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
from tracekit.proof.machine import Machine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tracekit.proof.base import Check

#: Each is proved in a file of its own, because files of tests run beside each other.
EAGERLY = (eager, operators, backward, processes, script, command, roofline, clock_error)
REPLAYED_OR_COMPILED = (graph_in_window, graph_in_warmup, pieces, compiled, nccl, replay_speed)
UNDER_NSYS = (markers, whole_graph, marker_cost)
CPU = Machine()

H100 = Machine(gpus=("NVIDIA H100 80GB HBM3",), nsys_problem=None)

H100_WITHOUT_NSYS = replace(H100, nsys_problem="nsys was not found")

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


def outcomes(place: Path) -> dict[str, dict[str, Any]]:
    values = json.loads((place / summary.FILE).read_text("utf-8"))
    return {outcome["name"]: outcome for outcome in values["checks"]}


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

KERNELS = """DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE rowid IN (
    SELECT k.rowid FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.demangledName
    WHERE s.value LIKE ? ORDER BY k.start DESC LIMIT ?)"""

REPLAYED = """DELETE FROM CUPTI_ACTIVITY_KIND_{} WHERE correlationId IN (
    SELECT r.correlationId FROM CUPTI_ACTIVITY_KIND_RUNTIME r JOIN StringIds s ON s.id = r.nameId
    WHERE s.value = 'cudaGraphLaunch')"""

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


def nothing_fails(proof: Path, checks: tuple[Check, ...]) -> None:
    """Without a GPU and nsys; what only a GPU shows is missing."""
    found = outcomes(proof)
    assert sorted(found) == sorted(check.NAME for check in checks)
    verdicts = {name: one["verdict"] for name, one in found.items()}
    assert verdicts == {name: "missing" if name in OF_A_GPU else "passed" for name in found}
    assert all(one["why"].startswith("no GPU that torch can use") for name, one in found.items() if name in OF_A_GPU)
    assert all(not one["why"] for name, one in found.items() if name not in OF_A_GPU)
    look_at_page(proof)


def look_at_page(proof: Path) -> None:
    """It has every verdict and names files that exist."""
    page = (proof / "summary.md").read_text("utf-8")
    for name, one in outcomes(proof).items():
        assert f"\n## {name}\n" in page
        assert one["why"] in page
        assert all((proof / file).is_file() for file in one["files"])
    assert not list(proof.rglob("*.partial*"))

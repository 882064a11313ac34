"""What NVIDIA's own nsys records and exports is read right."""

import csv
import io
import subprocess
from pathlib import Path

import pytest

import tracekit
from tests.nsys import import_heard_nvtx, nsys, record

pytestmark = [pytest.mark.nsys, pytest.mark.heard_nvtx, pytest.mark.releases]

PROGRAM = """
import threading, time

def call(text, *inner):
    nvtx.push_range(text)
    for step in inner:
        step()
    time.sleep(0.002)
    nvtx.pop_range()

def module(path, *inner, out="[[2, 8]]"):
    call("{'Module': '%s', 'Inputs': [[2, 4]]}" % path, *inner)
    call("{'Module': '%s', 'Outputs': %s}" % (path, out))

shared = lambda: module("top.a.act")
model = lambda: module("top", lambda: module("top.a", shared), lambda: module("top.b", shared))
nvtx.push_range("step[DECODE bs=2]")
model()
nvtx.pop_range()
other = threading.Thread(target=model)
other.start()
other.join()
with nvtx.annotate("in a domain", domain="mine"):
    model()
nvtx.push_range("never ended")
"""


def test_calls_modules_steps_and_ranges_are_those_of_the_program_and_of_nsys_stats(tmp_path: Path) -> None:
    report = record(tmp_path, f"{import_heard_nvtx()}{PROGRAM}")
    dataset = tracekit.parse(report, tmp_path / "run.tracekit")
    calls = dataset.calls(["call_id", "parent_call_id", "module", "tid", "inputs", "outputs"])
    assert sorted(calls.module.astype(str)) == sorted(["top", "top.a", "top.a.act", "top.b", "top.b.act"] * 3)
    above = calls.parent_call_id.map(dict(zip(calls.call_id, calls.module.astype(str), strict=True)))
    expected = calls.module.astype(str).str.rpartition(".")[0]
    assert (above.fillna("") == expected).all()
    assert calls.tid.nunique() == 2
    assert [[list(shape) for shape in shapes] for shapes in calls.outputs] == [[[2, 8]]] * 15
    # A shared module stands where it ran.
    assert dataset.modules().set_index("path").alias_of["top.b.act"] == "top.a.act"
    assert dataset.steps()[["kind", "batch_size"]].values.tolist() == [["decode", 2]]
    ranges = dataset.ranges()
    assert ranges[ranges.text == "in a domain"].domain.tolist() == ["mine"]
    stats = [
        nsys(),
        "stats",
        "-q",
        "--force-export=false",
        "--report=nvtxpptrace",
        "--format=csv",
        "--output=-",
        report,
    ]
    said = subprocess.check_output(stats, text=True, timeout=240)
    rows = list(csv.DictReader(io.StringIO(said[said.index("Start") :])))
    theirs = sorted((int(row["Start (ns)"]), int(row["Duration (ns)"]), int(row["Lvl"])) for row in rows)
    ours = ranges[~ranges.open]
    assert len(theirs) >= 32
    assert theirs == sorted(zip(ours.start_ns, ours.end_ns - ours.start_ns, ours.depth, strict=True))

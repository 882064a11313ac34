"""Traces of several processes as one: with texts, on one clock, and nothing of one taken for another's."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import tracekit
from tracekit.capture.chrome_trace import keep_chrome_trace
from tracekit.capture.kineto import ProcessTrace, rows_of_processes

if TYPE_CHECKING:
    from pathlib import Path

BASE_NS = 1_790_000_000_000_000_000


def process(pid: int, base_ns: int, device: int) -> ProcessTrace:
    """A module that launches one kernel on the process's first GPU."""

    def host(cat: str, name: str, ts: float, dur: float, **args: int) -> dict[str, Any]:
        return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": pid, "ts": ts, "dur": dur, "args": args}

    on_device = {"device": 0, "context": 1, "stream": 7, "correlation": 5, "External id": 3}
    events = [
        host("cpu_op", "tracekit:0", 10.125, 80, **{"External id": 2}),
        host("cpu_op", "aten::mm", 20, 30, **{"External id": 3}),
        host("cuda_runtime", "cudaLaunchKernel", 30, 5, correlation=5),
        {"ph": "s", "id": 5, "pid": pid, "tid": pid, "ts": 30, "cat": "ac2g", "name": "ac2g"},
        {**host("kernel", "gemm", 50, 20, **on_device), "pid": 0, "tid": 7},
    ]
    trace = {"baseTimeNanoseconds": base_ns, "distributedInfo": {"rank": pid}, "traceEvents": events}
    return ProcessTrace(trace, [f"{{'Module': 'net{pid}'}}"], pid, devices={0: device})


def merged(tmp_path: Path, *processes: ProcessTrace) -> dict[str, Any]:
    warnings: list[str] = []
    keep_chrome_trace(processes, rows_of_processes(processes), tmp_path / "run.json.gz", warnings)
    assert warnings == []
    content: dict[str, Any] = json.loads(gzip.decompress((tmp_path / "run.json.gz").read_bytes()))
    return content


def test_each_process_keeps_its_kernels_though_ids_and_gpus_are_the_same(tmp_path: Path) -> None:
    merged(tmp_path, process(100, BASE_NS, 0), process(200, BASE_NS + 1_000_000_001, 0))
    dataset = tracekit.parse(tmp_path / "run.json.gz", tmp_path / "out")
    rows = dataset.table("kernels", ["pid", "module", "start_ns", "device"]).to_pylist()
    assert rows == [
        {"pid": 100, "module": "net100", "start_ns": 39_875, "device": 0},
        {"pid": 200, "module": "net200", "start_ns": 39_875 + 1_000_000_001, "device": 0},
    ]


def test_ids_flows_and_tracks_of_devices_are_told_apart(tmp_path: Path) -> None:
    trace = merged(tmp_path, process(100, BASE_NS, 0), process(200, BASE_NS, 1))
    events = trace["traceEvents"]
    assert "distributedInfo" not in trace
    for key in ("correlation", "device"):
        assert len({event["args"][key] for event in events if event.get("cat") == "kernel"}) == 2
    assert len({event["id"] for event in events if event["ph"] == "s"}) == 2
    assert len({(event["pid"], event["tid"]) for event in events if event.get("cat") == "kernel"}) == 2
    assert len({event["args"]["External id"] for event in events if event.get("cat") in ("cpu_op", "kernel")}) == 2


def test_our_ranges_are_annotations_with_their_texts_in_a_trace_of_one_process(tmp_path: Path) -> None:
    trace = merged(tmp_path, process(100, BASE_NS, 0))
    marker = trace["traceEvents"][0]
    assert (marker["cat"], marker["name"], marker["ts"]) == ("user_annotation", "{'Module': 'net100'}", 10.125)
    assert trace["traceEvents"][1:] == process(100, BASE_NS, 0).trace["traceEvents"][1:]
    assert trace["distributedInfo"] == {"rank": 100}


def test_texts_that_utf_8_does_not_have_are_changed(tmp_path: Path) -> None:
    one = process(100, BASE_NS, 0)
    one.trace["traceEvents"][1]["name"] = "odd \ud800"
    names = [event["name"] for event in merged(tmp_path, one)["traceEvents"]]
    assert names[:2] == ["{'Module': 'net100'}", "odd ?"]


def test_a_trace_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    warnings: list[str] = []
    one = process(100, BASE_NS, 0)
    keep_chrome_trace([one], rows_of_processes([one]), tmp_path / "absent" / "run.json.gz", warnings)
    assert len(warnings) == 1
    assert "could not be written (No such file or directory)" in warnings[0]

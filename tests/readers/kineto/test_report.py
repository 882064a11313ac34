"""Rows of small traces."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

import tracekit
from tests.readers.kineto.traces import PID, event, kernel, launch, trace
from tracekit.progress import silent
from tracekit.readers import kineto
from tracekit.recording.provenance import Gpu, Rank
from tracekit.recording.tables import COPY_KINDS

if TYPE_CHECKING:
    from pathlib import Path


def test_texts_are_in_the_order_of_the_trace_in_every_process(tmp_path: Path) -> None:
    names = [f"aten::op{at}" for at in range(9)]
    path = trace(tmp_path / "trace.json", *(event("cpu_op", name, 10 * at, 5) for at, name in enumerate(names)))
    assert kineto.read(path, silent).texts == names


def test_names_ids_and_devices(tmp_path: Path) -> None:
    named = [
        {"ph": "M", "name": "process_name", "pid": PID, "tid": 0, "args": {"name": "/opt/python3"}},
        {"ph": "M", "name": "thread_name", "pid": PID, "tid": "101", "args": {"name": "thread 101 (loader)"}},
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": 7, "args": {"name": "stream 7 "}},
    ]
    gpu = {"id": 0, "name": "H100", "computeMajor": 9, "computeMinor": 0, "numSms": 132, "totalGlobalMem": 80}
    path = trace(
        tmp_path / "trace.json",
        *named,
        event("cpu_op", "aten::mm", 10, 20, "101", **{"Sequence number": 3, "Input Dims": [[2, 3], [], [[4], [5]]]}),
        launch(12, 5) | {"tid": 101},
        kernel(20, 5, **{"graph id": 0, "graph node id": 0}),
        event("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 30, 1, 7, device=0, stream=7, correlation=6, bytes=9),
        schemaVersion=1,
        deviceProperties=[gpu],
        distributedInfo={"backend": "nccl", "rank": 3, "world_size": 8},
        trace_id="77C6",
    )
    recording = kineto.read(path, silent)
    assert (recording.threads.pid.tolist(), recording.threads.tid.tolist()) == ([PID], [101])
    assert recording.process_names == {PID: "python3"}
    assert recording.thread_names == {0: "thread 101 (loader)"}
    assert recording.devices == {0: Gpu("H100", "9.0", 132, 80)}
    assert (recording.source.trace_id, recording.source.world_size) == ("77C6", 8)
    assert recording.ranks == (Rank(0, PID, 3, "distributed_info"),)
    assert recording.texts == ["aten::mm, seq = 3, sizes = [[2, 3], [], [[4], [5]]]"]
    one, copy = recording.work.to_pylist()
    assert [recording.names[row["name"]] for row in (one, copy)] == ["gemm", "[CUDA memcpy Host-to-Device]"]
    assert COPY_KINDS[copy["copy_kind"]] == "Host-to-Device"
    assert (one["process"], one["graph_id"], one["graph_node_id"], copy["bytes"]) == (0, None, None, 9)


def test_modules_of_with_stack_are_named_by_class_and_number(tmp_path: Path) -> None:
    calls = [("Net_0", 0, 100), ("Linear_0", 10, 20), ("Linear_1", 40, 20), ("Linear_0", 70, 20)]
    modules = [event("python_function", f"nn.Module: {name}", ts, dur) for name, ts, dur in calls]
    other = event("python_function", "model.py(3): forward", 1, 98)
    rows = [launch(ts, i) for i, ts in enumerate((5, 15, 45, 75), 1)]
    rows += [kernel(200 + i * 10, i) for i in range(1, 5)]
    dataset = tracekit.parse(trace(tmp_path / "trace.json", *modules, other, *rows), tmp_path / "out")
    assert [(row["path"], row["class_name"]) for row in dataset.table("modules").to_pylist()] == [
        ("Net_0", "Net"),
        ("Net_0.Linear_0", "Linear"),
        ("Net_0.Linear_1", "Linear"),
    ]
    kernels = sorted(dataset.table("kernels").to_pylist(), key=lambda row: int(row["kernel_id"]))
    assert [row["module"] for row in kernels] == ["Net_0", "Net_0.Linear_0", "Net_0.Linear_1", "Net_0.Linear_0"]
    assert {row["inputs"] for row in dataset.table("calls").to_pylist()} == {None}
    assert "names of modules" in {lack["what"] for lack in dataset.manifest["lacks"]}


#: Operators of two calls of the model in PyTorch's own test of its module hierarchy, in order.
OF_A = "TOP(C)::forward.A0(A)::forward."
SCRIPTED = [
    ("aten::sub", OF_A, "C.A0"),
    ("aten::mul", f"{OF_A}SELF(A)::forward_impl_.SELF(A)::my_new_method.", "C.A0"),
    ("aten::add", f"{OF_A}SELF(A)::forward_impl_.", "C.A0"),
    ("aten::add", "TOP(C)::forward.SELF(C)::call_b.B0(B)::forward.", "C.B0"),
    ("aten::add", "TOP(C)::forward.", "C"),
]


@pytest.mark.parametrize("model_is_operator", [True, False])
def test_modules_of_torchscript_have_the_paths_of_the_trace(tmp_path: Path, model_is_operator: bool) -> None:
    rows = [event("cpu_op", "defaults", 0, 1, **{"Module Hierarchy": "TOP()::defaults."})]
    for begin in (100, 300):
        of_model = event("cpu_op", "forward", begin, 100, **{"Module Hierarchy": "TOP(C)::forward."})
        rows += [of_model] if model_is_operator else []
        for at, (name, hierarchy, _) in enumerate(SCRIPTED):
            rows.append(event("cpu_op", name, begin + 10 + at * 10, 8, **{"Module Hierarchy": hierarchy}))
        rows.append(event("cpu_op", "aten::zeros", begin + 150, 1, **{"Module Hierarchy": ""}))
    dataset = tracekit.parse(trace(tmp_path / "trace.json", *rows), tmp_path / "out")
    modules = [(row["path"], row["class_name"]) for row in dataset.table("modules").to_pylist()]
    assert modules == [("C", "C"), ("C.A0", "A"), ("C.B0", "B")]
    kernels = sorted(dataset.table("kernels").to_pylist(), key=lambda row: int(row["start_ns"]))
    found = [(row["name"], row["module"]) for row in kernels if row["name"] != "forward"]
    one = [*((name, module) for name, _, module in SCRIPTED), ("aten::zeros", None)]
    assert found == [("defaults", None), *one, *one]
    calls = Counter(row["module"] for row in dataset.table("calls").to_pylist())
    assert calls == {"C": 2, "C.A0": 2, "C.B0": 2}


def test_where_hooks_marked_modules_their_markers_count(tmp_path: Path) -> None:
    text = "{'Module': 'top.fc', 'Inputs': [[2, 3]]}"
    path = trace(
        tmp_path / "trace.json",
        event("user_annotation", text, 0, 50),
        event("python_function", "nn.Module: Linear_0", 1, 48),
        launch(10, 1),
        kernel(60, 1),
    )
    dataset = tracekit.parse(path, tmp_path / "out")
    assert [row["module"] for row in dataset.table("kernels").to_pylist()] == ["top.fc"]
    assert [row["path"] for row in dataset.table("modules").to_pylist()] == ["top", "top.fc"]


def test_replays_on_rocm_are_replays(tmp_path: Path) -> None:
    path = trace(
        tmp_path / "trace.json",
        event("python_function", "nn.Module: Net_0", 0, 50),
        launch(10, 1, "hipGraphLaunch"),
        *(kernel(60 + i * 10, 1) for i in range(3)),
    )
    dataset = tracekit.parse(path, tmp_path / "out")
    assert {row["cause"] for row in dataset.table("kernels").to_pylist()} == {"graph_unmapped"}

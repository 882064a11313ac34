"""Torch's traces become reports that mean the same as the traces themselves."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

import tracekit
from tests.capture.recordings import report_of, texts_of
from tests.needs import TRACES
from tracekit.capture.kineto import ProcessTrace, Rows, rows_of_processes
from tracekit.errors import CaptureError

pytestmark = pytest.mark.torch
COLUMNS = (
    "kind name dur_ns device context stream pid tid correlation_id launch_name grid_x grid_y grid_z block_x "
    "block_y block_z registers copy_kind graph_id graph_node_id"
)


@pytest.mark.traces
@pytest.mark.parametrize(
    "name", ["vllm_eager_b200.json.gz", "with_stack_qwen_h100.json.gz", "nccl_collectives.json.gz", "graph_ids.json"]
)
def test_work_of_real_gpus_is_the_same_in_the_report_of_a_trace(name: str, tmp_path: Path) -> None:
    trace = TRACES / "kineto" / name
    theirs = tracekit.parse(trace, tmp_path / "trace")
    [pid] = {row["pid"] for row in theirs.table("kernels").to_pylist()}
    ours = tracekit.parse(report_of(trace, pid, tmp_path / "report.sqlite"))
    assert kernels(ours) == kernels(theirs)


def kernels(dataset: tracekit.Dataset) -> list[list[object]]:
    """What both record of each kernel; times count from the first one."""
    rows = sorted(dataset.table("kernels").to_pylist(), key=lambda row: (row["start_ns"], row["stream"]))
    return [
        [row["start_ns"] - rows[0]["start_ns"], row["full_name"] if row["kind"] == "kernel" else row["bytes"]]
        + [row[name] for name in COLUMNS.split()]
        for row in rows
    ]


def converted(path: Path, texts: Sequence[str], *written: dict[str, object]) -> Rows:
    path.write_text(json.dumps({"traceEvents": [{"pid": 7, "tid": 7, "args": {}, **row} for row in written]}))
    return rows_of_processes([ProcessTrace(path, texts, 7)])


def host(category: str, name: str, start: int, end: int) -> dict[str, object]:
    return {"ph": "X", "cat": category, "name": name, "ts": float(start), "dur": float(end - start)}


def test_a_users_range_that_looks_like_one_of_ours_is_the_users(tmp_path: Path) -> None:
    names = ["tracekit:", "tracekit:x", "tracekit:-1", "tracekit:7", "tracekit:0"]
    said = [host("user_annotation", name, at, at + 1) for at, name in enumerate(names)]
    made = converted(tmp_path / "trace.json", ["ours"], *said)
    assert texts_of(made) == [*names[:4], "ours"]
    assert made.numbered == 1


def test_an_evaluation_begins_with_its_node_if_hooks_open_a_range_before(tmp_path: Path) -> None:
    engine = "autograd::engine::evaluate_function"
    ranges = [host("user_annotation", f"tracekit:{at}", *times) for at, times in enumerate([(0, 22), (23, 60)])]
    around = [host("cpu_op", f"{engine}: MulBackward0", *times) for times in ((10, 18), (20, 40))]
    inner = [host("cpu_op", "MulBackward0", *times) for times in ((12, 16), (25, 35))]
    found = [ranges[0], around[0], inner[0], around[1], ranges[1], inner[1]]
    rows = converted(tmp_path / "trace.json", ("a", "b"), *found)
    times = [(row["start"] // 1000, row["end"] // 1000) for row in rows.operators]
    assert times == [(10, 18), (12, 16), (25, 40), (25, 35)]


def test_operators_that_tell_a_phase_are_ranges_where_a_gpu_worked(tmp_path: Path) -> None:
    operators = [host("cpu_op", name, 1, 3) for name in ("aten::mm", "compile_file (dynamo_timed)")]
    kernel = host("kernel", "gemm", 1, 3) | {"args": {"device": 0, "stream": 7, "correlation": 3}}
    for recorded, expected in ((operators, []), ([*operators, kernel], ["compile_file (dynamo_timed)"])):
        rows = converted(tmp_path / "trace.json", [], *recorded)
        assert [rows.strings[row["textId"]] for row in rows.tables()["NVTX_EVENTS"]] == expected


def test_a_trace_that_is_cut_off_is_no_recording(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text('{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7, "tid": 7, "ts": 1')
    with pytest.raises(CaptureError, match="not valid JSON"):
        rows_of_processes([ProcessTrace(path, [], 7)])

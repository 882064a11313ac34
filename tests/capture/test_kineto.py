"""Torch's traces of real GPUs become reports in which nothing is missing, moved or twice."""

import gzip
import json
from collections import Counter
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.needs import TRACES
from tracekit.capture.kineto import ProcessTrace, rows_of_processes
from tracekit.capture.rows import Rows

NAMES = ("vllm_eager_b200.json.gz", "with_stack_qwen_h100.json.gz", "nccl_collectives.json.gz", "graph_ids.json")
#: Categories of work on the device, and the tables that they become.
WORK = {"kernel": "kernels", "gpu_memcpy": "memcpys", "gpu_memset": "memsets"}


class Event(NamedTuple):
    """A complete event; times are exact, in nanoseconds."""

    category: str
    name: str
    start: int
    end: int
    args: dict[str, Any]
    thread: int | None


@cache
def trace(name: str) -> dict[str, Any]:
    return json.loads(_text(name))


@cache
def events(name: str) -> list[Event]:
    found = json.loads(_text(name), parse_float=Decimal)["traceEvents"]
    kept = {*WORK, "cpu_op", "user_annotation", "cuda_runtime", "cuda_driver"}
    mine = [event for event in found if event.get("ph") == "X" and event.get("cat") in kept]
    zero = min(int(event["ts"] * 1000) for event in mine)
    return [
        Event(
            event["cat"],
            event["name"],
            start := int(event["ts"] * 1000) - zero,
            start + int(event.get("dur", 0) * 1000),
            event.get("args", {}),
            event["tid"] if isinstance(event["tid"], int) else None,
        )
        for event in mine
    ]


@cache
def rows(name: str) -> Rows:
    return rows_of_processes([ProcessTrace(trace(name), (), pid(name))])


def pid(name: str) -> int:
    (found,) = {event["pid"] for event in trace(name)["traceEvents"] if event.get("cat") == "cpu_op"}
    return found


def _text(name: str) -> bytes:
    data = (TRACES / "kineto" / name).read_bytes()
    return gzip.decompress(data) if name.endswith("gz") else data


pytestmark = [pytest.mark.torch, pytest.mark.traces]
#: What the machine that recorded it would say.
GPU = {"id": 0, "name": "a GPU", "smCount": 100, "totalMemory": 1 << 36, "computeMajor": 9, "computeMinor": 0}
each = pytest.mark.parametrize("name", NAMES)


@each
@pytest.mark.parametrize("category", WORK)
def test_every_piece_of_device_work_is_there_once_with_its_times(name: str, category: str) -> None:
    keys = ("device", "context", "stream", "correlation")
    expected = Counter(
        (event.start, event.end, *map(event.args.get, keys)) for event in events(name) if event.category == category
    )
    fields = ("start", "end", "deviceId", "contextId", "streamId", "correlationId")
    found = getattr(rows(name), WORK[category])
    assert Counter(tuple(row[field] for field in fields) for row in found) == expected


@each
def test_kernels_keep_names_and_shapes(name: str) -> None:
    fields = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", "registersPerThread")
    found = rows(name)
    kernels = [(found.strings[row["demangledName"]], *(row[field] for field in fields)) for row in found.kernels]
    assert Counter(kernels) == Counter(
        (event.name, *event.args["grid"], *event.args["block"], event.args["registers per thread"])
        for event in events(name)
        if event.category == "kernel"
    )


def test_a_users_range_that_looks_like_one_of_ours_is_the_users(tmp_path: Path) -> None:
    names = ["tracekit:", "tracekit:x", "tracekit:-1", "tracekit:7", "tracekit:0"]
    said = [
        {"ph": "X", "cat": "user_annotation", "name": name, "ts": at, "dur": 1, "pid": 7, "tid": 7}
        for at, name in enumerate(names)
    ]
    made = rows_of_processes([ProcessTrace({"traceEvents": said}, ["ours"], 7)])
    assert [made.strings[row["textId"]] for row in made.ranges] == [*names[:4], "ours"]
    assert made.numbered == 1


def test_an_evaluation_begins_with_its_node_if_hooks_open_a_range_before() -> None:
    def event(category: str, name: str, start: int, end: int) -> dict[str, object]:
        return {"ph": "X", "cat": category, "name": name, "tid": 1, "ts": float(start), "dur": float(end - start)}

    engine = "autograd::engine::evaluate_function"
    found = [
        event("user_annotation", "tracekit:0", 0, 22),
        event("cpu_op", f"{engine}: MulBackward0", 10, 18),
        event("cpu_op", "MulBackward0", 12, 16),
        event("cpu_op", f"{engine}: MulBackward0", 20, 40),
        event("user_annotation", "tracekit:1", 23, 60),
        event("cpu_op", "MulBackward0", 25, 35),
    ]
    rows = rows_of_processes([ProcessTrace({"traceEvents": found}, ("a", "b"), 1)])
    assert [(row["start"], row["end"]) for row in rows.operators] == [
        (10_000, 18_000),
        (12_000, 16_000),
        (25_000, 40_000),
        (25_000, 35_000),
    ]


def test_operators_that_tell_a_phase_are_ranges_where_a_gpu_worked() -> None:
    def event(category: str, name: str, **args: object) -> dict[str, object]:
        return {"ph": "X", "cat": category, "name": name, "ts": 1.0, "dur": 2.0, "tid": 7, "args": args}

    operators = [event("cpu_op", name) for name in ("aten::mm", "compile_file (dynamo_timed)")]
    kernel = event("kernel", "gemm", device=0, stream=7, correlation=3)
    for recorded, expected in ((operators, []), ([*operators, kernel], ["compile_file (dynamo_timed)"])):
        rows = rows_of_processes([ProcessTrace({"traceEvents": recorded}, [], 7)])
        assert [rows.strings[row["textId"]] for row in rows.tables()["NVTX_EVENTS"]] == expected

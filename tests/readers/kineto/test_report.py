"""Rows of small traces."""

from collections import Counter
from operator import attrgetter
from pathlib import Path

import pytest

import tracekit
from tests.golden import expect
from tests.readers.files import kernels, lacks
from tests.readers.kineto.traces import PID, Event, called, event, kernel, launch, marked, parsed, recorded, trace
from tests.recorded_rows import rows_of
from tracekit import causes
from tracekit.causes import OTHER_EVENT, UNKNOWN_EVENT
from tracekit.recording.provenance import Gpu, Rank
from tracekit.recording.values import COPY_KINDS


def test_texts_are_in_the_order_of_the_trace_in_every_process(tmp_path: Path) -> None:
    names = [f"aten::op{at}" for at in range(9)]
    assert recorded(tmp_path, *(event("cpu_op", name, 10 * at, 5) for at, name in enumerate(names))).texts == names


def test_operators_alone_are_explained_by_whether_the_machine_had_a_gpu(tmp_path: Path) -> None:
    remedies = {"ProfilerActivity.CUDA": [{"id": 0}], "record on a machine with a GPU": []}
    for remedy, devices in remedies.items():
        recording = recorded(tmp_path, event("cpu_op", "aten::mm", 10, 20), deviceProperties=devices)
        assert [remedy in data.remedy for data in recording.missing if data.what == "GPU work"] == [True]


def test_names_ids_and_devices(tmp_path: Path) -> None:
    named = [
        {"ph": "M", "name": "process_name", "pid": PID, "tid": 0, "args": {"name": "/opt/python3"}},
        {"ph": "M", "name": "thread_name", "pid": PID, "tid": "101", "args": {"name": "thread 101 (loader)"}},
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": 7, "args": {"name": "stream 7 "}},
    ]
    gpu = {"id": 0, "name": "H100", "computeMajor": 9, "computeMinor": 0, "numSms": 132, "totalGlobalMem": 80}
    recording = recorded(
        tmp_path,
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
    assert (recording.threads.pid.tolist(), recording.threads.tid.tolist()) == ([PID], [101])
    assert recording.process_names == {PID: "python3"}
    assert recording.thread_names == {0: "thread 101 (loader)"}
    assert recording.devices == {0: Gpu("H100", "9.0", 132, 80)}
    assert (recording.source.trace_id, recording.source.world_size) == ("77C6", 8)
    assert recording.ranks == (Rank(0, PID, 3, "distributed_info"),)
    assert recording.texts == ["aten::mm, seq = 3, sizes = [[2, 3], [], [[4], [5]]]"]
    one, copy = rows_of(recording.work)
    assert [recording.names[row["name"]] for row in (one, copy)] == ["gemm", "[CUDA memcpy Host-to-Device]"]
    assert COPY_KINDS[copy["copy_kind"]] == "Host-to-Device"
    assert (one["process"], one["graph_id"], one["graph_node_id"], copy["bytes"]) == (0, None, None, 9)


def test_modules_whose_weights_differ_are_two_though_each_trace_calls_its_first_linear_0(tmp_path: Path) -> None:
    paths = []
    for widths in ((16, 32), (32, 16)):
        rows = [called("Net_0", 0, 100)]
        for at, width in enumerate(widths):
            dims = {"Input Dims": [[3, 8], [width, 8], [width]]}
            rows += [called(f"Linear_{at}", at * 20, 15), event("cpu_op", "aten::linear", at * 20 + 2, 10, **dims)]
        paths.append(trace(tmp_path / f"{widths[0]}.json", *rows))
    dataset = tracekit.parse(paths, tmp_path / "run")
    assert sorted(dataset.calls(["module"]).module) == ["Net_0"] * 2 + [f"Net_0.Linear_{at}" for at in range(4)]
    shapes = [param["shape"] for row in dataset.table("modules").to_pylist() for param in row["params"]]
    assert sorted(shapes) == [[16, 8], [16, 8], [32, 8], [32, 8]]


def test_modules_of_with_stack_are_named_by_class_and_number(tmp_path: Path) -> None:
    calls = [("Net_0", 0, 100), ("Linear_0", 10, 20), ("Linear_1", 40, 20), ("Linear_0", 70, 20)]
    rows = [event("python_function", "model.py(3): forward", 1, 98)]
    for number, (name, ts, dur) in enumerate(calls, 1):
        rows += [called(name, ts, dur), launch(ts + 5, number), kernel(200 + number * 10, number)]
    dataset = parsed(tmp_path, *rows)
    expect(dataset, "modules")("path  class_name\nNet_0  Net\nNet_0.Linear_0  Linear\nNet_0.Linear_1  Linear")
    assert kernels(dataset, "module") == ["Net_0", "Net_0.Linear_0", "Net_0.Linear_1", "Net_0.Linear_0"]
    assert {row["inputs"] for row in dataset.table("calls").to_pylist()} == {None}
    assert "names of modules" in lacks(dataset)


def test_modules_of_one_name_are_told_apart_by_the_forward_that_ran(tmp_path: Path) -> None:
    """Classes of one name are numbered from 0 each; compilers and autograd have functions called forward, too."""
    calls = [("a.py(3)", 10), ("b.py(9)", 30), ("a.py(3)", 50), (None, 70)]
    rows = [called("Net_0", 0, 200)]
    for function, ts in calls:
        rows.append(called("Block_0", ts, 15))
        names = ["torch/nn/modules/module.py(1): _call_impl", "torch/_functorch/wrappers.py(7): forward"]
        names += [f"{function}: forward", "base.py(1): forward"] if function else []
        rows += [event("python_function", name, ts + at, 15 - 2 * at) for at, name in enumerate(names, 1)]
    rows.append(called("Other_0", 100, 10))
    rows += [event("python_function", f"{name}.py(5): forward", 101, 5 - at) for at, name in enumerate(("a", "b"))]
    dataset = parsed(tmp_path, *rows)
    expect(dataset, "modules")("""
        path             static_params
        Net_0            -
        Net_0.Block_0    {"forward": "a.py(3)"}
        Net_0.Block_0~2  {"forward": "b.py(9)"}
        Net_0.Other_0    -
    """)
    found = Counter(row["module"] for row in dataset.table("calls").to_pylist())
    # The last of the four calls can be of either, so it is of neither.
    assert found == {"Net_0": 1, "Net_0.Block_0": 2, "Net_0.Block_0~2": 1, "Net_0.Other_0": 1}
    assert {row["cause"]: row["count"] for row in dataset.table("coverage").to_pylist()}["module_unclear"] == 1


@pytest.mark.parametrize("thread", [PID, PID + 1], ids=["the_same_thread", "a_thread_of_autograd"])
def test_modules_called_by_a_node_of_autograd_run_again(tmp_path: Path, thread: int) -> None:
    """Checkpoints run modules again for the backward pass, on the thread that does it: the same modules."""
    # Forward passes go on beside other threads.
    at = 250 if thread == PID else 120
    node = "autograd::engine::evaluate_function: MulBackward0"
    calls = [("Net_0", 0, 50, PID), ("Linear_0", 10, 20, PID), ("Linear_0", 110, 20, thread), ("Net_0", at, 50, PID)]
    rows = [called(*call) for call in calls]
    rows += [event("cpu_op", node, 100, 100, thread), event("cpu_op", "MulBackward0", 102, 90, thread)]
    rows += [event("cpu_op", "aten::mm", ts + 2, 5, tid) for _, ts, _, tid in calls]
    dataset = parsed(tmp_path, *rows)
    linear = "Net_0.Linear_0"
    expect(dataset, "calls")("""
        module          phase      occurrence
        Net_0           forward    1
        Net_0           forward    2
        Net_0.Linear_0  forward    1
        Net_0.Linear_0  recompute  1
    """)
    work = Counter(row[:2] for row in kernels(dataset, "module", "phase", "op") if row[2] == "aten::mm")
    assert work == {("Net_0", "forward"): 2, (linear, "forward"): 1, (linear, "recompute"): 1}


def test_with_modules_without_stacks_says_what_to_do(tmp_path: Path) -> None:
    operator = event("cpu_op", "aten::add", 10, 5, **{"Module Hierarchy": "TOP(C)::forward.A0(A)::forward."})
    for rows in ([], [marked("top", 0, 50)]):
        recording = recorded(tmp_path, operator, *rows, with_modules=1)
        remedies = [lack.remedy for lack in recording.missing if lack.what == "modules"]
        assert ["with_stack=True" in remedy for remedy in remedies] == ([] if rows else [True])


def test_where_hooks_marked_modules_their_markers_count(tmp_path: Path) -> None:
    events = marked("top.fc", 0, 50), called("Linear_0", 1, 48), launch(10, 1), kernel(60, 1)
    assert recorded(tmp_path, *events).counters.counts == {("events", OTHER_EVENT): 1}
    dataset = parsed(tmp_path, *events)
    assert kernels(dataset, "module") == ["top.fc"]
    expect(dataset, "modules")("path\ntop\ntop.fc")


def memory(ts: float, size: int, device_type: int = 0, tid: int = PID) -> dict[str, object]:
    args = {"Bytes": size, "Device Type": device_type, "Device Id": -1, "Addr": 1}
    return {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": PID, "tid": tid, "ts": ts, "args": args}


@pytest.mark.parametrize("gpu", [0, 1])
def test_calls_tell_the_memory_that_they_allocate_and_keep(tmp_path: Path, gpu: int) -> None:
    """Of the GPU, where there are such events; those of other threads are not theirs."""
    calls = [("Net_0", 10, 90), ("Linear_0", 20, 20), ("Linear_1", 50, 20), ("Net_0", 200, 10)]
    rows = [memory(ts, size, gpu) for ts, size in ((5, 1), (15, 100), (30, 40), (35, -30), (60, -100), (150, 7))]
    rows += [memory(30, 999, gpu, tid=PID + 1), memory(30, 5_000)] if gpu else []
    events = *(called(*call) for call in calls), *rows
    assert recorded(tmp_path, *events).threads.tid.tolist() == [PID]
    expect(parsed(tmp_path, *events), "calls")("""
        module          allocated_bytes  retained_bytes
        Net_0           140              10
        Net_0           0                0
        Net_0.Linear_0  40               10
        Net_0.Linear_1  0                -100
        """)


OTHER = {"pid": PID + 1}
LARGE = {"device": 1 << 31, "grid": [1 << 31, 1 << 70, 3], "registers per thread": 1 << 40}
#: Events, columns of what is read of them, and what is counted.
ODD: dict[str, tuple[list[Event], dict[str, list], dict]] = {
    "what is needed, what is not, and what is not known": (
        [
            *(event("cpu_op", "aten::mm", 10, 20), launch(12, 5), kernel(20, 5)),
            event("python_function", "model.py(3): forward", 1, 98),
            *(event(category, "x", 1, 98) for category in ("gpu_user_annotation", "Trace", "cuda_sync", "odd", "")),
            {"ph": "X", "name": "gemm", "pid": PID, "tid": PID, "ts": 1, "dur": 1},
            *({**place, "cat": "cpu_op", "name": "x", "pid": PID, "tid": PID, "ts": 1} for place in ({}, {"ph": "B"})),
            *({"ph": ph, "cat": "ac2g", "name": "x", "pid": PID, "tid": PID, "ts": 1} for ph in "sfitMC"),
        ],
        {"ranges.start_ns": [0], "launches.correlation_id": [5], "work.start_ns": [10_000]},
        {("events", OTHER_EVENT): 4, ("events", UNKNOWN_EVENT): 5},
    ),
    "work that several processes may have launched": (
        [launch(12, 5), launch(12, 5) | OTHER, launch(13, 6) | OTHER, kernel(20, 5), kernel(30, 6)],
        {"work.process": [-1, 1]},
        {("kernels", causes.PROCESS_UNKNOWN): 1},
    ),
    "numbers too large for their columns": (
        [launch(12, 5), kernel(20, 5, **LARGE)],
        {"work.device": [-1], "work.grid_x": [-1], "work.grid_y": [-1], "work.grid_z": [3], "work.registers": [-1]},
        {},
    ),
    "ranges that end before they start or are far away": (
        [event("cpu_op", "aten::mm", *times) for times in ((10, 20), (40, -20), (1e13, 20))],
        {"ranges.start_ns": [0, 30_000], "ranges.end_ns": [20_000, 30_000]},
        {("ranges", causes.ENDS_BEFORE_START): 1, ("ranges", causes.ABSURD_TIME): 1},
    ),
    "work that ends before it starts or is far away": (
        [launch(10, 5), kernel(20, 5) | {"dur": -1}, kernel(30, 5) | {"ts": 1e13}],
        {"work.start_ns": [10_000], "work.end_ns": [10_000]},
        {("kernels", causes.ENDS_BEFORE_START): 1, ("kernels", causes.ABSURD_TIME): 1},
    ),
    "calls without a correlation id": (
        [launch(12, 0), launch(13, 5)],
        {"launches.correlation_id": [5]},
        {("launches", causes.NO_CORRELATION_ID): 1},
    ),
    "annotations that had not finished": (
        [event("user_annotation", name, ts, 5, finished=not ts) for ts, name in enumerate(("whole", "cut"))],
        {"ranges.open": [False, True]},
        {("ranges", causes.NEVER_ENDED): 1},
    ),
}


@pytest.mark.parametrize("what", ODD)
def test_what_is_odd_is_counted_and_not_believed(tmp_path: Path, what: str) -> None:
    events, columns, counts = ODD[what]
    recording = recorded(tmp_path, *events)
    assert {name: attrgetter(name)(recording).tolist() for name in columns} == columns
    assert recording.counters.counts == counts


@pytest.mark.parametrize(
    ("types", "sizes"), [(["float"], ', sizes = [[2, 3]], types = ["float32"]'), ([], ""), (None, "")]
)
def test_dimensions_of_2020_count_where_their_types_were_recorded(
    tmp_path: Path, types: list[str] | None, sizes: str
) -> None:
    args = {"Input dims": [[2, 3]]} | ({"Input type": types} if types is not None else {})
    assert recorded(tmp_path, event("Operator", "aten::mm", 10, 20, **args)).texts == [f"aten::mm{sizes}"]

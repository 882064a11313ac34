"""Chrome traces of replays beside traces of graph captures: events and the rows that they become."""

from __future__ import annotations

import gzip
import json
import time
from collections import Counter
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

import tracekit
from tests.golden import check
from tests.needs import TRACES
from tests.readers.kineto.traces import PID, event, kernel, launch, trace
from tracekit.analyses import roofline, shapes
from tracekit.errors import ReportError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tracekit.dataset.opening import Dataset

#: Nanoseconds since 1970 that both traces count from.
BASE = 1_775_000_000_000_000_000
BEGIN, END = "cudaStreamBeginCapture", "cudaStreamEndCapture"
ROWS = """
    name  module    method       call_id  graph_node_id  cause
    gemm  top.a     graph_order  1        8589934592     -
    gelu  top.b     graph_order  2        8589934593     -
    gemm  top.b     graph_order  2        8589934594     -
    gemm  top.a     graph_order  1        8589934592     -
    gelu  top.b     graph_order  2        8589934593     -
    gemm  top.b     graph_order  2        8589934594     -
"""


def module(path: str, ts: float, dur: float) -> dict[str, object]:
    return event("user_annotation", f"{{'Module': '{path}'}}", ts, dur)


def captured(ts: float, *names: str | None, at: int = 1000) -> list[dict[str, object]]:
    """Launches during a graph capture: by ROCm with the name of the kernel, by CUDA without."""
    args = [{} if name is None else {"kernel": name} for name in names]
    return [
        launch(ts, at, BEGIN),
        *(
            event("cuda_runtime", "cudaLaunchKernel", ts + 10 * n, 1, correlation=at + n, **more)
            for n, more in enumerate(args, 1)
        ),
        launch(ts + 10 * len(names) + 10, at + len(names) + 1, END),
    ]


def replayed(ts: float, correlation: int, *names: str, graph: int = 0) -> list[dict[str, object]]:
    """A launch of a graph and its kernels, with ids of nodes if the graph has an id."""
    ids = [{"graph id": graph, "graph node id": (graph << 32) + node if graph else 0} for node in range(len(names))]
    launched = [kernel(ts + 10 + 10 * n, correlation, name, **ids[n]) for n, name in enumerate(names)]
    return [launch(ts, correlation, "cudaGraphLaunch"), *launched]


def step(number: int, ts: float, dur: float) -> dict[str, object]:
    return event("user_annotation", f"ProfilerStep#{number}", ts, dur)


def parsed(tmp_path: Path, replay: Sequence[Any], *captures: Sequence[Any], **metadata: object) -> Dataset:
    report = trace(tmp_path / "replay.json", *replay, baseTimeNanoseconds=BASE, **metadata)
    paths = [
        trace(tmp_path / f"capture{n}.json", *events, baseTimeNanoseconds=BASE) for n, events in enumerate(captures)
    ]
    return tracekit.parse(report, tmp_path / "out", graph_captures=paths, force=True)


def causes(dataset: Dataset) -> list[str | None]:
    return [row["cause"] for row in dataset.table("kernels", ["cause"]).to_pylist()]


CAPTURE: list[dict[str, Any]] = [
    step(9, 0, 100),
    module("top", 5, 90),
    module("top.a", 15, 8),
    module("top.b", 25, 18),
    *captured(10, None, None, None),
]


@pytest.mark.parametrize("graph", [2, 0])
@pytest.mark.parametrize("named", [True, False])
def test_kernels_of_a_replay_belong_to_the_modules_of_the_graph_capture(
    tmp_path: Path, graph: int, named: bool
) -> None:
    names = ["gemm", "gelu", "gemm"]
    capture = [*CAPTURE[:4], *captured(10, *names)] if named else CAPTURE
    runs = [replayed(at, number, *names, graph=graph) for number, at in enumerate((1000, 2000), 1)]
    replay = [step(0, 990, 100), *runs[0], step(1, 1990, 100), *runs[1]]
    dataset = parsed(tmp_path, replay, capture)
    rows = ROWS if graph else ROWS.replace("8589934592", "-").replace("8589934593", "-").replace("8589934594", "-")
    by_start = sorted(dataset.table("kernels").to_pylist(), key=lambda row: int(row["kernel_id"]))
    columns = rows.split("\n")[1].split()
    found = [[str(row[name]) if row[name] is not None else "-" for name in columns] for row in by_start]
    assert found == [line.split() for line in rows.splitlines()[2:] if line.strip()]
    assert [row["step_id"] for row in by_start] == [0, 0, 0, 1, 1, 1]
    check(dataset, "steps", "index  kind\n0  train\n1  train")
    calls = dataset.table("calls").to_pylist()
    assert {(row["module"], row["phase"]) for row in calls} == {(path, "capture") for path in ("top", "top.a", "top.b")}
    assert [source["name"] for source in dataset.manifest["graph_captures"]] == ["capture0.json"]
    assert "graph captures" not in {lack["what"] for lack in dataset.manifest["lacks"]}


def test_without_the_graph_capture_the_cause_names_the_option(tmp_path: Path) -> None:
    dataset = parsed(tmp_path, replayed(1000, 1, "gemm", graph=2))
    assert causes(dataset) == ["graph_unmapped"]
    [row] = [row for row in dataset.manifest["coverage"] if row["cause"] == "graph_unmapped"]
    assert (row["count"], "--graph-captures" in row["advice"]) == (1, True)
    [lack] = [lack for lack in dataset.manifest["lacks"] if lack["what"] == "graph captures"]
    assert "--graph-captures" in lack["remedy"]


def test_a_graph_capture_in_the_same_trace_needs_no_option(tmp_path: Path) -> None:
    dataset = parsed(tmp_path, [*CAPTURE[1:], *replayed(1000, 1, "gemm", "gelu", "gemm", graph=2)])
    assert dataset.table("kernels", ["module"]).column("module").to_pylist() == ["top.a", "top.b", "top.b"]


@pytest.mark.parametrize(
    ("names", "late"),
    [
        (["gemm", "gelu"], 0),
        (["gemm", "gemm", "gelu"], 0),
        (["gemm", "gelu", "gemm", "gemm"], 0),
        (["gemm", "gelu", "gemm"], 5000),
    ],
    ids=["fewer", "another order", "more", "captured later"],
)
def test_a_graph_capture_that_does_not_agree_gives_no_module(tmp_path: Path, names: list[str], late: int) -> None:
    capture = [module("top", late, 90), *captured(late + 10, "gemm", "gelu", "gemm")]
    dataset = parsed(tmp_path, replayed(1000, 1, *names, graph=2), capture)
    assert set(causes(dataset)) == {"graph_unmatched"}


def test_graphs_of_several_batch_sizes_have_modules_but_no_call(tmp_path: Path) -> None:
    captures = [CAPTURE, [row | {"ts": row["ts"] + 200} for row in CAPTURE]]
    dataset = parsed(tmp_path, replayed(1000, 1, "gemm", "gelu", "gemm", graph=4), *captures)
    rows = dataset.table("kernels", ["module", "call_id", "method"]).to_pylist()
    assert rows == [{"module": path, "call_id": None, "method": "graph_order"} for path in ("top.a", "top.b", "top.b")]


@pytest.mark.parametrize("instantiated", [True, False])
def test_launches_without_work_are_a_graph_capture_if_they_are_given_as_one(tmp_path: Path, instantiated: bool) -> None:
    names = [["gemm", "gelu"], ["head"]]
    capture: list[dict[str, object]] = []
    for number, piece in enumerate(names if instantiated else names[:1]):
        at = 100 * number
        capture += [module(f"top.{number}", at + 5, 80), *captured(at + 10, *piece, at=1000 + at)[1:-1]]
        capture += [launch(at + 70, 1050 + at, "cudaGraphInstantiate")] if instantiated else []
    capture += [launch(300, 1500), kernel(310, 1500, "eager")]
    replay = [*replayed(1000, 1, *names[0], graph=2), *replayed(2000, 2, *names[1], graph=4)]
    rows = parsed(tmp_path, replay, capture).table("kernels", ["full_name", "module"]).to_pylist()
    head = "top.1" if instantiated else None
    assert {(row["full_name"], row["module"]) for row in rows} == {("gemm", "top.0"), ("gelu", "top.0"), ("head", head)}


def test_ids_of_nodes_in_both_traces_are_proof(tmp_path: Path) -> None:
    capture = [module("top", 0, 100), module("top.a", 10, 20), launch(15, 1), module("top.b", 40, 20), launch(45, 2)]
    ids = [{"graph id": 2, "graph node id": (2 << 32) + node} for node in (0, 1)]
    capture += [kernel(20 + 30 * node, node + 1, "gemm", **ids[node]) for node in (0, 1)]
    dataset = parsed(tmp_path, replayed(1000, 5, "gemm", "gemm", "gemm", graph=2), capture)
    rows = sorted(dataset.table("kernels").to_pylist(), key=lambda row: int(row["kernel_id"]))
    assert [(row["module"], row["method"], row["cause"]) for row in rows] == [
        ("top.a", "graph_node", None),
        ("top.b", "graph_node", None),
        (None, None, "graph_unmapped"),
    ]


@pytest.mark.parametrize("sizes", [1, 2])
def test_costs_of_replays_that_no_single_call_captured_are_unknown(tmp_path: Path, sizes: int) -> None:
    names = ["void at::native::vectorized_elementwise_kernel<4>(int)"] * 3
    captures = [[row | {"ts": row["ts"] + 200 * at} for row in CAPTURE] for at in range(sizes)]
    replay = [row for at in range(3) for row in replayed(1000 + 100 * at, at + 1, *names, graph=4)]
    dataset = parsed(tmp_path, replay, *captures)
    rows = {row["path"]: row for row in roofline.frame(dataset).to_dict("records")}
    assert {path: row["self_ns"] for path, row in rows.items()} == {"top": 0, "top.a": 15_000, "top.b": 30_000}
    for path in ("top.a", "top.b"):
        assert pd.isna(rows[path]["runs"]) == pd.isna(rows[path]["flops"]) == (sizes > 1)
        assert sizes > 1 or rows[path]["runs"] == 3


@pytest.mark.parametrize(("sizes", "time"), [(1, 15_000), (2, None)])
def test_shapes_of_calls_of_which_some_were_replayed_have_no_time(tmp_path: Path, sizes: int, time: int | None) -> None:
    captures = [[row | {"ts": row["ts"] + 200 * at} for row in CAPTURE] for at in range(sizes)]
    dataset = parsed(tmp_path, replayed(1000, 1, *["gemm"] * 3, graph=4), *captures)
    row = shapes.frame(dataset).set_index("path").loc["top"]
    assert row["calls"] == sizes
    assert (None if pd.isna(row["gpu_time_ns"]) else row["gpu_time_ns"]) == time
    assert pd.isna(row["steps"]) == (time is None)


def test_passes_through_graphs_of_several_sizes_need_no_ranges_if_ids_rise(tmp_path: Path) -> None:
    captures, graphs = [], {}
    for size, begin in ((8, 0), (4, 1000)):
        rows: list[dict[str, object]] = [event("user_annotation", f"capture_{size}", begin, 900)]
        for number in range(3):
            at = begin + 100 * number
            rows += [
                module(f"top.{number}", at + 5, 80),
                *captured(at + 10, *["gemm"] * (3 - number // 2), at=2000 + at),
            ]
            graphs[size, number] = 2 * len(graphs) + 2
        captures.append(rows)
    replay, at = [], 5000
    for size in (4, 8, 8):
        for number in range(3):
            replay += replayed(at, at, *["gemm"] * (3 - number // 2), graph=graphs[size, number])
            at += 100
    dataset = parsed(tmp_path, replay, *captures)
    rows = sorted(dataset.table("kernels", ["kernel_id", "module"]).to_pylist(), key=lambda row: int(row["kernel_id"]))
    assert [row["module"] for row in rows] == [*["top.0"] * 3, *["top.1"] * 3, *["top.2"] * 2] * 3


@pytest.mark.parametrize(("other", "known"), [(None, True), ("head", False)])
def test_repetitions_without_ids_and_ranges_are_of_the_only_graph(
    tmp_path: Path, other: str | None, known: bool
) -> None:
    runs = [row for at in range(3) for row in replayed(1000 * (at + 1), at + 1, "gemm", "gelu", "gemm")]
    runs += replayed(5000, 9, other) if other else []
    assert (set(causes(parsed(tmp_path, runs, CAPTURE))) == {None}) == known


def test_rocm_sets_and_copies_memory_with_kernels(tmp_path: Path) -> None:
    calls = [launch(10 * at, at, f"hip{name}") for at, name in enumerate(("MemsetAsync", "MemcpyAsync"), 3)]
    capture = [
        module("top", 5, 90),
        launch(10, 1, "hipStreamBeginCapture"),
        *calls,
        launch(60, 9, "hipStreamEndCapture"),
    ]
    names = ["__amd_rocclr_fillBufferAligned", "__amd_rocclr_copyBuffer"]
    assert causes(parsed(tmp_path, replayed(1000, 1, *names), capture)) == [None, None]
    assert set(causes(parsed(tmp_path, replayed(1000, 1, *reversed(names)), capture))) == {"graph_unmatched"}


@pytest.mark.parametrize("compressed", [False, True])
def test_a_trace_given_twice_counts_once(tmp_path: Path, compressed: bool) -> None:
    replay = [*replayed(1000, 1, "gemm", "gelu", "gemm", graph=2), *replayed(2000, 2, "a", "b", "c", graph=4)]
    report = trace(tmp_path / "replay.json", *replay[:4], baseTimeNanoseconds=BASE)
    paths = [trace(tmp_path / "a.json", *CAPTURE, baseTimeNanoseconds=BASE), tmp_path / f"b.json{'.gz' * compressed}"]
    content = paths[0].read_bytes()
    paths[1].write_bytes(gzip.compress(content) if compressed else content)
    dataset = tracekit.parse(report, tmp_path / "out", graph_captures=[*paths, *paths])
    assert dataset.table("kernels", ["call_id"]).column("call_id").null_count == 0
    assert dataset.table("calls").num_rows == 3
    # One graph capture makes one graph: a copy of it is no second one.
    trace(report, *replay, baseTimeNanoseconds=BASE)
    assert set(causes(tracekit.parse(report, tmp_path / "two", graph_captures=paths))) == {"graph_unmatched"}


@pytest.mark.parametrize("edges", [True, False])
def test_a_copy_of_the_report_adds_nothing(tmp_path: Path, edges: bool) -> None:
    events = [*CAPTURE, *replayed(1000, 1, "gemm", "gelu", "gemm", graph=2)]
    events = [row for row in events if edges or row["name"] not in (BEGIN, END)]
    report = trace(tmp_path / "replay.json", *events, baseTimeNanoseconds=BASE)
    copy = tmp_path / "copy.json.gz"
    copy.write_bytes(gzip.compress(report.read_bytes()))
    dataset = tracekit.parse(report, tmp_path / "out", graph_captures=[copy])
    assert dataset.table("kernels", ["call_id"]).column("call_id").null_count == (0 if edges else 3)
    assert dataset.table("calls").num_rows == 3


def test_a_graph_changed_after_its_graph_capture_is_counted_as_updated(tmp_path: Path) -> None:
    capture = [*CAPTURE, launch(300, 2000, "cudaGraphExecUpdate")]
    dataset = parsed(tmp_path, replayed(1000, 1, "gemm", "gelu", "gemm", graph=2), capture)
    assert {row["cause"]: row["count"] for row in dataset.manifest["coverage"]}.get("graph_updated") == 3


def test_sessions_that_seem_to_overlap_have_no_common_clock(tmp_path: Path) -> None:
    dataset = parsed(tmp_path, replayed(15, 1, "gemm", "gelu", "gemm", graph=2), CAPTURE)
    assert causes(dataset) == [None] * 3
    assert max(row["start_ns"] for row in dataset.table("calls").to_pylist()) < 0


def test_what_was_captured_is_no_step_of_the_report(tmp_path: Path) -> None:
    dataset = parsed(tmp_path, replayed(1000, 1, "gemm", "gelu", "gemm", graph=2), CAPTURE)
    assert dataset.table("steps").num_rows == 0
    assert dataset.table("kernels").num_rows == 3


def test_graphs_replayed_in_both_traces_are_told_apart(tmp_path: Path) -> None:
    names = ["gemm", "gelu"]
    capture: list[dict[str, object]] = []
    for number, graph in enumerate((2, 4)):
        at = 1000 * number
        capture += [module(f"top.{number}", at + 5, 80), *captured(at + 10, None, None, at=500 * number + 1000)]
        capture += replayed(at + 200, number + 1, *names, graph=graph)
    replay = [*replayed(5000, 10, *names, graph=4), *replayed(6000, 11, *names, graph=2)]
    dataset = parsed(tmp_path, replay, capture)
    rows = sorted(dataset.table("kernels", ["kernel_id", "module"]).to_pylist(), key=lambda row: int(row["kernel_id"]))
    assert [row["module"] for row in rows] == ["top.1", "top.1", "top.0", "top.0"]


def test_many_graphs_that_follow_from_each_other_take_no_time(tmp_path: Path) -> None:
    # Each is replayed before the next is captured: the first is certain, then the second, ….
    report: list[dict[str, object]] = []
    for number in range(1000):
        at = 100 * number
        report += [module(f"top.{number}", at, 50), *captured(at + 5, None, None, at=10 * number + 1)]
        report += replayed(at + 60, 10 * number + 9, "gemm", "gelu", graph=2 * number + 2)
    begin = time.process_time()
    rows = parsed(tmp_path, report).table("kernels", ["start_ns", "module"]).sort_by("start_ns")
    assert time.process_time() - begin < 10
    assert rows.column("module").to_pylist() == [f"top.{number}" for number in range(1000) for _ in range(2)]


def test_more_graphs_than_graph_captures_are_not_told_apart(tmp_path: Path) -> None:
    replay = [*replayed(1000, 1, "gemm", "gelu", "gemm", graph=2), *replayed(2000, 2, "gemm", "gelu", "gemm", graph=4)]
    assert set(causes(parsed(tmp_path, replay, CAPTURE))) == {"graph_unmatched"}


@pytest.mark.parametrize("ranges", [True, False])
def test_replays_that_run_other_kernels_are_of_another_graph(tmp_path: Path, ranges: bool) -> None:
    # A trace of CUDA names no kernels of the graph capture: by number and kind, both replays agree with the only one.
    replay = [*replayed(1000, 1, "gemm", "gelu", "gemm"), *replayed(2000, 2, "norm", "rope", "norm")]
    replay += [event("user_annotation", "execute", at, 100) for at in (990, 1990) if ranges]
    assert set(causes(parsed(tmp_path, replay, CAPTURE))) == {"graph_unmatched"}


@pytest.mark.parametrize("graphs", [(0, 0, 0, 0), (2, 4, 6, 8)])
def test_pieces_that_are_alike_are_told_apart_by_their_order(tmp_path: Path, graphs: tuple[int, ...]) -> None:
    names = [["embed"], ["gemm", "gelu"], ["gemm", "gelu"], ["head"]]
    capture: list[dict[str, object]] = [event("user_annotation", "capture_8_PIECEWISE", 0, 400)]
    replay: list[dict[str, object]] = []
    for number, (piece, graph) in enumerate(zip(names, graphs, strict=True)):
        at = 100 * number
        capture += [module(f"top.{number}", at + 5, 80), *captured(at + 10, *piece, at=1000 + at)]
        for run in range(2):
            replay += replayed(1000 * (run + 1) + at, 10 * run + number + 1, *piece, graph=graph)
    replay += [event("user_annotation", "execute_context_0", at, 400) for at in (990, 1990)]
    dataset = parsed(tmp_path, replay, capture)
    rows = sorted(dataset.table("kernels", ["kernel_id", "module"]).to_pylist(), key=lambda row: int(row["kernel_id"]))
    assert [row["module"] for row in rows] == ["top.0", "top.1", "top.1", "top.2", "top.2", "top.3"] * 2
    # One piece less was captured: the like ones cannot be told apart.
    fewer = [row for row in capture if not 100 <= float(str(row["ts"])) < 200]
    rows = parsed(tmp_path, replay, fewer).table("kernels", ["full_name", "module"]).to_pylist()
    assert {(row["full_name"], row["module"]) for row in rows} == {
        ("embed", "top.0"),
        ("head", "top.3"),
        ("gemm", None),
        ("gelu", None),
    }


@pytest.mark.parametrize(("graphs", "replays"), [((0, 0, 0, 0), (1,)), ((2, 4, 6, 8), (0, 1))])
@pytest.mark.parametrize("alike", [True, False])
def test_a_part_of_a_model_may_look_like_another_model(
    tmp_path: Path, graphs: tuple[int, ...], replays: tuple[int, ...], alike: bool
) -> None:
    """The last range replays some pieces of the first model; the second has as many, and they may look alike."""
    sizes = [2, 2, 2], [2 if alike else 3] * len(replays)
    capture: list[dict[str, object]] = []
    for at, (model, pieces) in zip((0, 500), enumerate(sizes), strict=True):
        capture.append(event("user_annotation", f"capture_{model}", at, 400))
        for number, size in enumerate(pieces):
            start = at + 100 * number
            capture += [
                module(f"model{model}.{number}", start + 5, 80),
                *captured(start + 10, *[None] * size, at=1000 + start),
            ]
    replay = [event("user_annotation", "execute", 2000, 300)]
    for place, number in enumerate(replays):
        replay += replayed(2010 + 100 * place, place + 1, "gemm", "gelu", graph=graphs[number])
    found = parsed(tmp_path, replay, capture).table("kernels", ["module"]).column("module").to_pylist()
    assert {*found} <= {None, *(f"model0.{number}" for number in replays)}


def test_a_step_of_several_small_graphs_may_look_like_another_model(tmp_path: Path) -> None:
    capture: list[dict[str, object]] = []
    for number, (path, begin, dur) in enumerate((("a", 0, 90), ("b.0", 200, 190), ("b.1", 300, 0), ("a", 500, 90))):
        at = 500 if number == 3 else 200 + 100 * (number - 1) if number else 0
        capture += [event("user_annotation", "capture", begin, dur)] if dur else []
        capture += [module(path, at + 5, 80), *captured(at + 10, None, at=1000 + at)]
    replay = [event("user_annotation", "execute", 2000, 300)]
    replay += [*replayed(2010, 1, "gemm", graph=2), *replayed(2110, 2, "gemm", graph=8)]
    found = parsed(tmp_path, replay, capture).table("kernels", ["module"]).column("module").to_pylist()
    assert {*found} <= {None, "a"}


def test_a_replay_that_was_not_recorded_whole_tells_nothing(tmp_path: Path) -> None:
    replay = [*replayed(1000, 1, "gemm", "gelu", "gemm", graph=2), *replayed(2000, 2, "gemm", "gelu", graph=2)]
    assert set(causes(parsed(tmp_path, replay, CAPTURE))) == {None}


def test_nodes_that_ran_something_else_later_are_unknown(tmp_path: Path) -> None:
    replay = [*replayed(1000, 1, "gemm", "norm", "gemm", graph=2), *replayed(2000, 2, "gemm", "gelu", "gemm", graph=2)]
    rows = parsed(tmp_path, replay, CAPTURE).table("kernels", ["full_name", "module"]).to_pylist()
    assert {(row["full_name"], row["module"]) for row in rows if row["full_name"] != "gemm"} == {
        ("norm", None),
        ("gelu", None),
    }
    named = [*CAPTURE[:4], *captured(10, "gemm", "gelu", "gemm")]
    assert set(causes(parsed(tmp_path, replay, named))) == {"graph_unmatched"}


def test_two_graphs_that_claim_one_graph_capture_are_unknown(tmp_path: Path) -> None:
    capture = [module("top.0", 0, 80), *captured(10, None, at=1000), *replayed(100, 1, "gemm", graph=2)]
    capture += [module("top.1", 200, 80), *captured(210, None, at=1100)]
    replay = [row for at in (1, 2, 3) for row in replayed(1000 * at, at, "gemm", graph=2 * at)]
    rows = parsed(tmp_path, replay, capture).table("kernels", ["start_ns", "module"]).sort_by("start_ns")
    assert rows.column("module").to_pylist() == ["top.0", None, None]


def test_a_graph_capture_with_nodes_added_by_hand_tells_nothing(tmp_path: Path) -> None:
    capture = [module("top", 0, 90), *captured(10, None, None)]
    by_hand = [*capture, launch(25, 1900, "cudaGraphAddKernelNode")]
    assert set(causes(parsed(tmp_path, replayed(1000, 1, "gemm", "gelu", graph=2), capture))) == {None}
    assert None not in causes(parsed(tmp_path, replayed(1000, 1, "gemm", "gelu", graph=2), by_hand))


def test_graph_captures_of_one_process_say_nothing_about_another(tmp_path: Path) -> None:
    other = [row | ({"pid": PID + 1} if row["pid"] == PID else {}) for row in replayed(2000, 2, "gemm", graph=4)]
    replay = [*replayed(1000, 1, "gemm", graph=2), *other]
    dataset = parsed(tmp_path, replay, [module("top", 0, 90), *captured(10, None)])
    rows = dataset.table("kernels", ["pid", "module"]).to_pylist()
    assert {(row["pid"], row["module"]) for row in rows} == {(PID, "top"), (PID + 1, None)}


def test_work_of_the_report_was_not_launched_by_calls_of_another_session(tmp_path: Path) -> None:
    # Both sessions count their calls from the same number; the call that launched this kernel was not recorded.
    replay = [*replayed(1000, 1, "gemm", "gelu", "gemm", graph=2), kernel(3000, 1001, "lost")]
    rows = parsed(tmp_path, replay, CAPTURE).table("kernels", ["full_name", "module"]).to_pylist()
    assert {row["full_name"]: row["module"] for row in rows}["lost"] is None


def test_copies_with_ids_are_placed_on_any_stream(tmp_path: Path) -> None:
    copy = launch(32, 60, "cudaMemcpyAsync")
    rows = [module("top.a", 15, 8), module("top.b", 25, 18), launch(10, 50, BEGIN), launch(18, 51), copy]
    capture = [*rows, launch(34, 61, "cudaStreamWaitEvent"), launch(50, 62, END)]
    for node, expected in ((8589934593, "top.b"), (0, None)):
        args = {"device": 0, "stream": 8, "correlation": 1, "graph id": 2, "graph node id": node}
        copied = event("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 1005, 1, "stream 8", **args) | {"pid": 0}
        found = parsed(tmp_path, [*replayed(1000, 1, "gemm", graph=2), copied], capture).table("kernels").to_pylist()
        assert {(row["kind"], row["module"]) for row in found} == {("kernel", "top.a"), ("memcpy", expected)}


def test_branches_on_several_streams_need_ids_of_nodes(tmp_path: Path) -> None:
    capture = [*CAPTURE, launch(22, 50, "cudaStreamWaitEvent")]
    for graph, expected in ((2, ["top.a", "top.b", "top.b"]), (0, [None] * 3)):
        replay = replayed(1000, 1, "gemm", "gelu", "gemm", graph=graph)
        rows = parsed(tmp_path, replay, capture).table("kernels", ["module"]).column("module").to_pylist()
        assert rows == expected


def test_without_ids_branches_show_by_their_streams(tmp_path: Path) -> None:
    # The calls by which streams wait for each other lie before and after the launches: in no graph capture.
    capture = [module("top.a", 15, 8), module("top.b", 25, 8), launch(20, 51), launch(30, 52)]
    launched = [launch(1000, 1, "cudaGraphLaunch"), *(kernel(at, 1, "gemm") for at in (1010, 1020))]
    for stream, known in ((7, True), (8, False)):
        replay = [*launched[:2], launched[2] | {"args": {**launched[2]["args"], "stream": stream}}]  # type: ignore[dict-item]
        assert (set(causes(parsed(tmp_path, replay, capture))) == {None}) == known


def test_a_graph_capture_of_another_process_or_rank_is_refused(tmp_path: Path) -> None:
    other = [row | {"pid": PID + 1} for row in CAPTURE]
    with pytest.raises(
        ReportError, match=r"capture0.json: is of process 101, but replay.json is of process 100; give the"
    ):
        parsed(tmp_path, replayed(1000, 1, "gemm", "gelu", "gemm"), other)
    path = trace(tmp_path / "capture.json", *CAPTURE, distributedInfo={"rank": 1})
    report = trace(tmp_path / "replay.json", *replayed(1000, 1, "gemm"), distributedInfo={"rank": 0})
    with pytest.raises(
        ReportError, match=r"is of process 100 \(rank 1\), but replay.json is of process 100 \(rank 0\)"
    ):
        tracekit.parse(report, tmp_path / "out", graph_captures=[path], force=True)


def test_every_rank_takes_its_own_graph_captures(tmp_path: Path) -> None:
    def of_rank(rank: int, name: str, rows: Sequence[dict[str, object]]) -> Path:
        rows = [row | ({"pid": PID + rank} if row["pid"] == PID else {}) for row in rows]
        return trace(tmp_path / f"{name}{rank}.json", *rows, distributedInfo={"rank": rank}, baseTimeNanoseconds=BASE)

    reports, captures = [], []
    for rank in (0, 1, 2):
        reports.append(of_rank(rank, "replay", replayed(1000, 1, "gemm", graph=2)))
        if rank < 2:
            captures.append(of_rank(rank, "capture", [module(f"top.{rank}", 5, 90), *captured(10, "gemm")]))
    dataset = tracekit.parse(reports, tmp_path / "out", graph_captures=captures)
    rows = dataset.table("kernels", ["rank", "module", "cause"]).to_pylist()
    assert sorted((row["rank"], row["module"], row["cause"]) for row in rows) == [
        (0, "top.0", None),
        (1, "top.1", None),
        (2, None, "graph_unmapped"),
    ]
    lacks = [{lack["what"]: lack["remedy"] for lack in entry["lacks"]} for entry in dataset.manifest["reports"]]
    assert [lack.get("graph captures", "").partition(";")[0] for lack in lacks] == [
        "",
        "",
        "those given are of other processes",
    ]


def test_a_folder_of_traces_and_what_is_none(tmp_path: Path) -> None:
    report = trace(tmp_path / "replay.json", *replayed(1000, 1, "gemm", "gelu", "gemm"), baseTimeNanoseconds=BASE)
    folder = tmp_path / "capture_traces"
    folder.mkdir()
    with pytest.raises(ReportError, match="is a folder without traces"):
        tracekit.parse(report, tmp_path / "out", graph_captures=[folder])
    trace(folder / "bs_8_rank0.json", *CAPTURE, baseTimeNanoseconds=BASE)
    dataset = tracekit.parse(report, tmp_path / "out", graph_captures=[folder])
    assert causes(dataset) == [None] * 3
    trace(folder / "none.json", *CAPTURE[:3], launch(10, 1), kernel(20, 1))
    with pytest.raises(ReportError, match=r"absent.json: does not exist"):
        tracekit.parse(report, tmp_path / "out", graph_captures=[folder / "absent.json"], force=True)
    with pytest.raises(ReportError, match=r"none.json: holds no graph capture; expected a Chrome trace in which"):
        tracekit.parse(report, tmp_path / "out", graph_captures=[folder / "none.json"], force=True)


def test_modules_that_several_traces_number_anew_are_not_one(tmp_path: Path) -> None:
    def numbered(name: str, ts: float, dur: float) -> dict[str, object]:
        return event("python_function", f"nn.Module: {name}", ts, dur)

    capture = [numbered("Net_0", 5, 90), numbered("Linear_0", 15, 8), *captured(10, "gemm", "gelu")]
    inside = [numbered("Net_0", 990, 100), *replayed(1000, 1, "gemm", "gelu", graph=2)]
    head = [numbered("Linear_0", 1100, 50), launch(1110, 7), kernel(1120, 7, "head")]
    dataset = parsed(tmp_path, [*inside, *head], capture)
    rows = dataset.table("kernels", ["full_name", "module"]).to_pylist()
    assert {(row["full_name"], row["module"]) for row in rows} == {
        ("gemm", "Net_0.Linear_1"),
        ("gelu", "Net_0"),
        ("head", "Linear_0"),
    }


@pytest.mark.traces
def test_a_real_replay_beside_its_launches_is_the_same_in_all_sums(tmp_path: Path) -> None:
    """The graph capture is made of the replay's kernels, as ROCm would have recorded it; the replay is vLLM's."""
    report = TRACES / "kineto" / "vllm_graph_decode_mi300x.json.gz"
    events = json.loads(gzip.decompress(report.read_bytes()))
    base, rows = events["baseTimeNanoseconds"], [row for row in events["traceEvents"] if row.get("ph") == "X"]
    [replay] = [row for row in rows if row["name"] == "hipGraphLaunch"]
    work = [row for row in rows if row["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")]
    ran = sorted((row for row in work if _id(row) == _id(replay)), key=lambda row: float(row["ts"]))
    begin = float(replay["ts"]) - 1_000_000
    layers = [module(f"top.{at}", begin + 10 * (at + 1) - 1, 8) for at in range(len(ran))]
    capture = [*layers, *captured(begin, *(row["name"] for row in ran), at=10**9)]
    path = trace(
        tmp_path / "capture.json", *({**row, "pid": replay["pid"]} for row in capture), baseTimeNanoseconds=base
    )
    dataset = tracekit.parse(report, tmp_path / "out", graph_captures=[path])
    kernels = sorted(dataset.table("kernels").to_pylist(), key=lambda row: int(row["kernel_id"]))
    assert Counter(row["full_name"] for row in kernels) == Counter(row["name"] for row in work)
    assert sum(row["dur_ns"] for row in kernels) == sum(round(Fraction(str(row["dur"])) * 1000) for row in work)
    replayed_rows = [row for row in kernels if row["method"] == "graph_order"]
    assert [row["module"] for row in replayed_rows] == [f"top.{at}" for at in range(len(ran))]
    alone = tracekit.parse(report, tmp_path / "alone")
    same = ["kernel_id", "start_ns", "dur_ns", "full_name", "step_id", "stream", "correlation_id"]
    tables = [
        data.table("kernels", same).sort_by("start_ns").drop(["start_ns", "step_id"]) for data in (dataset, alone)
    ]
    assert tables[0].to_pylist() == tables[1].to_pylist()
    assert dataset.table("steps").num_rows == alone.table("steps").num_rows


def _id(row: dict[str, Any]) -> object:
    return row["args"].get("correlation")


@pytest.mark.traces
def test_graph_captures_belong_to_chrome_traces_alone(tmp_path: Path) -> None:
    capture = trace(tmp_path / "capture.json", *CAPTURE, baseTimeNanoseconds=BASE)
    report = TRACES / "nsys" / "user_columns_v2022.1.sqlite"
    with pytest.raises(ReportError, match=r"is no Chrome trace, .* record the graph capture in the report itself"):
        tracekit.parse(report, tmp_path / "out", graph_captures=[capture])
    replay = trace(tmp_path / "replay.json", *replayed(1000, 1, "gemm"))
    with pytest.raises(
        ReportError, match=r"user_columns_v2022.1.sqlite: is no Chrome trace; expected a Chrome trace in"
    ):
        tracekit.parse(replay, tmp_path / "out", graph_captures=[report])

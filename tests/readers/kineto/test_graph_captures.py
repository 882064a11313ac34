"""Chrome traces of replays beside traces of graph captures: events and the rows that they become."""

import gzip
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import tracekit
from tests.golden import expect
from tests.needs import TRACES
from tests.readers.files import kernels
from tests.readers.kineto.traces import PID, event, kernel, launch, marked, trace
from tracekit.causes import GRAPH_UNMATCHED
from tracekit.dataset.opening import Dataset
from tracekit.errors import ReportError

#: Nanoseconds since 1970 that both traces count from.
BASE = 1_775_000_000_000_000_000
ROWS = """
    name  module    method       call_id  graph_node_id  cause  step_id
    gemm  top.a     graph_order  1        8589934592     -      0
    gemm  top.a     graph_order  1        8589934592     -      1
    gelu  top.b     graph_order  2        8589934593     -      0
    gemm  top.b     graph_order  2        8589934594     -      0
    gelu  top.b     graph_order  2        8589934593     -      1
    gemm  top.b     graph_order  2        8589934594     -      1
"""


def captured(ts: float, *names: str | None, at: int = 1000) -> list[dict[str, object]]:
    args = [{"kernel": name} if name else {} for name in names]
    rows = [
        event("cuda_runtime", "cudaLaunchKernel", ts + 10 * n, 1, correlation=at + n, **more)
        for n, more in enumerate(args, 1)
    ]
    end = len(names) + 1
    return [launch(ts, at, "cudaStreamBeginCapture"), *rows, launch(ts + 10 * end, at + end, "cudaStreamEndCapture")]


def replayed(ts: float, correlation: int, *names: str, graph: int = 0) -> list[dict[str, object]]:
    ids = [{"graph id": graph, "graph node id": (graph << 32) + node if graph else 0} for node in range(len(names))]
    launched = [kernel(ts + 10 + 10 * n, correlation, name, **ids[n]) for n, name in enumerate(names)]
    return [launch(ts, correlation, "cudaGraphLaunch"), *launched]


def step(number: int, ts: float, dur: float) -> dict[str, object]:
    return event("user_annotation", f"ProfilerStep#{number}", ts, dur)


def parsed(tmp_path: Path, replay: Sequence[Any], *captures: Sequence[Any], **metadata: object) -> Dataset:
    report = trace(tmp_path / "replay.json", *replay, baseTimeNanoseconds=BASE, **metadata)
    paths = [trace(tmp_path / f"capture{n}.json", *rows, baseTimeNanoseconds=BASE) for n, rows in enumerate(captures)]
    return tracekit.parse(report, tmp_path / "out", graph_captures=paths, force=True)


def causes(dataset: Dataset) -> list[str | None]:
    return kernels(dataset, "cause")


CAPTURE: list[dict[str, Any]] = [
    step(9, 0, 100),
    marked("top", 5, 90),
    marked("top.a", 15, 8),
    marked("top.b", 25, 18),
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
    expect(dataset, "kernels")(ROWS if graph else re.sub(r"85899345\d+", "-", ROWS))
    expect(dataset, "steps")("index  kind\n0  -\n1  -")
    calls = dataset.table("calls").to_pylist()
    assert {(row["module"], row["phase"]) for row in calls} == {(path, "capture") for path in ("top", "top.a", "top.b")}
    assert [source["name"] for source in dataset.manifest["graph_captures"]] == ["capture0.json"]
    assert "graph captures" not in {lack["what"] for lack in dataset.manifest["missing"]}


def test_without_the_graph_capture_the_cause_names_the_option(tmp_path: Path) -> None:
    dataset = parsed(tmp_path, replayed(1000, 1, "gemm", graph=2))
    assert causes(dataset) == ["graph_unmapped"]
    [row] = [row for row in dataset.manifest["coverage"] if row["cause"] == "graph_unmapped"]
    assert (row["count"], "--graph-captures" in row["advice"]) == (1, True)
    [lack] = [lack for lack in dataset.manifest["missing"] if lack["what"] == "graph captures"]
    assert "--graph-captures" in lack["remedy"]


def test_a_graph_capture_in_the_same_trace_needs_no_option(tmp_path: Path) -> None:
    dataset = parsed(tmp_path, [*CAPTURE[1:], *replayed(1000, 1, "gemm", "gelu", "gemm", graph=2)])
    assert kernels(dataset, "module") == ["top.a", "top.b", "top.b"]


@pytest.mark.parametrize(
    ("names", "late"),
    [("ab", 0), ("aab", 0), ("abaa", 0), ("aba", 5000)],
    ids=["fewer", "another order", "more", "late"],
)
def test_a_graph_capture_that_does_not_agree_gives_no_module(tmp_path: Path, names: str, late: int) -> None:
    capture = [marked("top", late, 90), *captured(late + 10, *"aba")]
    dataset = parsed(tmp_path, replayed(1000, 1, *names, graph=2), capture)
    assert set(causes(dataset)) == {"graph_unmapped"}
    details = [row["detail"] for row in dataset.manifest["coverage"] if row["cause"] == "graph_unmapped"]
    assert details == [GRAPH_UNMATCHED.detail]


def test_graphs_of_several_batch_sizes_have_modules_but_no_call(tmp_path: Path) -> None:
    captures = [CAPTURE, [row | {"ts": row["ts"] + 200} for row in CAPTURE]]
    dataset = parsed(tmp_path, replayed(1000, 1, "gemm", "gelu", "gemm", graph=4), *captures)
    expected = [(path, None, None, "graph_order") for path in ("top.a", "top.b", "top.b")]
    assert kernels(dataset, "module", "call_id", "capture_range_id", "method") == expected


def pieces(*names: str) -> list[Any]:
    """Graph captures one after the other in one range, of a kernel each, in modules of their own."""
    rows: list[Any] = [event("user_annotation", "capture", 0, 1000)]
    for at, name in enumerate(names):
        rows += [marked(f"top.{at}", 100 * at + 5, 60), *captured(100 * at + 10, name, at=1000 + 10 * at)]
    return rows


@pytest.mark.parametrize(
    ("captures", "replays", "modules"),
    [
        ("ab", "ab", ["top.0", "top.1"]),
        ("ab", "abab", ["top.0", "top.1"] * 2),
        ("ab", "aba", [None] * 3),  # not all of it
        ("aa", "aa", [None] * 2),  # alike, in whatever order
        ("aab", "aab", ["top.0", "top.1", "top.2"]),
    ],
)
def test_graphs_without_ids_are_those_of_the_captures_if_all_run_in_order_and_one_is_unlike_the_others(
    tmp_path: Path, captures: str, replays: str, modules: list[str | None]
) -> None:
    runs = [row for at, name in enumerate(replays, 1) for row in replayed(2000 + 100 * at, at, name)]
    dataset = parsed(tmp_path, [step(0, 2000, 900), *runs], pieces(*captures))
    assert kernels(dataset, "module") == modules


def test_a_replay_that_was_not_recorded_whole_does_not_hide_one_that_was(tmp_path: Path) -> None:
    whole, cut = (replayed(1000 + 100 * at, at, "gemm", "gelu", "gemm", graph=2) for at in (1, 2))
    dataset = parsed(tmp_path, [step(0, 990, 300), *whole, cut[0], *cut[2:]], CAPTURE)
    assert kernels(dataset, "module") == ["top.a", "top.b", "top.b", "top.b", "top.b"]


def test_rocm_sets_and_copies_memory_with_kernels(tmp_path: Path) -> None:
    calls = [launch(10 * at, at, f"hip{name}") for at, name in enumerate(("MemsetAsync", "MemcpyAsync"), 3)]
    capture = [
        marked("top", 5, 90),
        launch(10, 1, "hipStreamBeginCapture"),
        *calls,
        launch(60, 9, "hipStreamEndCapture"),
    ]
    names = ["__amd_rocclr_fillBufferAligned", "__amd_rocclr_copyBuffer"]
    assert causes(parsed(tmp_path, replayed(1000, 1, *names), capture)) == [None, None]
    assert set(causes(parsed(tmp_path, replayed(1000, 1, *reversed(names)), capture))) == {"graph_unmapped"}


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
    assert set(causes(tracekit.parse(report, tmp_path / "two", graph_captures=paths))) == {"graph_unmapped"}


def test_a_graph_changed_after_its_graph_capture_is_counted_as_updated(tmp_path: Path) -> None:
    capture = [*CAPTURE, launch(300, 2000, "cudaGraphExecUpdate")]
    dataset = parsed(tmp_path, replayed(1000, 1, "gemm", "gelu", "gemm", graph=2), capture)
    assert {row["cause"]: row["count"] for row in dataset.manifest["coverage"]}.get("graph_updated") == 3


@pytest.mark.parametrize(
    ("graph", "names", "more"), [(2, ("gemm", "gelu", "add"), "cudaGraphAddKernelNode"), (0, (), "hipStreamWaitEvent")]
)
def test_nodes_added_by_hand_and_several_streams_leave_the_order_uncertain(
    tmp_path: Path, graph: int, names: tuple[str, ...], more: str
) -> None:
    capture, names_captured = [marked("top", 0, 90), *captured(10, "gemm", "gelu")], ("gemm", "gelu")
    assert set(causes(parsed(tmp_path, replayed(1000, 1, *names_captured, graph=graph), capture))) == {None}
    replay = replayed(1000, 1, *(names or names_captured), graph=graph)
    assert None not in causes(parsed(tmp_path, replay, [*capture, launch(25, 1900, more)]))


def test_work_of_the_report_was_not_launched_by_calls_of_another_session(tmp_path: Path) -> None:
    # Both sessions count their calls from the same number; the call that launched this kernel was not recorded.
    replay = [*replayed(1000, 1, "gemm", "gelu", "gemm", graph=2), kernel(3000, 1001, "lost")]
    assert ("lost", None) in kernels(parsed(tmp_path, replay, CAPTURE), "full_name", "module")


def test_a_graph_capture_of_another_process_or_rank_is_refused(tmp_path: Path) -> None:
    other = [row | {"pid": PID + 1} for row in CAPTURE]
    with pytest.raises(ReportError, match=r"capture0.json: is of process 101, but replay.json is of process 100; give"):
        parsed(tmp_path, replayed(1000, 1, "gemm", "gelu", "gemm"), other)
    path = trace(tmp_path / "capture.json", *CAPTURE, distributedInfo={"rank": 1})
    report = trace(tmp_path / "replay.json", *replayed(1000, 1, "gemm"), distributedInfo={"rank": 0})
    with pytest.raises(ReportError, match=r"is of process 100 \(rank 1\), but replay.json is of .* \(rank 0\)"):
        tracekit.parse(report, tmp_path / "out", graph_captures=[path], force=True)


def test_every_rank_takes_its_own_graph_captures(tmp_path: Path) -> None:
    def of_rank(rank: int, name: str, rows: Sequence[dict[str, object]]) -> Path:
        rows = [row | ({"pid": PID + rank} if row["pid"] == PID else {}) for row in rows]
        return trace(tmp_path / f"{name}{rank}.json", *rows, distributedInfo={"rank": rank}, baseTimeNanoseconds=BASE)

    reports, captures = [], []
    for rank in (0, 1, 2):
        reports.append(of_rank(rank, "replay", replayed(1000, 1, "gemm", graph=2)))
        if rank < 2:
            captures.append(of_rank(rank, "capture", [marked(f"top.{rank}", 5, 90), *captured(10, "gemm")]))
    dataset = tracekit.parse(reports, tmp_path / "out", graph_captures=captures)
    assert sorted(kernels(dataset, "rank", "module", "cause")) == [
        (0, "top.0", None),
        (1, "top.1", None),
        (2, None, "graph_unmapped"),
    ]
    remedies = [lack["remedy"] for entry in dataset.manifest["reports"] for lack in entry["missing"]]
    assert sum("those given are of other processes" in remedy for remedy in remedies) == 1


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


def test_what_works_during_a_graph_capture_is_no_part_of_it_nor_are_its_steps_the_report_s(tmp_path: Path) -> None:
    working = [launch(34, 7), kernel(60, 7, "copy")]
    dataset = parsed(tmp_path, replayed(1000, 1, "gemm", "gelu", "gemm"), [*CAPTURE, *working])
    assert causes(dataset) == [None] * 3
    assert dataset.table("steps").num_rows == 0


@pytest.mark.traces
def test_graph_captures_belong_to_chrome_traces_alone(tmp_path: Path) -> None:
    capture = trace(tmp_path / "capture.json", *CAPTURE, baseTimeNanoseconds=BASE)
    report = TRACES / "nsys" / "user_columns_v2022.1.sqlite"
    with pytest.raises(ReportError, match=r"is no Chrome trace, .* record the graph capture in the report itself"):
        tracekit.parse(report, tmp_path / "out", graph_captures=[capture])
    replay = trace(tmp_path / "replay.json", *replayed(1000, 1, "gemm"))
    with pytest.raises(ReportError, match=r"user_columns_v2022.1.sqlite: is no Chrome trace; expected a Chrome trace"):
        tracekit.parse(replay, tmp_path / "out", graph_captures=[report])

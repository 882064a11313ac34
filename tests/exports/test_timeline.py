"""The timeline in Chrome's trace format: its events beside the trace, and that viewers can draw them."""

import gzip
import json
from collections import defaultdict
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import tracekit
from tests.command import command
from tests.golden import Parse
from tests.trace_lines import report
from tracekit.arrays.intervals import MOST_LANES, lanes
from tracekit.dataset.opening import Dataset
from tracekit.exports.timeline import for_sums, for_truncation

TRACE = """
range  1    0 9000 ProfilerStep#3
range  1   10 5000 {'Module': 'top', 'Inputs': [[2, 3]]}
range  1   20 4000 {'Module': 'top.layers.0'}
launch 1  100  200 #1
kernel 1 1001 3501 #1 gemm
launch 1 6000 6100 #2
memcpy:3 1 6200 6300 #2 64
"""


def exported(dataset: Dataset, out: Path, kind: str = "chrome") -> list[dict[str, Any]]:
    assert command("export", dataset.folder, "--format", kind, "-o", out, "--quiet") == (0, "", "")
    with (gzip.open if kind == "perfetto" else open)(out, "rb") as file:
        trace = json.load(file)
    assert trace["displayTimeUnit"] == "ns"
    events: list[dict[str, Any]] = trace["traceEvents"]
    return events


def named(events: list[dict[str, Any]]) -> dict[tuple[int, int], str]:
    names = {
        (event["name"], event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["ph"] == "M" and event["name"].endswith("_name")
    }
    return {
        (pid, tid): f"{names['process_name', pid, 0]}: {name}"
        for (what, pid, tid), name in names.items()
        if what == "thread_name"
    }


def slices_of(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [e for e in events if e["ph"] == "X" and e["cat"] not in {"user_annotation", "cuda_runtime"}]


def drawn(events: list[dict[str, Any]]) -> str:
    track = named(events)
    slices = [(track[e["pid"], e["tid"]], e["ts"], e["dur"], e["name"]) for e in slices_of(events)]
    return "\n".join(f"{ts:.3f} {dur:.3f} {name} @ {on}" for on, ts, dur, name in sorted(slices))


@pytest.mark.parametrize("kind", ["chrome", "perfetto"])
def test_steps_calls_and_kernels_stand_on_tracks_of_their_own(parsed: Parse, tmp_path: Path, kind: str) -> None:
    events = exported(parsed(TRACE), tmp_path / "out", kind)
    assert drawn(events).splitlines() == [
        "1.001 2.500 gemm @ device 0: stream 7, context 1, process 1",
        "6.200 0.100 [CUDA memcpy Host-to-Device] @ device 3: stream 7, context 1, process 1",
        "0.010 4.990 top @ process 1: modules of thread 1",
        "0.020 3.980 layers.0 @ process 1: modules of thread 1",
        "0.000 9.000 ProfilerStep#3 @ process 1: steps of thread 1",
    ]


#: Members of events, as the file has them.
GEMM = """{"kind": "kernel", "module": "top.layers.0", "cause": null, "step_id": 0, "call_id": 1, "kernel_id": 0,
    "full_name": "gemm", "bytes": null, "device": 0, "context": 1, "stream": 7, "method": "range",
    "static_smem_bytes": 0, "dynamic_smem_bytes": 0, "correlation": 1, "registers per thread": 0, "grid": [1, 1, 1],
    "block": [1, 1, 1], "Module Hierarchy": "TOP(top)::forward.layers()::forward.0()::forward."}"""
CALL = """{"module": "top", "phase": "forward", "inputs": [[2, 3]], "outputs": null, "kwargs": {}, "step_id": 0,
    "call_id": 0, "range_id": 1, "gpu_time_ns": 2500}"""


def test_a_kernel_says_its_module_and_its_step_and_a_call_its_shapes(parsed: Parse, tmp_path: Path) -> None:
    events = {e["name"]: e for e in slices_of(exported(parsed(TRACE), tmp_path / "out"))}
    assert events["gemm"]["cat"] == "kernel"
    assert events["gemm"]["args"] == json.loads(GEMM)
    copy = events["[CUDA memcpy Host-to-Device]"]["args"]
    assert (copy["cause"], copy["bytes"]) == ("outside_modules", 64)
    assert events["top"]["args"] == json.loads(CALL)
    assert events["ProfilerStep#3"]["args"]["index"] == 3


def test_kernels_of_a_stream_that_run_side_by_side_get_lanes(parsed: Parse, tmp_path: Path) -> None:
    dataset = parsed("""
        launch 1 1 2 #1
        kernel 1 1000 5000 #1 long
        kernel 1 2000 3000 #1 inside
        kernel 1 4000 6000 #1 across
        kernel 1 5000 7000 #1 after
    """)
    stream = "device 0: stream 7, context 1, process 1"
    assert drawn(exported(dataset, tmp_path / "out")).splitlines() == [
        f"1.000 4.000 long @ {stream}",
        f"5.000 2.000 after @ {stream}",
        f"2.000 1.000 inside @ {stream} (2)",
        f"4.000 2.000 across @ {stream} (2)",
    ]


def test_nothing_is_before_time_0_where_perfetto_draws_nothing(parsed: Parse, tmp_path: Path) -> None:
    trace = "launch 1 -1500 -1400 #1\nkernel 1 -1234 -234 #1 early\nkernel 1 766 866 #1 later"
    events = exported(parsed(trace), tmp_path / "out")
    assert [line[:11] for line in drawn(events).splitlines()] == ["0.266 1.000", "2.266 0.100"]
    assert min(e["ts"] for e in events if e["ph"] == "X") == 0
    assert json.loads((tmp_path / "out").read_text())["otherData"]["times_moved_by_ns"] == 1500


TIMES = st.lists(st.tuples(st.integers(0, 10**13), st.integers(0, 10**9)), min_size=1)


@given(TIMES)
def test_perfetto_s_arithmetic_gives_exact_nanoseconds(times: list[tuple[int, int]]) -> None:
    """It multiplies by a thousand and drops the fraction."""
    start, length = (np.array(column) for column in zip(*times, strict=True))
    written = for_truncation(start, start + length)
    for text, exact in zip(written, (start, length), strict=True):
        assert [int(float(one) * 1000.0) for one in text.to_pylist()] == exact.tolist()


@given(TIMES)
def test_slices_that_touch_do_not_overlap_where_start_and_length_are_added(times: list[tuple[int, int]]) -> None:
    """As floating-point numbers, whatever is subtracted from both."""
    start, length = (np.array(column) for column in zip(*times, strict=True))
    ts, dur = (list(map(float, text.to_pylist())) for text in for_sums(start, start + length))
    ts_of_first = [0, min(ts)]
    for begin, end, at, long in zip(start, start + length, ts, dur, strict=True):
        assert round(at * 1000) == begin
        assert round((at + long) * 1000) == end
        # Another slice that begins or ends then, on a track whose first slice is made its time 0.
        (touching,), _ = for_sums(np.array([end]), np.array([end]))
        for first in ts_of_first:
            assert (at - first) + long == float(touching.as_py()) - first


@pytest.fixture
def two_reports(tmp_path: Path) -> Dataset:
    return tracekit.parse([report(tmp_path / f"rank{at}.sqlite", TRACE) for at in (0, 1)], tmp_path / "run")


def test_the_same_process_of_two_reports_is_two(two_reports: Dataset, tmp_path: Path) -> None:
    events = exported(two_reports, tmp_path / "out")
    assert len(slices_of(events)) == 10
    assert {on for on in named(events).values() if "modules" in on} == {
        "rank0 rank 0 process 1: modules of thread 1",
        "rank1 rank 1 process 1: modules of thread 1",
    }
    assert len({on for on in named(events).values() if "device 0" in on}) == 2


def test_reports_that_know_when_they_began_are_put_on_one_clock(two_reports: Dataset, tmp_path: Path) -> None:
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text("utf-8"))
    for entry, started in zip(manifest["reports"], (10**18 + 5_000, 10**18), strict=True):
        entry["source"]["started_utc_ns"] = started
    (tmp_path / "run" / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    events = exported(two_reports, tmp_path / "out")
    track = named(events)
    starts = {track[e["pid"], e["tid"]][:5]: round(e["ts"], 3) for e in events if e["name"] == "gemm"}
    assert starts == {"rank0": 6.001, "rank1": 1.001}


OVERLAPPING = """
async 1   10  500 {'Module': 'top', 'Inputs': [[1]]}
async 1  100  900 {'Module': 'other', 'Inputs': [[1]]}
range 1  200  300 {'Module': 'other.a', 'Inputs': [[1]]}
range 1  950  990 {'Module': 'top', 'Inputs': [[1]]}
range 2  100  900 {'Module': 'top', 'Inputs': [[1]]}
range 2  200  300 {'Module': 'top.a', 'Inputs': [[1]]}
"""


def test_calls_of_a_thread_that_overlap_have_lanes_and_those_inside_stay_with_theirs(
    parsed: Parse, tmp_path: Path
) -> None:
    lines = drawn(exported(parsed(OVERLAPPING), tmp_path / "out")).splitlines()
    assert [line for line in lines if "modules of" in line] == [
        "0.010 0.490 top @ process 1: modules of thread 1",
        "0.950 0.040 top @ process 1: modules of thread 1",
        "0.100 0.800 other @ process 1: modules of thread 1 (2)",
        "0.200 0.100 a @ process 1: modules of thread 1 (2)",
        "0.100 0.800 top @ process 1: modules of thread 2",
        "0.200 0.100 a @ process 1: modules of thread 2",
    ]


CALLS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 12)), max_size=30)


@given(CALLS)
def test_slices_of_a_lane_nest_or_are_apart_and_only_overlaps_open_lanes(calls: list[tuple[int, int, int]]) -> None:
    track, start, length = (np.array([call[at] for call in calls], np.int64) for at in range(3))
    parent = np.array([parent_of(calls, row) for row in range(len(calls))], np.int64)
    lane = lanes(track, start, start + length, parent)
    for one, other in combinations(range(len(calls)), 2):
        if (track[one], lane[one]) == (track[other], lane[other]):
            assert not crossing(calls[one], calls[other])
    for track in range(3):
        rows = [row for row in range(len(calls)) if calls[row][0] == track]
        if not any(crossing(calls[a], calls[b]) for a, b in combinations(rows, 2)):
            assert not lane[rows].any()
    for row in np.flatnonzero(parent >= 0).tolist():
        rivals = [o for o in range(len(calls)) if crossing(calls[row], calls[o])]
        assert lane[row] == lane[parent[row]] or rivals or not length[row]


def crossing(one: tuple[int, int, int], other: tuple[int, int, int]) -> bool:
    (on, a, long), (at, b, length) = sorted((one, other), key=lambda call: call[1])
    return on == at and a < b < a + long < b + length


def parent_of(calls: list[tuple[int, int, int]], row: int) -> int:
    track, start, length = calls[row]
    around = [
        (long, -at, at)
        for at, (on, begin, long) in enumerate(calls)
        if on == track and begin <= start and start + length <= begin + long and (long, -at) > (length, -row)
    ]
    return min(around, default=(0, 0, -1))[2]


def test_lanes_are_not_without_number() -> None:
    many = np.arange(1_000, dtype=np.int64)
    assert lanes(many * 0, many, many + 5_000).max() == MOST_LANES - 1
    assert lanes(many * 0, many, many + 5_000, many * 0 - 1).max() == MOST_LANES - 1


@given(CALLS)
def test_no_two_slices_of_a_lane_overlap_and_no_lane_is_opened_for_nothing(slices: list[tuple[int, int, int]]) -> None:
    stream, start, length = (np.array([one[at] for one in slices], np.int64) for at in range(3))
    lane = lanes(stream, start, start + length)
    by_lane = defaultdict(list)
    for track, at, begin, long in zip(stream, lane, start, length, strict=True):
        by_lane[track, at].append((begin, begin + long))
    for intervals in by_lane.values():
        intervals.sort()
        assert all(one[1] <= other[0] for one, other in pairwise(intervals))
    for track in set(stream.tolist()):
        rows = sorted((b, b + n) for s, b, n in slices if s == track)
        assert lane[stream == track].max() + 1 == most_at_once(rows)


def most_at_once(rows: list[tuple[int, int]]) -> int:
    running: list[int] = []
    most = 0
    for begin, end in rows:
        running = [*(one for one in running if one > begin), end]
        most = max(most, len(running))
    return most

"""Memory of calls, and who holds it: equal to a replay of the events of a trace, one after the other."""

import gzip
import json
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings, strategies as st

import tracekit
from tests.benchmarks.serving_report import MEMORY_USAGE
from tests.golden import expect, expect_frame
from tests.needs import TRACES
from tests.readers.kineto.traces import PID, Event, event, trace
from tests.sqlite import writing
from tests.trace_lines import report
from tracekit.answers import memory
from tracekit.dataset.opening import Dataset
from tracekit.views.formatting import records

OTHER = PID + 1


class Piece(NamedTuple):
    """An event of an allocator."""

    at_ns: int
    size: int
    address: int
    device: int = 0
    tid: int = PID


def written(piece: Piece, **more: int) -> Event:
    args = {"Bytes": piece.size, "Device Type": 1, "Device Id": piece.device, "Addr": piece.address} | more
    return event("cpu_instant_event", "[memory]", piece.at_ns / 1000, 0, piece.tid, **args) | {"ph": "i"}


def module(name: str, start: int, end: int, tid: int = PID) -> Event:
    return event("python_function", f"nn.Module: {name}", start / 1000, (end - start) / 1000, tid)


def replayed(call: dict[str, Any], pieces: list[Piece]) -> tuple[int, int, int]:
    """What a call allocates, keeps and how far memory rises in it, by the definition of its columns."""
    during = [one for one in pieces if call["start_ns"] <= one.at_ns <= call["end_ns"]]
    own = [one.size for one in during if one.tid == call["tid"]]
    rise = Counter[int]()
    peak = 0
    for one in during:
        rise[one.device] += one.size
        peak = max(peak, rise[one.device])
    return sum(size for size in own if size > 0), sum(own), peak


def agree(dataset: Dataset, pieces: list[Piece]) -> None:
    """Calls and rows of the dataset are those of a replay; pieces are by time."""
    columns = ["start_ns", "end_ns", "tid", "allocated_bytes", "retained_bytes", "peak_bytes"]
    calls = dataset.table("calls", columns).to_pylist()
    for call in calls:
        assert (call["allocated_bytes"], call["retained_bytes"], call["peak_bytes"]) == replayed(call, pieces)
    rows = dataset.table("allocations").to_pylist()
    for at, (row, one) in enumerate(zip(rows, pieces, strict=True)):
        later = (two for two in pieces[at + 1 :] if (two.device, two.address) == (one.device, one.address))
        following = next(later, one)
        freed = one.size > 0 and following.size == -one.size
        ends = following.at_ns if freed else None
        assert (row["start_ns"], row["end_ns"], row["bytes"]) == (one.at_ns, ends, one.size)


@pytest.mark.traces
@pytest.mark.parametrize(
    "name", ["cpp_exporter_torch2.14", "one_step_timesformer_h100", "slow_first_step_norm", "with_stack_qwen_h100"]
)
def test_memory_of_real_traces_is_that_of_a_replay(name: str, tmp_path: Path) -> None:
    path = TRACES / "kineto" / f"{name}.json.gz"
    dataset = tracekit.parse(path, tmp_path / "out")
    events = [one for one in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if one["name"] == "[memory]"]
    kind = max(one["args"]["Device Type"] for one in events)
    events = [one for one in events if one["args"]["Device Type"] == kind]
    events.sort(key=lambda one: one["ts"])
    rows = dataset.table("allocations").to_pylist()
    zero = round(events[0]["ts"] * 1000) - rows[0]["start_ns"]
    pieces = []
    for one, row in zip(events, rows, strict=True):
        args = one["args"]
        assert abs(round(one["ts"] * 1000) - zero - row["start_ns"]) < 1000
        assert row["total_bytes"] == args["Total Allocated"]
        pieces.append(Piece(row["start_ns"], args["Bytes"], args["Addr"], args["Device Id"], one["tid"]))
    agree(dataset, pieces)
    _, highest = max((row["step_id"] is not None, row["total_bytes"]) for row in rows)
    assert memory.frame(dataset)["held_bytes"].sum() == highest


SIZES = st.integers(1, 9)


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[Event], list[Piece]]:
    """Nested and recursive calls on two threads, and pieces on two devices, some of them from before."""
    length = 40
    calls = [module("Net_0", 0, 1000 * length), module("Net_1", 0, 1000 * length, OTHER)]
    for tid in (PID, OTHER):
        start, end = 0, length
        for number in range(draw(st.integers(0, 4))):
            start, end = sorted((draw(st.integers(start, end)), draw(st.integers(start, end))))
            calls += [module(f"Block_{number}", 1000 * start + number, 1000 * end - number, tid)] if start < end else []
    live = [(number % 2, 1000 + number, draw(SIZES)) for number in range(3)]
    pieces = []
    for at in range(draw(st.integers(0, length))):
        tid = draw(st.sampled_from([PID, OTHER]))
        if live and draw(st.booleans()):
            device, address, size = live.pop(draw(st.integers(0, len(live) - 1)))
            pieces.append(Piece(1000 * at + 500, -size, address, device, tid))
            continue
        used = {(device, address) for device, address, _ in live}
        free = [(device, address) for device in (0, 1) for address in range(3) if (device, address) not in used]
        if free:
            device, address = draw(st.sampled_from(free))
            live.append((device, address, draw(SIZES)))
            pieces.append(Piece(1000 * at + 500, live[-1][2], address, device, tid))
    return calls, pieces


@settings(max_examples=20)
@given(program=programs())
def test_memory_of_any_trace_is_that_of_a_replay(program: tuple[list[Event], list[Piece]]) -> None:
    calls, pieces = program
    with TemporaryDirectory() as folder:
        path = trace(Path(folder) / "trace.json", *calls, *map(written, pieces))
        dataset = tracekit.parse(path, Path(folder) / "out")
        if pieces:
            agree(dataset, pieces)
        else:
            assert set(dataset.table("calls").column("peak_bytes").to_pylist()) == {None}


def stepped(tmp_path: Path, totals: bool = True) -> Dataset:
    """Two steps on a device: the second holds most while Linear_1 runs; a piece from before is freed late."""
    calls = [module("Net_0", 1000, 9000), module("Linear_0", 2000, 3000), module("Linear_1", 4000, 5000)]
    calls += [module("Net_0", 11_000, 19_000), module("Linear_0", 12_000, 13_000), module("Linear_1", 14_000, 15_000)]
    steps = [event("user_annotation", f"ProfilerStep#{at}", 10 * at, 10) for at in (0, 1)]
    sizes = [(2500, 30, 1), (3500, -30, 1), (4500, 5, 2), (12_500, 30, 3), (14_200, 50, 4), (14_400, -50, 4)]
    sizes += [(16_000, -30, 3), (17_000, -100, 9), (25_000, 500, 5)]
    held, pieces = 1000, []
    for at, size, address in sizes:
        held += size
        pieces.append(written(Piece(at, size, address), **({"Total Allocated": held} if totals else {})))
    return tracekit.parse(trace(tmp_path / "trace.json", *steps, *calls, *pieces), tmp_path / "out", force=True)


def test_show_memory_ranks_by_peaks_and_tells_who_holds_what_at_the_highest_moment_of_the_steps(tmp_path: Path) -> None:
    """What stands outside is from before: 1000 bytes, of which 100 are taken back in the recording."""
    dataset = stepped(tmp_path)
    columns = ["path", "peak_bytes", "allocated_bytes", "retained_bytes", "held_bytes", "held_step_id"]
    expect_frame(memory.frame(dataset)[columns])("""
        path            peak_bytes  allocated_bytes  retained_bytes  held_bytes  held_step_id
        Net_0           80          80               5               0           1
        Net_0.Linear_1  50          50               5               55          1
        Net_0.Linear_0  30          30               30              30          1
        -               -           -                -               1000        1
    """)
    assert [row["self_ns"] for row in records(memory.frame(dataset))] == [0, 0, 0, None]
    part = memory.frame(dataset.subtree("Net_0.Linear_1"))
    assert part[["path", "held_bytes"]].values.tolist() == [["Net_0.Linear_1", 55]]
    # Without totals what is taken back later was held before.
    assert memory.frame(stepped(tmp_path, totals=False))["held_bytes"].tolist() == [0, 55, 30, 100]


def test_recursion_and_overlapping_calls_have_the_rise_of_their_process(tmp_path: Path) -> None:
    calls = [module("Net_0", 0, 9000), module("Net_0", 1000, 8000), module("Loader_0", 2000, 5000, OTHER)]
    calls += [module("Net_0", 9100, 9200)]  # without a call inside: that is a recursion, not a second mark
    pieces = [Piece(500, -7, 1), Piece(1500, 10, 2), Piece(2500, 20, 3), Piece(3000, 40, 6, 1, OTHER)]
    pieces += [Piece(4000, -20, 3, 0, OTHER), Piece(8500, 50, 5)]
    # What is taken back elsewhere, or in another size, ends no piece.
    pieces += [Piece(9500, -50, 5, 1), Piece(9600, 8, 4), Piece(9700, -9, 4)]
    dataset = tracekit.parse(trace(tmp_path / "trace.json", *calls, *map(written, pieces)), tmp_path / "out")
    agree(dataset, pieces)
    expect(dataset, "calls")("""
        module       tid  start_ns  allocated_bytes  retained_bytes  peak_bytes
        Net_0        100  0         80               73              53
        Net_0        100  9100      0                0               0
        Net_0.Net_0  100  1000      30               30              40
        Loader_0     101  2000      40               20              40
    """)


def of_cuda(path: Path) -> Path:
    """A report of two processes, of which nsys recorded the memory."""
    report(
        path,
        """
        range  1/1  0 90 {'Module': 'top'}
        range  1/1 10 50 {'Module': 'top.a'}
        launch 1/1 12 20 #1 cudaMalloc_v3020
        launch 1/1 30 38 #2 cudaMalloc_v3020
        launch 1/2 34 40 #3 cudaFree_v3020
        launch 1/1 60 66 #4 cudaFree_v3020
        launch 1/1 70 71 #5 cudaHostAlloc_v3020
        run    1/1 80 81 kernel
        range  2/3  0 90 {'Module': 'top'}
        launch 2/3 10 30 #1 cudaMalloc_v3020
        run    2/3 80 81 kernel
        """,
    )
    events = [(15, 1, 0, 7, 64, 2, 0), (36, 1, 0, 8, 32, 2, 0), (62, 1, 0, 7, 64, 2, 1), (70, 1, -1, 9, 16, 1, 0)]
    events += [(15, 2, 1, 7, 8, 2, 0), (15, 5, 1, 7, 8, 2, 0)]
    with writing(path) as db:
        db.execute(MEMORY_USAGE)
        rows = [(at, (1 << 48) | (pid << 24), device, address, *others) for at, pid, device, address, *others in events]
        db.executemany("INSERT INTO CUDA_GPU_MEMORY_USAGE_EVENTS VALUES (?, ?, ?, 1, ?, 0, ?, ?, ?, NULL, 0)", rows)
    return path


def test_memory_that_cuda_hands_out_belongs_to_the_call_around_the_only_api_call_open_then(tmp_path: Path) -> None:
    """Of two calls that are open at one time none is known; pinned memory of the host is not the device's."""
    dataset = tracekit.parse(of_cuda(tmp_path / "report.sqlite"), tmp_path / "out")
    expect(dataset, "allocations")("""
        start_ns  end_ns  bytes  total_bytes  device  pid  tid  module  call_id
        15        62      64     -            0       1    1    top.a   2
        15        -       8      -            1       2    3    top     1
        36        -       32     -            0       1    -    -       -
        62        -       -64    -            0       1    1    top     0
        """)
    expect(dataset, "calls")("""
        module  pid  allocated_bytes  retained_bytes  peak_bytes
        top     1    64               0               96
        top     2    8                8               8
        top.a   1    64               64              96
        """)

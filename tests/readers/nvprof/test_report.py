"""What nvprof wrote becomes the same tables as a report of Nsight Systems."""

from __future__ import annotations

import struct
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

import tracekit
from tests.golden import check
from tests.readers.files import lacks
from tests.readers.nvprof.files import EPOCH, PID, Writer, activity, object_id, written
from tracekit.readers.nvprof.names import full_name, kernel_name
from tracekit.recording.tables import COPY_KINDS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tracekit.dataset.opening import Dataset

#: The id of a thread as calls have it; markers have 3229992704 for it.
TID = -1064974592
LINES = f"""
    push {TID}  0    100 {{'Module': 'top'}}
    push {TID}  10    50 {{'Module': 'top.a'}}
    api  {TID}  20    25 #1 cudaLaunchKernel
    kernel     900   950 #1 _ZN3foo4gemmIfEEvPT_
    api  {TID}  60    70 #2 cudaMemcpyAsync
    memcpy     960   970 #2
    driver {TID} 75   78 #3 cuLaunchKernel
    kernel     975   980 #3 plain_c_name
    memset     985   990 #4
"""


def parsed(tmp_path: Path, lines: str = LINES, change: Callable[[Writer], None] | None = None) -> Dataset:
    path = tmp_path / "run.prof"
    writer = Writer(path)
    with closing(writer.db) as db:
        for line in filter(None, map(str.strip, lines.splitlines())):
            writer.line(line)
        if change:
            change(writer)
        db.commit()
    return tracekit.parse(path, force=True)


def counted(dataset: Dataset) -> dict[str, int]:
    """What was lost or left out while reading, by cause."""
    rows = [row for row in dataset.table("coverage").to_pylist() if ":" in row["what"]]
    causes = {row["cause"] for row in rows}
    return {cause: sum(row["count"] for row in rows if row["cause"] == cause) for cause in causes}


def by_time(dataset: Dataset, *columns: str) -> list[tuple[object, ...]]:
    """Columns of kernels in the order of their starts."""
    rows = sorted(dataset.table("kernels").to_pylist(), key=lambda row: row["start_ns"])
    return [tuple(row[name] for name in columns) for row in rows]


def test_kernels_of_runtime_and_driver_calls_go_to_the_module_open_on_their_thread(tmp_path: Path) -> None:
    dataset = parsed(tmp_path)
    assert by_time(dataset, "name", "start_ns", "module", "launch_name", "pid", "tid") == [
        ("gemm", 900, "top.a", "cudaLaunchKernel", PID, TID),
        ("[CUDA memcpy Host-to-Device]", 960, "top", "cudaMemcpyAsync", PID, TID),
        ("plain_c_name", 975, "top", "cuLaunchKernel", PID, TID),
        ("[CUDA memset]", 985, None, None, PID, None),
    ]
    check(
        dataset,
        "ranges",
        f"""
        start_ns  end_ns  tid    parent_range_id
        0         100     {TID}  -
        10        50      {TID}  0
    """,
    )
    assert by_time(dataset, "full_name")[0] == ("void foo::gemm<float>(float*)",)
    source = dataset.manifest["source"]
    assert (source["format"], source["exporter"], source["schema_version"]) == ("nvprof", "nvprof", "12")
    assert lacks(dataset) == set()


def twice(writer: Writer) -> None:
    for table in map(activity, ("MARKER", "RUNTIME", "DRIVER", "CONCURRENT_KERNEL", "MEMCPY", "MEMSET")):
        columns = ", ".join(row[1] for row in writer.db.execute(f"PRAGMA table_info({table})").fetchall()[1:])
        writer.db.execute(f"INSERT INTO {table} ({columns}) SELECT {columns} FROM {table}")  # noqa: S608


def test_rows_that_stand_there_twice_are_read_once_and_counted(tmp_path: Path) -> None:
    once = {name: parsed(tmp_path).table(name) for name in ("kernels", "ranges", "calls")}
    again = parsed(tmp_path, change=twice)
    assert {name: again.table(name) for name in once} == once
    assert counted(again) == {"duplicate_row": 4 + 3 + 4}


def test_equal_kernels_of_one_call_on_two_gpus_are_no_repetition(tmp_path: Path) -> None:
    def other_gpu(writer: Writer) -> None:
        writer.kernel(900, 950, 1, "_ZN3foo4gemmIfEEvPT_", deviceId=1, contextId=2)

    dataset = parsed(tmp_path, change=other_gpu)
    modules = {(row["device"], row["module"]) for row in dataset.table("kernels").to_pylist() if row["name"] == "gemm"}
    assert modules == {(0, "top.a"), (1, "top.a")}
    assert counted(dataset) == {}


def test_ranges_without_end_or_start_and_rows_that_are_no_ranges_are_counted(tmp_path: Path) -> None:
    def odd(writer: Writer) -> None:
        writer.push(TID, 80, None, "left open")
        writer.marker(4, 82, TID, id=999)
        writer.marker(1, 83, TID, "a mark", id=1000)
        writer.marker(8, 84, TID, "a lock", id=1001, domain=writer.string("locks"))

    dataset = parsed(tmp_path, change=odd)
    check(
        dataset,
        "ranges",
        """
        start_ns  end_ns  text                open
        0         100     {'Module': 'top'}    False
        10        50      {'Module': 'top.a'}  False
        80        100     left open            True
    """,
    )
    assert counted(dataset) == {"never_ended": 1, "never_began": 1, "mark": 1, "other_event": 1}


def test_an_id_that_comes_again_is_another_range(tmp_path: Path) -> None:
    def same_id(writer: Writer) -> None:
        for flags, time, text in ((2, 3, "b"), (4, 4, ""), (4, 2, ""), (2, 1, "a")):
            writer.marker(flags, time, TID, text, id=7)

    check(
        parsed(tmp_path, "", same_id),
        "ranges",
        """
        start_ns  end_ns  text
        0         1       a
        2         3       b
    """,
    )


def test_a_range_that_never_ended_lasts_as_long_as_the_calls_of_its_thread(tmp_path: Path) -> None:
    lines = f"""
        push {TID} 0  -  open
        push {TID} 1  9  closed
        api {TID}  50 60 #1 cudaFree
        api 1      70 80 #2 cudaFree
    """
    check(
        parsed(tmp_path, lines),
        "ranges",
        """
        start_ns  end_ns  text
        0         60      open
        1         9       closed
    """,
    )


def test_the_same_id_in_two_processes_is_two_ranges(tmp_path: Path) -> None:
    def two(writer: Writer) -> None:
        for pid, start in ((PID, 0), (PID + 1, 2)):
            for flags, time, text in ((2, start, f"of {pid}"), (4, start + 7, "")):
                writer.marker(flags, time, TID, text, id=7, objectId=object_id(TID, pid))
        writer.kernel(20, 30, 1, "of one of them")

    dataset = parsed(tmp_path, "", two)
    assert counted(dataset) == {"process_unknown": 1}
    check(
        dataset,
        "ranges",
        """
        start_ns  end_ns  text
        0         7       of 77
        2         9       of 78
    """,
    )


def test_a_range_whose_end_was_recorded_before_its_start_has_no_duration(tmp_path: Path) -> None:
    def turned(writer: Writer) -> None:
        writer.marker(4, 2, TID, id=7)
        writer.marker(2, 5, TID, "turned", id=7)
        writer.push(TID, 0, 9, "whole")

    dataset = parsed(tmp_path, "", turned)
    check(
        dataset,
        "ranges",
        """
        start_ns  end_ns  text
        0         9       whole
        5         5       turned
    """,
    )
    assert counted(dataset) == {"ends_before_start": 1}


def test_domains_payloads_and_threads_on_which_ranges_end(tmp_path: Path) -> None:
    def more(writer: Writer) -> None:
        writer.push(1, 5, 95, "in a domain", domain=writer.string("NCCL"))
        payload = {"payloadKind": 1, "payload": struct.pack("<Q", 42), "color": 0, "category": 0}
        writer.row("MARKER_DATA", id=writer.marker_id, **payload)
        writer.push(1, 6, None, "moved")
        writer.marker(4, 96, 2)
        writer.push(3, 7, 97, "of the process", objectKind=1)

    check(
        parsed(tmp_path, "", more),
        "ranges",
        """
        text            domain  kind       start_ns  end_ns  tid  end_tid  payload_int
        of the process  -       start_end  2         92      0    -        -
        in a domain     NCCL    push_pop   0         90      1    -        42
        moved           -       start_end  1         91      1    2        -
    """,
    )


def test_gpus_and_names_of_processes_are_known_and_arguments_are_not_kept(tmp_path: Path) -> None:
    def described(writer: Writer) -> None:
        figures = {"globalMemoryBandwidth": 898_048_000, "globalMemorySize": 2**34, "coreClockRate": 1_530_000}
        figures |= {"numMultiprocessors": 80, "computeCapabilityMajor": 7, "computeCapabilityMinor": 0, "id": 0}
        writer.row("DEVICE", name=writer.string("Tesla V100"), **figures)
        program = writer.string("/home/me/bin/python train.py --token=secret")
        writer.row("NAME", objectKind=1, objectId=object_id(0), name=program)
        writer.row("NAME", objectKind=2, objectId=object_id(TID), name=writer.string("pt_main"))

    manifest = parsed(tmp_path, change=described).manifest
    [device] = manifest["devices"]
    assert (device["name"], device["compute_capability"]) == ("Tesla V100", "7.0")
    assert (device["memory_bytes_per_s"], device["clock_hz"]) == (898_048_000_000, 1_530_000_000)
    assert "secret" not in str(manifest)
    assert "/home/me" not in str(manifest)


def test_kernels_of_kernels_and_migrations_of_managed_memory(tmp_path: Path) -> None:
    def more(writer: Writer) -> None:
        for name, grid, parent in (("child", 50, 1), ("grandchild", 51, 50), ("orphan", 53, 52)):
            writer.kernel(910, 920, 0, name, table="CDP_KERNEL", gridId=grid, parentGridId=parent)
        span = {"start": EPOCH + 930, "end": EPOCH + 940, "address": 0, "streamId": 0, "processId": PID, "flags": 0}
        writer.row("UNIFIED_MEMORY_COUNTER", counterKind=1, value=4096, srcId=7, dstId=0, **span)
        writer.row("UNIFIED_MEMORY_COUNTER", counterKind=3, value=1, srcId=0, dstId=0, **span)

    dataset = parsed(tmp_path, change=more)
    assert counted(dataset) == {"other_event": 1}
    rows = {row["name"]: row for row in dataset.table("kernels").to_pylist()}
    modules = {name: rows[name]["module"] for name in ("child", "grandchild", "orphan")}
    assert modules == {"child": "top.a", "grandchild": "top.a", "orphan": None}
    migration = rows[f"[CUDA memcpy {COPY_KINDS[11]}]"]
    assert (migration["bytes"], migration["cause"], migration["device"]) == (4096, "managed_memory", 0)


def test_a_kernel_of_a_kernel_whose_grid_s_id_came_again_has_no_launch(tmp_path: Path) -> None:
    def again(writer: Writer) -> None:
        writer.kernel(986, 988, 3, "again", gridId=1)
        writer.kernel(991, 992, 0, "child", table="CDP_KERNEL", gridId=50, parentGridId=1)

    assert by_time(parsed(tmp_path, change=again), "name", "module", "cause")[-1] == ("child", None, "no_launch")


def test_of_several_processes_work_goes_only_to_the_one_that_can_have_launched_it(tmp_path: Path) -> None:
    def other(writer: Writer) -> None:
        writer.db.execute(f"UPDATE {activity('DRIVER')} SET processId = 78")  # noqa: S608
        writer.call("RUNTIME", TID, (20, 25), 1, "cudaLaunchKernel")
        writer.db.execute(f"UPDATE {activity('RUNTIME')} SET processId = 78 WHERE _id_ = 3")  # noqa: S608

    dataset = parsed(tmp_path, change=other)
    assert by_time(dataset, "name", "pid", "module") == [
        ("gemm", None, None),
        ("[CUDA memcpy Host-to-Device]", PID, "top"),
        ("plain_c_name", 78, None),
        ("[CUDA memset]", None, None),
    ]
    assert counted(dataset) == {"process_unknown": 2}
    assert lacks(dataset) == {"the processes of 2 pieces of GPU work"}


def test_calls_that_failed_launch_nothing_and_those_that_end_a_capture_or_wait_have_not_failed(tmp_path: Path) -> None:
    codes = f"UPDATE {activity('RUNTIME')} SET returnValue = %d WHERE correlationId = %d"  # noqa: S608

    def failed(writer: Writer) -> None:
        writer.call("RUNTIME", TID, (80, 85), 9, "cudaStreamEndCapture")
        for code, call in ((2, 1), (600, 2), (2, 9)):
            writer.db.execute(codes % (code, call))

    dataset = parsed(tmp_path, change=failed)
    assert by_time(dataset, "name", "module", "cause")[:2] == [
        ("gemm", None, "impossible_launch"),
        ("[CUDA memcpy Host-to-Device]", "top", None),
    ]
    assert counted(dataset) == {"failed_call": 1}


def test_work_that_names_the_runtime_s_call_beside_the_driver_s_is_launched_by_it(tmp_path: Path) -> None:
    def of_cuda_5(writer: Writer) -> None:
        writer.db.execute(f"ALTER TABLE {activity('CONCURRENT_KERNEL')} ADD COLUMN runtimeCorrelationId")
        writer.kernel(991, 995, 40, "late", runtimeCorrelationId=2)

    assert by_time(parsed(tmp_path, change=of_cuda_5), "name", "module")[-1] == ("late", "top")


def test_only_work_of_graphs_has_a_graph_and_a_node(tmp_path: Path) -> None:
    def of_cuda_10(writer: Writer) -> None:
        for column in ("graphNodeId", "graphId"):
            writer.db.execute(f"ALTER TABLE {activity('CONCURRENT_KERNEL')} ADD COLUMN {column} DEFAULT 0")
        writer.kernel(991, 995, 40, "replayed", graphNodeId=5, graphId=2)

    kernels = by_time(parsed(tmp_path, change=of_cuda_10), "name", "graph_id", "graph_node_id")
    assert kernels[0] == ("gemm", None, None)
    assert kernels[-1] == ("replayed", 2, 5)


def test_times_that_were_not_recorded_are_counted_and_not_believed(tmp_path: Path) -> None:
    def untimed(writer: Writer) -> None:
        writer.kernel(-EPOCH, -EPOCH, 8, "never_seen")
        writer.kernel(991, -EPOCH, 9, "without_end")

    dataset = parsed(tmp_path, change=untimed)
    rows = {row["name"]: row["dur_ns"] for row in dataset.table("kernels").to_pylist()}
    assert rows["without_end"] == 0
    assert "never_seen" not in rows
    assert counted(dataset) == {"time_unknown": 1, "ends_before_start": 1}


@pytest.mark.parametrize("lines", ["", "kernel 1 2 #1 alone", "push 5 1 2 alone", "api 5 1 2 #1 cudaFree"])
def test_a_file_with_little_in_it_says_what_it_lacks(tmp_path: Path, lines: str) -> None:
    missing = lacks(parsed(tmp_path, lines))
    assert ("NVTX ranges" in missing) == ("push" not in lines)
    assert ("GPU work" in missing) == ("kernel" not in lines)
    assert ("CUDA API calls" in missing) == ("kernel" in lines)


def test_changes_that_are_still_in_the_log_of_the_file_are_lacking(tmp_path: Path) -> None:
    path = written(tmp_path / "run.prof", LINES, "PRAGMA journal_mode=WAL")
    assert lacks(tracekit.parse(path)) == set()
    path.with_name("run.prof-wal").write_bytes(b"more")
    assert lacks(tracekit.parse(path, force=True)) == {"its latest changes, which are still in run.prof-wal"}


def test_symbols_are_spelled_out_as_nsight_does() -> None:
    symbol = "_ZN2at6native12_GLOBAL__N_13sumILi4EEEvPfi"
    assert full_name(symbol) == "void at::native::(anonymous namespace)::sum<4>(float*, int)"
    assert kernel_name(symbol) == "sum"
    assert full_name("N5torch8autograd13CopyBackwardsE") == "torch::autograd::CopyBackwards"
    bomb = "_Z1f1A1BIS_S_E" + "".join(f"S0_IS{part}_S{part}_E" for part in "123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    for odd in ("volta_sgemm_128x64_nn", "_Z", "_ZN", "_Z" + "N" * 100_000, "", "i", "None", "N1", bomb):
        assert full_name(odd) == odd


BROKEN = {
    "a text as time": "UPDATE KIND_CONCURRENT_KERNEL SET start = 'soon'",
    "a fraction as id": "UPDATE KIND_RUNTIME SET correlationId = 1.5",
    "a number as thread": "UPDATE KIND_MARKER SET objectId = 5",
    "years between rows": "UPDATE KIND_CONCURRENT_KERNEL SET start = _id_ << 61, end = _id_ << 61",
    "no names of ranges": "ALTER TABLE KIND_MARKER DROP COLUMN name",
    "no strings": "ALTER TABLE StringTable RENAME COLUMN value TO text",
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_nvprof_never_writes_is_refused_in_one_line(tmp_path: Path, what: str) -> None:
    path = written(tmp_path / "run.nvvp", LINES, BROKEN[what])
    with pytest.raises(tracekit.ReportError) as raised:
        tracekit.parse(path)
    assert "\n" not in str(raised.value)
    assert raised.value.path == path


TOLERATED = {
    "short ids of threads": "UPDATE KIND_MARKER SET objectId = x'4d'",
    "unknown calls": "UPDATE KIND_RUNTIME SET cbid = 1 << 40",
    "unknown strings": "UPDATE KIND_CONCURRENT_KERNEL SET name = 12345",
    "negative ids": "UPDATE KIND_RUNTIME SET processId = -1, threadId = -1",
    "huge grids": "UPDATE KIND_CONCURRENT_KERNEL SET gridX = 1 << 50",
    "no threads": "ALTER TABLE KIND_RUNTIME DROP COLUMN threadId",
    "no kinds of objects": "ALTER TABLE KIND_MARKER DROP COLUMN objectKind",
    "no return values": "ALTER TABLE KIND_RUNTIME DROP COLUMN returnValue",
    "undefined copies": "UPDATE KIND_MEMCPY SET copyKind = 99",
    "no markers": "DROP TABLE KIND_MARKER",
    "no calls": "DROP TABLE KIND_RUNTIME; DROP TABLE KIND_DRIVER",
    "nulls": "UPDATE KIND_RUNTIME SET cbid = NULL, processId = NULL, threadId = NULL, returnValue = NULL",
    "markers of nothing": "UPDATE KIND_MARKER SET id = NULL, objectId = NULL, flags = NULL",
}


@pytest.mark.parametrize("what", TOLERATED)
def test_what_is_odd_is_read_as_far_as_it_goes(tmp_path: Path, what: str) -> None:
    dataset = tracekit.parse(written(tmp_path / "run.sql", LINES, TOLERATED[what]))
    assert dataset.table("kernels").num_rows == 4

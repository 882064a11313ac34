"""What nvprof wrote becomes the same tables as a report of Nsight Systems."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import tracekit
from tests.golden import expect
from tests.readers.files import kernels, lacks
from tests.readers.nvprof.files import PID, Writer, file_of, object_id
from tracekit.causes import FAILED_CALL, PROCESS_UNKNOWN, TIME_UNKNOWN
from tracekit.dataset.opening import Dataset
from tracekit.readers.nvprof.work import full_name, kernel_name

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


def parsed(tmp_path: Path, lines: str = LINES, change: Callable[[Writer], None] = bool, sql: str = "") -> Dataset:
    path = tmp_path / "run.prof"
    with file_of(path, lines) as writer:
        change(writer)
        writer.db.executescript(sql.replace("KIND_", "CUPTI_ACTIVITY_KIND_"))
    return tracekit.parse(path, force=True)


def counted(dataset: Dataset) -> dict[str, int]:
    total: Counter[str] = Counter()
    for row in dataset.table("coverage").to_pylist():
        if ":" in row["what"]:
            total[row["detail"]] += row["count"]
    return total


def test_kernels_of_runtime_and_driver_calls_go_to_the_module_open_on_their_thread(tmp_path: Path) -> None:
    dataset = parsed(tmp_path)
    assert kernels(dataset, "name", "start_ns", "module", "launch_name", "pid", "tid") == [
        ("gemm", 900, "top.a", "cudaLaunchKernel", PID, TID),
        ("[CUDA memcpy Host-to-Device]", 960, "top", "cudaMemcpyAsync", PID, TID),
        ("plain_c_name", 975, "top", "cuLaunchKernel", PID, TID),
        ("[CUDA memset]", 985, None, None, PID, None),
    ]
    expect(dataset, "ranges")(f"""
        start_ns  end_ns  tid    parent_range_id
        0         100     {TID}  -
        10        50      {TID}  0
    """)
    assert kernels(dataset, "full_name")[0] == "void foo::gemm<float>(float*)"
    source = dataset.manifest["source"]
    assert (source["format"], source["exporter"], source["schema_version"]) == ("nvprof", "nvprof", "12")
    assert lacks(dataset) == set()


def test_ranges_without_end_or_start_and_rows_that_are_no_ranges_are_counted(tmp_path: Path) -> None:
    def odd(writer: Writer) -> None:
        writer.marker(4, 82, TID, id=999)
        writer.marker(1, 83, TID, "a mark", id=1000)
        writer.marker(8, 84, TID, "a lock", id=1001, domain=writer.string("locks"))

    dataset = parsed(tmp_path, f"{LINES}\npush {TID} 80 - left open", odd)
    assert dataset.ranges(["start_ns", "end_ns", "open"]).values.tolist()[2:] == [[80, 100, True]]
    assert counted(dataset) == {"no end": 1, "no start": 1, "NVTX mark": 1, "other event": 1}


def test_domains_and_threads_on_which_ranges_end(tmp_path: Path) -> None:
    def more(writer: Writer) -> None:
        writer.push(1, 5, 95, "in a domain", domain=writer.string("NCCL"))
        writer.push(1, 6, None, "moved")
        writer.marker(4, 96, 2)
        writer.push(3, 7, 97, "of the process", objectKind=1)

    expect(parsed(tmp_path, "", more), "ranges")("""
        text            domain  kind       start_ns  end_ns  tid  end_tid
        of the process  -       start_end  2         92      0    -
        in a domain     NCCL    push_pop   0         90      1    -
        moved           -       start_end  1         91      1    2
    """)


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
    assert not any(private in str(manifest) for private in ("secret", "/home/me"))


def test_calls_that_failed_launch_nothing_and_those_that_end_a_capture_or_wait_have_not_failed(tmp_path: Path) -> None:
    ends = f"{LINES}\napi {TID} 80 85 #9 cudaStreamEndCapture"
    dataset = parsed(tmp_path, ends, sql="UPDATE KIND_RUNTIME SET returnValue = iif(correlationId = 2, 600, 2)")
    assert kernels(dataset, "module", "cause")[:2] == [(None, "no_launch"), ("top", None)]
    assert counted(dataset) == {FAILED_CALL.detail: 1}


@pytest.mark.parametrize("lines", ["", "kernel 1 2 #1 alone", "push 5 1 2 alone", "api 5 1 2 #1 cudaFree"])
def test_a_file_with_little_in_it_says_what_it_lacks(tmp_path: Path, lines: str) -> None:
    missing = lacks(parsed(tmp_path, lines))
    assert ("NVTX ranges" in missing) == ("push" not in lines)
    assert ("GPU work" in missing) == ("kernel" not in lines)
    assert ("CUDA API calls" in missing) == ("kernel" in lines)


def test_symbols_are_spelled_out_as_nsight_does() -> None:
    symbol = "_ZN2at6native12_GLOBAL__N_13sumILi4EEEvPfi"
    assert full_name(symbol) == "void at::native::(anonymous namespace)::sum<4>(float*, int)"
    assert kernel_name(symbol) == "sum"
    assert full_name("N5torch8autograd13CopyBackwardsE") == "torch::autograd::CopyBackwards"
    bomb = "_Z1f1A1BIS_S_E" + "".join(f"S0_IS{part}_S{part}_E" for part in "123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    for odd in (
        "volta_sgemm_128x64_nn",
        "_Z",
        "_ZN",
        "_Z" + "N" * 100_000,
        "_Z1f" + "i" * 9_000,
        "",
        "i",
        "None",
        "N1",
        bomb,
    ):
        assert full_name(odd) == odd


@pytest.mark.parametrize(
    "sql", ["UPDATE KIND_CONCURRENT_KERNEL SET start = 'soon'", "ALTER TABLE KIND_MARKER DROP COLUMN name"]
)
def test_what_nvprof_never_writes_is_refused_in_one_line(tmp_path: Path, sql: str) -> None:
    with pytest.raises(tracekit.ReportError) as raised:
        parsed(tmp_path, sql=sql)
    assert "\n" not in str(raised.value)
    assert raised.value.path == tmp_path / "run.prof"


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE KIND_MARKER SET objectId = x'4d'",
        "UPDATE KIND_RUNTIME SET cbid = 1 << 40",
        "ALTER TABLE KIND_RUNTIME DROP COLUMN threadId",
        "DROP TABLE KIND_MARKER",
        "DROP TABLE KIND_RUNTIME; DROP TABLE KIND_DRIVER",
        "UPDATE KIND_MARKER SET id = NULL, objectId = NULL, flags = NULL",
    ],
)
def test_what_is_odd_is_read_as_far_as_it_goes(tmp_path: Path, sql: str) -> None:
    assert parsed(tmp_path, sql=sql).table("kernels").num_rows == 4


def test_times_that_nvprof_did_not_see_cost_their_rows(tmp_path: Path) -> None:
    dataset = parsed(tmp_path, sql="UPDATE KIND_CONCURRENT_KERNEL SET end = 0 WHERE correlationId = 3")
    assert "plain_c_name" not in kernels(dataset, "name")
    assert counted(dataset) == {TIME_UNKNOWN.detail: 1}


def test_kernels_of_kernels_have_no_launch(tmp_path: Path) -> None:
    dataset = parsed(
        tmp_path, change=lambda writer: writer.placed("CDP_KERNEL", 910, 920, 0, name=writer.string("child"))
    )
    assert ("child", None, "no_launch") in kernels(dataset, "name", "module", "cause")


def test_of_several_processes_none_is_known_to_have_done_the_work(tmp_path: Path) -> None:
    dataset = parsed(tmp_path, sql="UPDATE KIND_DRIVER SET processId = 78")
    assert set(kernels(dataset, "pid")) == {None}
    assert counted(dataset) == {PROCESS_UNKNOWN.detail: 4}
    assert lacks(dataset) == {"the processes of 4 GPU activities"}

"""Which API calls can have started a piece of work, and which cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.golden import check
from tests.trace_lines import report
from tracekit import parse
from tracekit.causes import ADVICE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tracekit.dataset.opening import Dataset

    Parse = Callable[..., Dataset]

IDLE = (
    "cudaStreamSynchronize_v3020",
    "cudaDeviceSynchronize",
    "cuCtxSynchronize",
    "cudaStreamSynchronize_ptsz",
    "cudaEventRecord_v3020",
    "cudaEventRecordWithFlags",
    "cuEventRecord_ptsz",
    "cudaEventQuery",
    "cudaMalloc_v3020",
    "cudaMallocAsync",
    "cuMemAlloc_v2",
    "cudaFree_v3020",
    "cuMemFree_v2",
    "cudaHostAlloc",
    "cudaStreamWaitEvent",
    "cudaStreamIsCapturing_v10000",
    "cudaGetLastError",
    "cudaPeekAtLastError",
    "cudaGetDevice",
    "cuMemGetInfo_v2",
    "cudaStreamCreateWithPriority",
    "cudaDeviceGetAttribute",
    "cudaProfilerStart",
    "cuMemMap",
    "cuMemSetAccess",
)
ABLE = (
    "cudaLaunchKernel_v7000",
    "cudaLaunchKernelExC_v11060",
    "cuLaunchKernel",
    "cuLaunchKernelEx_ptsz",
    "cudaLaunchCooperativeKernel",
    "cudaMemcpy_v3020",
    "cudaMemcpyAsync_ptsz_v7000",
    "cuMemcpyDtoHAsync_v2",
    "cudaMemset",
    "cuMemsetD8Async",
    "cudaMemPrefetchAsync",
    "cudaMemcpyBatchAsync",
    "cuMemMapArrayAsync",
    "cudaStreamAttachMemAsync",
    "cuModuleLoadData",
    "cuLibraryLoadData",
    "cudaGraphUpload",
    "cudaFuncGetAttributes",
    "cudaMallocButNotReally?",
    "cuStreamBatchMemOp",
    "myLibraryLaunch",
)


def launched(dataset: Dataset) -> list[tuple[str | None, str | None, int | None]]:
    rows = dataset.table("kernels", ["module", "cause", "launch_start_ns"]).to_pylist()
    return [(row["module"], row["cause"], row["launch_start_ns"]) for row in rows]


def by(parsed: Parse, name: str) -> Dataset:
    return parsed(f"""
        range  1   0 100  {{'Module': 'top'}}
        launch 1  20  25  #1 {name}
        kernel 1 900 950  #1 gemm
    """)


@pytest.mark.parametrize("name", IDLE)
def test_calls_that_start_nothing_own_no_work(parsed: Parse, name: str) -> None:
    assert launched(by(parsed, name)) == [(None, "impossible_launch", None)]


@pytest.mark.parametrize("name", ABLE)
def test_calls_that_may_start_work_own_it(parsed: Parse, name: str) -> None:
    assert launched(by(parsed, name)) == [("top", None, 20)]


def test_work_that_began_before_its_call_is_nobodys(parsed: Parse) -> None:
    dataset = parsed("""
        range  1   0 100  {'Module': 'top'}
        launch 1  20  25  #1
        launch 1  40  45  #2
        launch 1  60  65  #3
        kernel 1  19  30  #1 too-early
        kernel 1  40  50  #2 at-once
        kernel 1  61  70  #3 while-called
        memcpy 1   5  10  #3 64
    """)
    check(
        dataset,
        "kernels",
        """
        name          module  cause              method  launch_start_ns
        at-once       top     -                  range   40
        while-called  top     -                  range   60
        [CUDA memcpy Host-to-Device]  -  impossible_launch  -  -
        too-early     -       impossible_launch  -       -
    """,
    )
    check(
        dataset,
        "ranges",
        """
        text               gpu_start_ns  gpu_end_ns  gpu_op_count
        {'Module': 'top'}  40            70          2
    """,
    )
    assert ADVICE["impossible_launch"]


def test_a_correlation_id_of_zero_is_none(parsed: Parse) -> None:
    dataset = parsed("""
        range  1   0 100  {'Module': 'top'}
        launch 1  20  25  #0
        kernel 1 900 950  #0 gemm
    """)
    assert launched(dataset) == [(None, "impossible_launch", None)]


def test_an_idle_call_with_the_id_of_a_launch_is_no_rival(parsed: Parse) -> None:
    dataset = parsed("""
        range  1   0 100  {'Module': 'top'}
        launch 1  10  15  #1 cudaEventRecord_v3020
        launch 1  20  25  #1
        kernel 1 900 950  #1 gemm
    """)
    assert launched(dataset) == [("top", None, 20)]


def test_a_failed_call_starts_nothing_and_is_no_rival(parsed: Parse) -> None:
    dataset = parsed("""
        range  1   0 100  {'Module': 'top'}
        launch 1  10  15  #1 cudaLaunchKernel_v7000 returns=719
        launch 1  20  25  #1
        kernel 1 900 950  #1 gemm
        launch 1  30  35  #2 cudaLaunchKernel_v7000 returns=701
        kernel 1 960 970  #2 ghost
        launch 1  40  45  #3 cudaEventQuery_v3020 returns=600
    """)
    assert launched(dataset) == [("top", None, 20), (None, "impossible_launch", None)]
    counted = {(row["what"], row["cause"]): row["count"] for row in dataset.manifest["coverage"]}
    assert counted["launches: left out", "failed_call"] == 2
    assert dataset.manifest["launches"] == 2


def test_a_failed_launch_is_no_node_of_the_graph_that_was_captured(parsed: Parse) -> None:
    dataset = parsed("""
        range   1   0 100  {'Module': 'top'}
        launch  1  10  11  #1 cudaStreamBeginCapture
        range   1  12  20  {'Module': 'top.a'}
        launch  1  13  14  #2 cudaLaunchKernel returns=1
        launch  1  15  16  #3 cudaLaunchKernel
        launch  1  30  31  #4 cudaStreamEndCapture
        node!7  1  30  30
        node!9  1  50  50  7
        launch  1  60  61  #5 cudaGraphLaunch
        kernel!9 1 70  80  #5 gemm
    """)
    check(
        dataset,
        "kernels",
        """
        module  cause  method
        top.a   -      graph_order
    """,
    )


def test_a_launch_of_a_graph_that_failed_lacks_no_time(parsed: Parse) -> None:
    dataset = parsed("""
        launch 1 10 11 #1 cudaGraphLaunch returns=1
        launch 1 20 25 #2
        kernel 1 30 40 #2
        range  1  0 99 {'Module': 'top'}
    """)
    assert dataset.manifest["lacks"] == []


@pytest.mark.parametrize("kind", [11, 12, 13])
@pytest.mark.parametrize("number", ["#-", "#0", "#99"])
def test_migrations_of_managed_memory_have_a_cause_of_their_own(parsed: Parse, kind: int, number: str) -> None:
    dataset = parsed(f"""
        range  1   0 100  {{'Module': 'top'}}
        launch 1  20  25  #1
        kernel 1 900 950  #1 gemm
        memcpy 1 890 900  {number} 4096 kind={kind}
        kernel 1 960 970  #98 orphan
    """)
    assert [row[:2] for row in launched(dataset)] == [
        ("top", None),
        (None, "managed_memory"),
        (None, "no_launch"),
    ]
    assert "cudaMemPrefetchAsync" in ADVICE["managed_memory"]


def test_a_prefetch_that_was_asked_for_belongs_to_who_asked(parsed: Parse) -> None:
    dataset = parsed("""
        range  1   0 100  {'Module': 'top'}
        launch 1  20  25  #1 cudaMemPrefetchAsync_v8000
        memcpy 1 890 900  #1 4096 kind=11
    """)
    assert launched(dataset) == [("top", None, 20)]


@pytest.mark.parametrize(("pieces", "module"), [(1_200, "top"), (500, None)])
def test_a_clock_that_is_off_by_microseconds_shows_in_much_of_the_work(
    tmp_path: Path, pieces: int, module: str | None
) -> None:
    lines = ["range 1 0 1000000000 {'Module': 'top'}"]
    for at in range(pieces):
        call = 1_000 + 10_000 * at
        lead = -3_000 if at % 20 == 0 else 6_000
        lines += [
            f"launch 1 {call} {call + 4_000} #{at + 1}",
            f"kernel 1 {call + lead} {call + lead + 500} #{at + 1} {'early' if lead < 0 else 'gemm'}",
        ]
    lines += [f"launch 1 {10**9 - 900} {10**9 - 800} #{10**6}", f"kernel 1 5 9 #{10**6} absurd"]
    dataset = parse(report(tmp_path / "report.sqlite", "\n".join(lines)))
    kernels = dataset.table("kernels", ["name", "module", "cause"]).to_pylist()
    assert {row["module"] for row in kernels if row["name"] == "early"} == {module}
    assert {row["cause"] for row in kernels if row["name"] == "absurd"} == {"impossible_launch"}

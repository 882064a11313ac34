"""Which API calls can have started a kernel, and which cannot."""

from pathlib import Path

import pytest

from tests.golden import Parse
from tests.trace_lines import report
from tracekit import parse
from tracekit.causes import MANAGED_MEMORY
from tracekit.dataset.opening import Dataset

IDLE = "cudaStreamSynchronize_ptsz", "cuEventRecord_ptsz", "cudaMallocAsync", "cudaStreamIsCapturing_v10000", "cuMemMap"
ABLE = "cuLaunchKernelEx_ptsz", "cudaMemcpyAsync_ptsz_v7000", "cuMemMapArrayAsync", "cudaGraphUpload", "myLibraryLaunch"


def launched(dataset: Dataset) -> list[tuple[str | None, str | None, int | None]]:
    rows = dataset.table("kernels", ["module", "cause", "launch_start_ns"]).to_pylist()
    return [(row["module"], row["cause"], row["launch_start_ns"]) for row in rows]


@pytest.mark.parametrize("name", [*IDLE, *ABLE])
def test_calls_that_may_start_work_own_it_and_others_do_not(parsed: Parse, name: str) -> None:
    dataset = parsed(f"range 1 0 100 {{'Module': 'top'}}\nlaunch 1 20 25 #1 {name}\nkernel 1 900 950 #1 gemm")
    assert launched(dataset) == [("top", None, 20) if name in ABLE else (None, "no_launch", None)]


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
    assert launched(dataset) == [("top", None, 20), (None, "no_launch", None)]
    counted = {(row["what"], row["cause"]): row["count"] for row in dataset.manifest["coverage"]}
    assert counted["launches: left out", "not_needed"] == 2
    assert dataset.manifest["launches"] == 2


@pytest.mark.parametrize(("kind", "number"), [(11, "#-"), (12, "#0"), (13, "#99")])
def test_migrations_of_managed_memory_have_a_cause_of_their_own(parsed: Parse, kind: int, number: str) -> None:
    dataset = parsed(f"""
        range  1   0 100  {{'Module': 'top'}}
        run    1  20  25 gemm
        memcpy 1 890 900  {number} 4096 kind={kind}
        kernel 1 960 970  #98 orphan
    """)
    assert [row[:2] for row in launched(dataset)] == [("top", None), (None, "managed_memory"), (None, "no_launch")]
    assert "cudaMemPrefetchAsync" in MANAGED_MEMORY.advice


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
        lines.append(f"launch 1 {call} {call + 4_000} #{at + 1}")
        lines.append(f"kernel 1 {call + lead} {call + lead + 500} #{at + 1} {'early' if lead < 0 else 'gemm'}")
    lines += [f"launch 1 {10**9 - 900} {10**9 - 800} #{10**6}", f"kernel 1 5 9 #{10**6} absurd"]
    dataset = parse(report(tmp_path / "report.sqlite", "\n".join(lines)))
    kernels = dataset.table("kernels", ["name", "module", "cause"]).to_pylist()
    assert {row["module"] for row in kernels if row["name"] == "early"} == {module}
    assert {row["cause"] for row in kernels if row["name"] == "absurd"} == {"no_launch"}

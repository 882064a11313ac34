"""Collapsed stacks beside the trace, and that their sums are those of the table."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings

import tracekit
from tests.command import command
from tests.simulator import simulate, write_report
from tests.simulator.strategies import plans
from tracekit.exports.base import Target
from tracekit.exports.stacks import write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.simulator import Plan
    from tracekit.dataset.opening import Dataset

    Parse = Callable[..., Dataset]


def stacks(dataset: Dataset, out: Path) -> str:
    outcome = command("export", dataset.folder, "--format", "stacks", "-o", out, "--quiet", "--force")
    assert outcome == (0, "", "")
    return out.read_text("utf-8")


def test_a_stack_is_the_path_and_the_kernel_with_its_own_time(parsed: Parse, tmp_path: Path) -> None:
    dataset = parsed("""
        range  1   0 100 {'Module': 'top'}
        range  1  10  50 {'Module': 'top.layers.0'}
        launch 1  20  24 #1
        kernel 1 900 910 #1 gemm
        kernel 1 910 925 #1 gemm
        kernel 1 925 926 #1 relu
        range  1  60  70 {'Module': 'top.layers.1'}
        launch 1  61  68 #3
        kernel 1 955 958 #3 gemm
        launch 1  80  81 #4
        memcpy 1 960 970 #4 64
        kernel 1 980 981 #9 orphan
    """)
    assert stacks(dataset, tmp_path / "out") == (
        "top;[CUDA memcpy Host-to-Device] 10\n"
        "top;layers;0;gemm 25\n"
        "top;layers;0;relu 1\n"
        "top;layers;1;gemm 3\n"
        "[no_launch];orphan 1\n"
    )
    shares: list[tuple[str, float]] = []
    write(dataset, Target(str(tmp_path / "again"), force=False), lambda *share: shares.append(share))
    assert shares[-1] == ("exporting", 1.0)


def test_what_would_break_a_stack_is_replaced(parsed: Parse, tmp_path: Path) -> None:
    dataset = parsed("""
        range  1   0 100 {'Module': 'top.a;b\\n'}
        launch 1  20  24 #1
        kernel 1 900 910 #1 void f<a;b>(int) [clone 3]
    """)
    text = stacks(dataset, tmp_path / "out")
    assert text == "top;a,b\N{REPLACEMENT CHARACTER};void f<a,b>(int) [clone 3] 10\n"


def sums(text: str) -> Counter[str]:
    """Time by all but the last frame, read as flame graph programs do."""
    totals: Counter[str] = Counter()
    for line in text.splitlines():
        stack, _, time = line.rpartition(" ")
        totals[stack.rpartition(";")[0]] += int(time)
    return totals


def expected(dataset: Dataset) -> Counter[str]:
    totals: Counter[str] = Counter()
    for row in dataset.table("kernels", ["module", "cause", "dur_ns"]).to_pylist():
        totals[(row["module"] or f"[{row['cause']}]").replace(".", ";")] += row["dur_ns"]
    return totals


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plans())
def test_sums_of_stacks_are_the_kernels_time_by_module_in_any_program(tmp_path: Path, plan: Plan) -> None:
    path = tmp_path / "report.sqlite"
    path.unlink(missing_ok=True)
    write_report(simulate(plan), path)
    dataset = tracekit.parse(path, force=True)
    assert sums(stacks(dataset, tmp_path / "out")) == expected(dataset)

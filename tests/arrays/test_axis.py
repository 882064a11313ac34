"""Figures come from times, never from places on an axis: threads, devices and reports may be decades apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
import pytest

import tracekit
from tests.golden import check, check_frame
from tests.joined import joined_here
from tests.simulator import capturing, eventful, simulate, write_report
from tests.trace_lines import report
from tracekit.analyses import (
    ANALYSES,
    gaps,
    launches,
    modules as modules_by_time,
    steps as steps_by_time,
)
from tracekit.arrays import axis
from tracekit.errors import DatasetError
from tracekit.tables import TABLES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.simulator import Plan
    from tracekit.dataset.opening import Dataset

#: Nanoseconds since 1970, as recorders without a session write them.
EPOCH = 1_700_000_000_123_456_789


@pytest.mark.parametrize("far", [range(2, 3), range(2, 40)])
def test_launches_take_as_long_as_they_do_however_far_threads_are_apart(
    parsed: Callable[..., Dataset], far: range
) -> None:
    """One of eight threads has a range from long ago, or so many that the axis has no room for lengths."""
    beside = "\n".join(f"range 1/{thread} 0 9 beside" for thread in range(2, max(far[-1], 8) + 1))
    ago = "\n".join(f"range 1/{thread} {-(2**60)} {-(2**60) + 5} long ago" for thread in far)
    dataset = parsed(f"""
        range  1   0 100 {{'Module': 'top'}}
        launch 1  10  40 #1
        kernel 1  50  60 #1 gemm
        {ago}
        {beside}
    """)
    check(
        dataset,
        "calls",
        """
        module  launch_time_ns  gpu_time_ns
        top     30              10
    """,
    )


def two_devices(at: int) -> str:
    return f"""
        range    5 {at}       {at + 100}    {{'Module': 'net'}}
        launch   5 {at + 10}  {at + 20}     #1
        launch   5 {at + 30}  {at + 40}     #2
        kernel:0 5 {at + 100} {at + 30_100} #1 gemm
        kernel:1 5 {at + 200} {at + 600}    #2 gemm
        launch   5 {at + 50}  {at + 60}     #3
        kernel:0 5 {at + 40_000} {at + 40_200} #3 gemm
    """


def test_a_report_at_epoch_time_beside_one_from_zero_on_keeps_its_figures(tmp_path: Path) -> None:
    paths = [
        report(tmp_path / f"rank{at}.sqlite", two_devices(at * EPOCH).replace(" 5 ", f" {5 + at} ")) for at in range(2)
    ]
    dataset = joined_here(paths, tmp_path / "both")
    check_frame(
        modules_by_time.frame(dataset)[["path", "inclusive_ns", "busy_ns"]],
        """
        path  inclusive_ns  busy_ns
        net   61200         61200
    """,
    )
    check_frame(
        steps_by_time.frame(dataset)[["report", "gpu_time_ns", "busy_ns"]],
        """
        report  gpu_time_ns  busy_ns
        rank0   30600        30600
        rank1   30600        30600
    """,
    )
    check_frame(
        gaps.frame(dataset)[["report", "device", "idle_ns", "share"]],
        """
        report  device  idle_ns  share
        rank0   0       9900     0.2469
        rank1   0       9900     0.2469
    """,
    )


def written(plan: Plan, path: Path) -> Path:
    return write_report(simulate(plan), path)


def test_no_analysis_asks_how_far_reports_are_apart(tmp_path: Path) -> None:
    first = written(eventful(1, epoch_ns=0), tmp_path / "a.sqlite")
    datasets = []
    for number, epoch in enumerate((1_000, EPOCH)):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        second = written(eventful(2, epoch_ns=epoch), folder / "b.sqlite")
        datasets.append(joined_here([first, second], folder / "both"))
    for analysis in ANALYSES:
        near, far = (analysis.frame(dataset) for dataset in datasets)
        pd.testing.assert_frame_equal(near, far)


@pytest.mark.parametrize("plan", [eventful(3), capturing(4, actions=25)])
def test_tables_are_the_same_where_every_axis_is_of_ranks(
    tmp_path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(plan, tmp_path / "program.sqlite")
    as_times = tracekit.parse(path, tmp_path / "times")
    monkeypatch.setattr(axis, "_ROOM", 0.0)
    as_ranks = tracekit.parse(path, tmp_path / "ranks")
    for table in TABLES:
        name = table.SPEC.name
        assert as_ranks.table(name).to_pylist() == as_times.table(name).to_pylist()


def test_devices_that_have_no_room_beside_each_other_get_no_figure(tmp_path: Path) -> None:
    far = 2**51
    ends = "\n".join(f"kernel:{device} 1 {at} {at + 5} #- gemm" for device in range(5000) for at in (-far, far - 5))
    dataset = tracekit.parse(report(tmp_path / "report.sqlite", ends))
    for analysis in (gaps, launches):
        with pytest.raises(DatasetError, match="spans more than 584 years in total"):
            analysis.frame(dataset)

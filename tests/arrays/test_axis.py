"""Figures come from times, never from places on an axis: threads, devices and reports may be decades apart."""

from pathlib import Path

import pandas as pd
import pytest

import tracekit
from tests.golden import expect
from tests.joined import joined_here
from tests.simulator import capturing, eventful, simulate, write_report
from tests.trace_lines import report
from tracekit.answers import ANALYSES, gaps, launches
from tracekit.arrays import intervals as axis
from tracekit.errors import DatasetError
from tracekit.tables import TABLES

#: Nanoseconds since 1970, as recorders without a session write them.
EPOCH = 1_700_000_000_123_456_789


@pytest.mark.parametrize("far", [range(2, 3), range(2, 40)])
def test_launches_take_as_long_as_they_do_however_far_threads_are_apart(parsed, far) -> None:
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
    expect(dataset, "calls")("module  launch_time_ns  gpu_time_ns\ntop  30  10")


def test_no_analysis_asks_how_far_reports_are_apart(tmp_path: Path) -> None:
    first = write_report(simulate(eventful(1, epoch_ns=0)), tmp_path / "a.sqlite")
    datasets = []
    for epoch in (1_000, EPOCH):
        (tmp_path / "b.sqlite").unlink(missing_ok=True)
        second = write_report(simulate(eventful(2, epoch_ns=epoch)), tmp_path / "b.sqlite")
        datasets.append(joined_here([first, second], tmp_path / f"both{epoch}"))
    for analysis in ANALYSES:
        # The evidence of findings names the folder.
        near, far = (analysis.frame(dataset).drop(columns="evidence", errors="ignore") for dataset in datasets)
        pd.testing.assert_frame_equal(near, far)


@pytest.mark.parametrize("plan", [eventful(3), capturing(4, actions=25)])
def test_tables_are_the_same_where_every_axis_is_of_ranks(tmp_path, plan, monkeypatch) -> None:
    path = write_report(simulate(plan), tmp_path / "program.sqlite")
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
        with pytest.raises(DatasetError, match="spans more than a century in total"):
            analysis.frame(dataset)

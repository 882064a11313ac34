"""Answers put together from single reports, against those from all rows at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
import pytest

from tests.joined import joined_here
from tests.simulator import eventful, simulate, write_report
from tests.simulator.ranks import Job, reports, simulated
from tests.trace_lines import report
from tracekit.analyses import (
    classes,
    communication,
    copies,
    gaps,
    layers,
    modules,
    phases,
    processes,
    steps,
    tree,
)
from tracekit.dataset.opening import Dataset
from tracekit.errors import DatasetError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tracekit.analyses.base import Analysis

BY_REPORT = [classes, communication, copies, gaps, layers, modules, phases, processes, steps, tree]


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("several")
    files = [
        write_report(simulate(eventful(seed, actions=60, same_model=seed % 2 == 0)), folder / f"job{seed}.sqlite")
        for seed in range(3)
    ]
    files += reports(simulated(Job(seed=1, ranks=2, steps=3)), folder / "ranks")
    files.append(report(folder / "empty.sqlite", "range 1 0 10 nothing ran\n"))
    return joined_here(files, folder / "run.tracekit")


def at_once(dataset: Dataset) -> Iterator[Dataset]:
    """All reports as if they were one."""
    yield dataset


@pytest.mark.parametrize("analysis", BY_REPORT, ids=lambda analysis: analysis.NAME)
def test_rows_are_those_of_all_reports_at_once(
    several: Dataset, analysis: Analysis, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = analysis.frame(several)
    monkeypatch.setattr(Dataset, "by_report", at_once)
    expected = analysis.frame(several)
    assert len(expected)
    pd.testing.assert_frame_equal(found, expected)


@pytest.mark.parametrize("analysis", [one for one in BY_REPORT if one is not gaps], ids=lambda analysis: analysis.NAME)
def test_rows_of_a_subtree_are_those_of_all_reports_at_once(
    several: Dataset, analysis: Analysis, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = several.modules(["path", "depth"])
    path = str(paths[paths["depth"] == 1]["path"].iloc[0])
    found = analysis.frame(several.subtree(path))
    monkeypatch.setattr(Dataset, "by_report", at_once)
    pd.testing.assert_frame_equal(found, analysis.frame(several.subtree(path)))


def test_a_part_is_refused_once_another_parse_replaced_the_dataset(tmp_path: Path) -> None:
    files = reports(simulated(Job(seed=1, ranks=2, steps=2)), tmp_path)
    part = joined_here(files, tmp_path / "run.tracekit").of_reports("rank1")
    (tmp_path / "run.tracekit").rename(tmp_path / "before")
    joined_here(files[::-1], tmp_path / "run.tracekit")
    with pytest.raises(DatasetError, match="was replaced"):
        part.table("kernels")


def test_a_part_has_only_its_own_rows(several: Dataset) -> None:
    parts = [*several.by_report()]
    assert [part.reports for part in parts] == [[name] for name in several.reports]
    for name in ("kernels", "calls", "steps", "ranges"):
        assert sum(part.table(name).num_rows for part in parts) == several.table(name).num_rows
        assert all(set(part.table(name).column("report").to_pylist()) <= {*part.reports} for part in parts)

"""Answers put together from single reports, against those from all rows at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
import pytest

from tests.analyses.test_fusions import KERNELS, recorded
from tests.joined import joined_here
from tests.simulator import eventful, simulate, write_report
from tests.simulator.ranks import Job, reports, simulated
from tests.trace_lines import report
from tracekit.analyses import (
    ANALYSES,
    clocks,
    coverage,
    fusions,
    gaps,
    kernels,
    memory,
    module_kernels,
    modules,
    roofline,
    shapes,
    stragglers,
    tree,
)
from tracekit.dataset.opening import Dataset
from tracekit.errors import DatasetError
from tracekit.views.wording import records

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tracekit.analyses.base import Analysis

#: Questions whose costs of calls need all reports at once are not among them.
BY_REPORT = [one for one in ANALYSES if one not in (clocks, memory, roofline, shapes, stragglers)]
OF_SUBTREES = [one for one in BY_REPORT if one not in (gaps, coverage)]


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
    assert len(expected) or analysis is fusions
    pd.testing.assert_frame_equal(found, expected)


@pytest.mark.parametrize("analysis", OF_SUBTREES, ids=lambda analysis: analysis.NAME)
def test_rows_of_a_subtree_are_those_of_all_reports_at_once(
    several: Dataset, analysis: Analysis, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = several.modules(["path", "depth"])
    path = str(paths[paths["depth"] == 1]["path"].iloc[0])
    found = analysis.frame(several.subtree(path))
    monkeypatch.setattr(Dataset, "by_report", at_once)
    pd.testing.assert_frame_equal(found, analysis.frame(several.subtree(path)))


@pytest.mark.parametrize("analysis", [fusions, kernels, module_kernels, modules, tree], ids=lambda one: one.NAME)
def test_fused_kernels_of_several_reports_are_put_together(
    analysis: Analysis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = of_fused_kernels(tmp_path)
    found = analysis.frame(dataset)
    monkeypatch.setattr(Dataset, "by_report", at_once)
    assert same_rows(found, analysis.frame(dataset))


def test_certainty_is_that_of_each_report(tmp_path: Path) -> None:
    dataset = of_fused_kernels(tmp_path)
    rows = coverage.frame(dataset)
    told = rows[rows["what"] == "certainty"][["report", "cause", "count", "time_ns"]].to_numpy().tolist()
    first, second, third = dataset.reports
    assert told == [
        [first, "exact", 1, 40],
        [first, "weighted", 6, 240],
        [second, "exact", 1, 40],
        [second, "weighted", 4, 160],
        [third, "exact", 1, 40],
    ]


def of_fused_kernels(folder: Path) -> Dataset:
    """A dataset of three reports whose fused kernels are the same in part."""
    files = []
    for number, kernels_of in enumerate((KERNELS, KERNELS[2:], KERNELS[6:])):
        place = folder / f"job{number}"
        place.mkdir()
        recorded(place, kernels_of)
        files.append((place / "a.sqlite").rename(place / f"rank{number}.sqlite"))
    return joined_here(files, folder / "run.tracekit")


def same_rows(one: pd.DataFrame, other: pd.DataFrame) -> bool:
    """Whether the rows are the same; those of equal time may come in any order."""
    rows, expected = (sorted(map(str, records(frame))) for frame in (one, other))
    return rows == expected and bool(rows) and list(one.dtypes) == list(other.dtypes)


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

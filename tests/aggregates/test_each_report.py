"""Answers put together from single reports, against those from all rows at once."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from tests.answers.test_fusions import KERNELS, recorded
from tests.comparison.test_difference_phases import training
from tests.joined import joined_here
from tests.simulator import capturing, eventful, simulate, write_report
from tests.simulator.compiled.program import program
from tests.simulator.ranks import Job, reports, simulated
from tests.trace_lines import report
from tracekit.aggregates.spread import Values, spread
from tracekit.answers import (
    ANALYSES,
    Analysis,
    budget,
    coverage,
    findings,
    fusions,
    gaps,
    kernels,
    lines,
    module_kernels,
    modules,
    tree,
)
from tracekit.comparison.difference import Difference, compare
from tracekit.dataset.opening import Dataset
from tracekit.errors import DatasetError
from tracekit.progress import no_progress
from tracekit.views.page.document import contents

BY_REPORT = [one for one in ANALYSES if not getattr(one, "COMPARES_REPORTS", False)]
#: The table that is one for all reports.
UNITED = {"modules"}


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("several")
    files = [
        write_report(simulate(eventful(seed, actions=60, same_model=seed % 2 == 0)), folder / f"job{seed}.sqlite")
        for seed in range(2)
    ]
    files.append(write_report(simulate(capturing(0)), folder / "graphs.sqlite"))
    whole = simulate(capturing(7, graph_traces=True))
    files.append(write_report(whole, folder / "whole.sqlite"))
    lines = "".join(line if line.endswith("\n") else f"{line}\n" for line in program(0).lines)
    files.append(report(folder / "compiled.sqlite", lines))
    files += reports(simulated(Job(seed=1, ranks=2, steps=3)), folder / "ranks")
    files.append(report(folder / "empty.sqlite", "range 1 0 10 nothing ran\n"))
    return joined_here(files, folder / "run.tracekit")


def at_once(dataset: Dataset) -> Iterator[Dataset]:
    yield dataset


#: A budget and the model of a step are of one report after the other, and these reports record no lines; see the tests
#: of each for several.
AT_ONCE = [one for one in BY_REPORT if one not in (coverage, budget, findings, lines)]


@pytest.mark.parametrize("analysis", AT_ONCE, ids=lambda analysis: analysis.NAME)
def test_rows_are_those_of_all_reports_at_once(
    several: Dataset, analysis: Analysis, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = analysis.frame(several)
    monkeypatch.setattr(Dataset, "by_report", at_once)
    expected = analysis.frame(several)
    assert len(expected)
    same(found, expected)


def same(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    rounded = [name for name in ("roof_share",) if name in found]
    pd.testing.assert_frame_equal(found.drop(columns=rounded), expected.drop(columns=rounded), check_exact=True)
    pd.testing.assert_frame_equal(found[rounded], expected[rounded], rtol=1e-12)


def whole_page(dataset: Dataset) -> dict[str, Any]:
    return contents(dataset, (dataset,), no_progress, {}, None)


ASKED: dict[str, Callable[[Dataset], object]] = {
    **{one.NAME: one.frame for one in ANALYSES},
    "diff": lambda dataset: compare(dataset, dataset),
    "page": whole_page,
}


@pytest.mark.parametrize("name", ASKED)
def test_rows_of_several_reports_are_never_in_memory_together(
    several: Dataset, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def table(self: Dataset, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        assert len(self.reports) <= 1 or name in UNITED, name
        return read(self, name, columns)

    read = Dataset.table
    monkeypatch.setattr(Dataset, "table", table)
    ASKED[name](several)


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> tuple[Dataset, Dataset]:
    folder = tmp_path_factory.mktemp("trainings")
    sides = []
    for side, slow in (("before", (100, 100)), ("after", (100, 180))):
        (folder / side).mkdir()
        files = [
            training(folder / side, f"job{at}", forward=60, backward=backward, steps=5 + at)
            for at, backward in enumerate(slow)
        ]
        sides.append(joined_here(files, folder / f"{side}.tracekit"))
    return sides[0], sides[1]


def same_difference(found: Difference, expected: Difference) -> None:
    for name in ("rows", "kernels", "phases"):
        pd.testing.assert_frame_equal(getattr(found, name), getattr(expected, name), check_exact=True)
    assert (found.notes, found.node, found.patterns) == (expected.notes, expected.node, expected.patterns)


@pytest.mark.parametrize(
    ("which", "shapes"),
    [("trainings", True), ("trainings", False), ("some of several", True), ("none have steps", False)],
)
def test_what_changed_between_several_reports_is_that_of_all_at_once(
    several: Dataset, trainings: tuple[Dataset, Dataset], which: str, shapes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_gpu = [name for name in several.reports if name.startswith(("job", "graphs"))]
    before, after = {
        "trainings": trainings,
        "some of several": (several.of_reports(*on_gpu[:2]), several.of_reports(*on_gpu[1:])),
        "none have steps": (several.of_reports("empty", on_gpu[0]), several.of_reports("rank0", "rank1", "empty")),
    }[which]
    found = compare(before, after, shapes=shapes)
    assert len(found.rows)
    assert len(found.phases) or which != "trainings"
    with monkeypatch.context() as patched:
        patched.setattr(Dataset, "by_report", at_once)
        same_difference(found, compare(before, after, shapes=shapes))
    monkeypatch.setattr("tracekit.comparison.step_metrics._MOST_ROWS", 7)
    same_difference(compare(before, after, shapes=shapes), found)


def test_medians_over_steps_of_several_reports_are_those_of_all_steps(trainings: tuple[Dataset, Dataset]) -> None:
    found = compare(*trainings).rows.set_index(["what", "path"])
    for name, side in zip(("before", "after"), trainings, strict=True):
        work = side.kernels(["step_id", "module", "dur_ns"])
        by_step = work[work["module"].notna()].groupby("step_id")["dur_ns"].sum()
        assert found.loc[("module", "top"), f"{name}_ns"].sum() == by_step.median()
        assert found.loc[("step", "train"), f"{name}_steps"] == len(by_step)


def drawings(page: dict[str, Any]) -> dict[tuple[str, int | None], dict[str, Any]]:
    """What the page draws of each report and step, with the names of pieces in place of their numbers."""
    names = [*page["timeline"]["names"], "a call of a module", None]
    found = {}
    for drawing in page["timeline"]["drawn"]:
        named = {
            part: drawing[part] | {"name": [names[at] for at in drawing[part]["name"]]}
            for part in ("pieces", "host")
            if part in drawing
        }
        step = drawing["step"] and drawing["step"]["step_id"]
        found[drawing["report"], step] = drawing | named | {"step": step}
    return found


def test_what_the_page_of_several_reports_draws_is_that_of_each_by_itself(several: Dataset) -> None:
    page = whole_page(several)
    drawn, compared = drawings(page), 0
    for name in several.reports:
        alone = whole_page(several.of_reports(name))
        by_itself = drawings(alone)
        assert ((name, None) in drawn) == ((name, None) in by_itself)
        for key in drawn.keys() & by_itself.keys():
            assert drawn[key] == by_itself[key]
            compared += key[1] is not None
        idle = [row for row in page["idle"]["devices"] if row["report"] == name]
        assert idle == [row | {"share": pytest.approx(row["share"])} for row in alone["idle"]["devices"]]
    assert compared == sum(None not in key for key in drawn) > 1
    largest = gaps.frame(several).head(len(page["idle"]["pairs"]))
    assert [row["idle_ns"] for row in page["idle"]["pairs"]] == largest["idle_ns"].tolist()
    sums = coverage.frame(several)
    shown = {(row["what"], row["cause"]): row["time_ns"] for row in page["coverage"]["kernels"]}
    of_kernels = sums[sums["what"] == "kernels"]
    assert shown == of_kernels.groupby(["what", "cause"])["time_ns"].sum().to_dict()


@given(
    st.lists(
        st.lists(st.tuples(st.integers(-1, 3), st.integers(-5, 5) | st.integers(-(2**62), 2**62)), max_size=20),
        min_size=1,
        max_size=5,
    )
)
def test_values_that_come_report_by_report_have_the_quantiles_of_all(parts: list[list[tuple[int, int]]]) -> None:
    gathered = Values()
    for part in parts:
        gathered.add(*np.array(part, np.int64).reshape(-1, 2).T)
    found = gathered.spread(4)
    expected = spread(*np.array([row for part in parts for row in part], np.int64).reshape(-1, 2).T, 4)
    np.testing.assert_array_equal(found.size, expected.size)
    np.testing.assert_array_equal(found.mean(), expected.mean())
    for share in (0.0, 0.5, 0.95, 1.0):
        np.testing.assert_array_equal(found.quantile(share), expected.quantile(share))


@pytest.mark.parametrize("analysis", [fusions, kernels, module_kernels, modules, tree], ids=lambda one: one.NAME)
def test_fused_kernels_of_several_reports_are_put_together(
    analysis: Analysis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = of_fused_kernels(tmp_path)
    found = analysis.frame(dataset)
    monkeypatch.setattr(Dataset, "by_report", at_once)
    same(found, analysis.frame(dataset))


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
    files = []
    for number, kernels_of in enumerate((KERNELS, KERNELS[2:], KERNELS[6:])):
        place = folder / f"job{number}"
        place.mkdir()
        recorded(place, kernels_of)
        files.append((place / "a.sqlite").rename(place / f"rank{number}.sqlite"))
    return joined_here(files, folder / "run.tracekit")


def test_a_part_is_refused_once_another_parse_replaced_the_dataset(tmp_path: Path) -> None:
    files = reports(simulated(Job(seed=1, ranks=2, steps=2)), tmp_path)
    part = joined_here(files, tmp_path / "run.tracekit").of_reports("rank1")
    (tmp_path / "run.tracekit").rename(tmp_path / "before")
    joined_here(files[::-1], tmp_path / "run.tracekit")
    with pytest.raises(DatasetError, match="was replaced"):
        part.table("kernels")

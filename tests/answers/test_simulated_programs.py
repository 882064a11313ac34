"""Every figure of every analysis, of simulated programs, against the same worked out row by row."""

import math
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tracekit
from tests.joined import joined_here
from tests.parsed_programs import of_plans
from tests.plain_answers import PLAIN, Plain
from tests.simulator import Plan, capturing, eventful, simulate, write_report
from tests.simulator.strategies import capturing_plans, plans
from tracekit.answers import ANALYSES, modules as modules_by_time
from tracekit.dataset.opening import Dataset
from tracekit.markers.phases import PHASES
from tracekit.views.formatting import records

Row = dict[str, Any]
FRAMES = {analysis.NAME: analysis.frame for analysis in ANALYSES}
#: Columns of `shapes` that come from the costs of modules, which `test_roofline` looks at.
COSTS = ("flops_per_call", "tflops_per_s")
ANY_PLAN = plans() | plans(faulty=True) | capturing_plans() | capturing_plans(faulty=True)


def check_answers(dataset: Dataset) -> None:
    plain = Plain(dataset)
    for name, answer in PLAIN.items():
        found = records(FRAMES[name](dataset))
        if name == "shapes":
            found = [{key: value for key, value in row.items() if key not in COSTS} for row in found]
        check_rows(name, found, list(answer(plain)))


def check_rows(name: str, found: list[Row], expected: list[Row]) -> None:
    assert len(found) == len(expected), name
    for ours, theirs in zip(sorted(found, key=told), sorted(expected, key=told), strict=True):
        assert list(ours) == list(theirs) or set(ours) == set(theirs), name
        for column, value in theirs.items():
            assert alike(ours[column], value), (name, column, ours, theirs)


def told(row: Row) -> str:
    figures = ("_ns", "_token", "share", "steps", "gpu")
    return repr([(key, row[key]) for key in sorted(row) if not key.endswith(figures)])


def alike(ours: object, theirs: object) -> bool:
    if isinstance(theirs, float) and isinstance(ours, int | float):
        return math.isclose(ours, theirs, rel_tol=1e-9, abs_tol=1e-9)
    return ours == theirs


@of_plans(ANY_PLAN, 20, chance=6)
def test_every_figure_is_that_of_the_rows(plan: Plan) -> None:
    with TemporaryDirectory() as folder:
        report = write_report(simulate(plan), Path(folder) / "report.sqlite")
        check_answers(with_phases(tracekit.parse(report)))


def with_phases(dataset: Dataset) -> Dataset:
    known = [*PHASES, None]
    modules = {None, *dataset.table("modules", ["module_id"]).column("module_id").to_pylist()}
    rewrite(dataset, "kernels", modules, phase=lambda row: known[row["kernel_id"] * 5 // 3 % len(known)])
    return dataset


def rewrite(dataset: Dataset, table: str, modules: set[int | None], **columns: Callable[[Row], Any]) -> None:
    path = dataset.folder / f"{table}.parquet"
    arrow = pq.ParquetFile(path).read()
    rows = arrow.to_pylist()
    for name, value in columns.items():
        field = arrow.schema.field(name)
        values = [value(row) if row["module_id"] in modules else row[name] for row in rows]
        plain = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        array = pa.array(values, plain).cast(field.type)
        arrow = arrow.set_column(arrow.schema.get_field_index(name), field, array)
    pq.write_table(arrow, path)


@pytest.fixture(scope="module", params=["eventful", "capturing"])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    plan = {"eventful": eventful, "capturing": capturing}[request.param](3)
    report = tmp_path_factory.mktemp(request.param) / "report.sqlite"
    return tracekit.parse(write_report(simulate(plan), report))


def test_figures_of_several_reports_are_those_of_the_rows(tmp_path: Path) -> None:
    reports = [
        write_report(simulate(plan), tmp_path / f"rank{at}.sqlite")
        for at, plan in enumerate((eventful(5), capturing(6)))
    ]
    check_answers(joined_here(reports, tmp_path / "run"))


def test_flops_of_a_module_are_its_own_and_those_of_the_modules_in_it(program: Dataset) -> None:
    rows = {row["path"]: row for row in records(FRAMES["roofline"](program))}
    for path, row in rows.items():
        own = [one for name, one in rows.items() if name == path or name.startswith(f"{path}.")]
        flops = [one["flops"] for one in own]
        assert row["subtree_flops"] == (None if None in flops else sum(flops))
        assert (row["unknown"] is None) == (row["subtree_flops"] is not None)
        assert row["known_flops"] >= sum(filter(None, flops))


def test_a_subtree_has_the_figures_that_it_has_in_the_whole(program: Dataset) -> None:
    whole = modules_by_time.frame(program).set_index("path")
    launches = FRAMES["launches"](program).set_index("path")
    for path in whole.index[:4]:
        part = program.subtree(path)
        mine = modules_by_time.frame(part).set_index("path")
        columns = ["calls", "kernels", "self_ns", "subtree_ns", "busy_ns", "steps", "step_median_ns"]
        pd.testing.assert_frame_equal(mine[columns], whole.loc[mine.index, columns])
        below = FRAMES["launches"](part).set_index("path")
        pd.testing.assert_frame_equal(below, launches.loc[below.index], check_dtype=False)


@pytest.mark.parametrize("name", ["roofline", "memory"])
def test_a_subtree_costs_what_it_costs_in_the_whole(program: Dataset, name: str) -> None:
    whole = {row["path"]: row for row in records(FRAMES[name](program))}
    for path in list(whole)[:: max(len(whole) // 6, 1)]:
        part = records(FRAMES[name](program.subtree(path)))
        assert part
        assert part == [whole[row["path"]] for row in part]

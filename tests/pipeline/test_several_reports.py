"""Several reports as one dataset: what it holds, and that it holds what the single ones do."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st

import tracekit
from tests.golden import check
from tests.joined import BY_REPORT, check_hierarchy, check_joined, joined_here
from tests.needs import TRACES
from tests.simulator import eventful, simulate, write_report
from tests.simulator.strategies import plans
from tests.trace_lines import report
from tracekit.analyses import modules as modules_by_time, processes
from tracekit.dataset.union import united
from tracekit.pipeline.several import IDS_PER_REPORT
from tracekit.tables import TABLES, modules

if TYPE_CHECKING:
    from tests.simulator import Plan
    from tracekit.dataset.opening import Dataset

#: Two ranks of which each has a layer that the other lacks, and one layer is in both.
RANKS = (
    """
    range  5   0 100 {'Module': 'net'}
    range  5  10  40 {'Module': 'net.embed'}
    launch 5  20  30 #1
    kernel 5 200 210 #1 gather
    range  5  50  90 {'Module': 'net.mlp'}
    launch 5  60  70 #2
    kernel 5 220 250 #2 gemm
    """,
    """
    range  6   0 100 {'Module': 'net'}
    range  6  10  40 {'Module': 'net.mlp'}
    launch 6  20  30 #1
    kernel:1 6 200 230 #1 gemm
    range  6  50  90 {'Module': 'net.head'}
    launch 6  60  70 #2
    kernel:1 6 240 260 #2 gemm
    launch 6 110 120 #3
    kernel:1 6 130 131 #3 free
    """,
)
FAR = IDS_PER_REPORT


def reports(folder: Path, *lines: str) -> list[Path]:
    return [report(folder / f"rank{at}.sqlite", text) for at, text in enumerate(lines)]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("two")
    return tracekit.parse(reports(folder, *RANKS), folder / "run")


def test_a_module_of_both_reports_is_one_row_and_those_of_one_stand_beside_it(two: Dataset) -> None:
    check(
        two,
        "modules",
        """
        module_id  subtree_end_id  parent_id  depth  path
        0          4               -          0      net
        1          2               0          1      net.embed
        2          3               0          1      net.mlp
        3          4               0          1      net.head
    """,
    )


def test_kernels_of_all_reports_are_one_table_with_report_and_rank(two: Dataset) -> None:
    check(
        two,
        "kernels",
        f"""
        report  rank  pid  device  kernel_id  name    module     module_id  call_id
        rank0   0     1    0       0          gather  net.embed  1          1
        rank0   0     1    0       1          gemm    net.mlp    2          2
        rank1   1     1    1       {FAR + 1}  gemm    net.mlp    2          {FAR + 1}
        rank1   1     1    1       {FAR + 2}  gemm    net.head   3          {FAR + 2}
        rank1   1     1    1       {FAR}      free    -          -          -
    """,
    )


def test_calls_and_steps_of_all_reports_are_one_table_too(two: Dataset) -> None:
    check(
        two,
        "calls",
        f"""
        report  rank  call_id    parent_call_id  module     occurrence  step_id  gpu_time_ns
        rank0   0     0          -               net        1           0        40
        rank0   0     1          0               net.embed  1           0        10
        rank0   0     2          0               net.mlp    1           0        30
        rank1   1     {FAR}      -               net        1           {FAR}    50
        rank1   1     {FAR + 1}  {FAR}           net.mlp    1           {FAR}    30
        rank1   1     {FAR + 2}  {FAR}           net.head   1           {FAR}    20
    """,
    )
    check(
        two,
        "steps",
        f"""
        report  rank  step_id  name
        rank0   0     0        net
        rank1   1     {FAR}    net
    """,
    )


def test_the_totals_of_the_manifest_are_the_sums_of_its_reports(two: Dataset) -> None:
    manifest = two.manifest
    assert manifest["rows"] == {
        "ranges": 6,
        "calls": 6,
        "kernels": 5,
        "kernel_modules": 4,
        "modules": 4,
        "steps": 2,
        "coverage": 5,
    }
    totals = {(row["what"], row["cause"]): (row["count"], row["time_ns"], row["share"]) for row in manifest["coverage"]}
    assert totals == {
        ("kernels", "range"): (4, 90, 90 / 91),
        ("kernels", "outside_modules"): (1, 1, 1 / 91),
        ("ranges", "marker"): (6, 340, 1.0),
    }
    assert [
        (entry["name"], entry["source"]["name"], entry["first_id"], entry["rows"]["kernels"])
        for entry in manifest["reports"]
    ] == [("rank0", "rank0.sqlite", 0, 2), ("rank1", "rank1.sqlite", FAR, 3)]
    assert [entry["ranks"] for entry in manifest["reports"]] == [
        [{"pid": 1, "rank": rank, "source": "file_name"}] for rank in (0, 1)
    ]
    assert manifest["left_out"] == []


def test_a_folder_of_several_reports_holds_partitions_and_nothing_else(two: Dataset) -> None:
    files = {str(path.relative_to(two.folder)) for path in two.folder.rglob("*") if path.is_file()}
    assert files == {
        "manifest.json",
        "modules.parquet",
        "modules_of_reports.parquet",
        *(f"{n}.parquet/report=rank{r}/part-0.parquet" for n in BY_REPORT for r in (0, 1)),
    }


@pytest.mark.parametrize("name", BY_REPORT)
def test_pandas_and_pyarrow_read_a_table_s_folder_with_the_report_as_a_column(name: str, two: Dataset) -> None:
    folder = two.folder / f"{name}.parquet"
    table = pq.read_table(folder)
    category = pa.dictionary(pa.int32(), pa.string())
    assert table.schema.field("report").type == category
    assert table.column_names == two.table(name).column_names
    assert table.select(["report"]).to_pylist() == two.table(name, ["report"]).to_pylist()
    frame = pd.read_parquet(folder)
    assert frame["report"].astype(str).tolist() == two.frame(name)["report"].tolist()
    assert two.table(name).schema.field("report").type == category


def test_columns_of_several_reports_come_alone_and_in_the_order_asked_for(two: Dataset) -> None:
    assert two.table("kernels", ["dur_ns"]).column_names == ["dur_ns"]
    assert two.table("kernels", ["report", "dur_ns"]).column_names == ["report", "dur_ns"]
    assert two.table("kernels", ["report"]).column("report").to_pylist() == (["rank0"] * 2 + ["rank1"] * 3)
    assert two.table("kernels", []).num_columns == 0
    assert "report" not in two.table("modules").column_names
    with pytest.raises(tracekit.UsageError, match="modules has no column report; it has module_id"):
        two.table("modules", ["report"])
    with pytest.raises(tracekit.UsageError, match=r"steps has no column x; it has .*, report$"):
        two.table("steps", ["x"])


def test_a_subtree_is_taken_out_of_all_reports(two: Dataset) -> None:
    part = two.subtree("net.mlp")
    check(
        part,
        "kernels",
        """
        report  name  module
        rank0   gemm  net.mlp
        rank1   gemm  net.mlp
    """,
    )
    assert part.calls()["gpu_time_ns"].tolist() == [30, 30]
    assert two.subtree("net.head").steps()["report"].tolist() == ["rank1"]
    assert two.subtree("net.head").table("kernels", ["report"]).num_rows == 1
    assert len(two.subtree("net").kernels()) == 4
    with pytest.raises(tracekit.UsageError, match="coverage is not divided by modules"):
        part.coverage()


def test_analyses_see_one_table(two: Dataset) -> None:
    frame = modules_by_time.frame(two)
    assert frame[["path", "calls", "kernels", "self_ns", "inclusive_ns"]].values.tolist() == [
        ["net", 2, 0, 0, 90],
        ["net.mlp", 2, 2, 60, 60],
        ["net.head", 1, 1, 20, 20],
        ["net.embed", 1, 1, 10, 10],
    ]
    rows = processes.frame(two)
    assert rows.drop(columns="known").values.tolist() == [
        ["rank0", 0, 1, 0, 2, 40, 0, 0],
        ["rank1", 1, 1, 1, 3, 51, 0, 0],
    ]
    assert rows["known"].tolist() == [1.0, 50 / 51]


def test_what_reports_say_differently_of_a_module_is_null_and_counted_in_each(
    tmp_path: Path,
) -> None:
    """Whichever report comes first; what one does not say is filled in."""
    markers = [
        "{'Module': 'a'}",
        "{'Module': 'a', 'TrainableParams': {'w': [2, 3]}}",
        "{'Module': 'a', 'TrainableParams': {'w': [2, 4]}}",
    ]
    paths = reports(tmp_path, *(f"range 1 0 9 {m}" for m in markers))
    dataset = joined_here(paths, tmp_path / "run")
    [module] = dataset.table("modules").to_pylist()
    assert module["params"] == [{"name": "w", "shape": [2, None], "dtype": None}]
    rows = [row for row in dataset.table("coverage").to_pylist() if row["cause"] == "modules_differ"]
    assert [(row["report"], row["what"], row["count"], row["share"]) for row in rows] == [
        ("rank1", "modules: losses", 1, 1.0),
        ("rank2", "modules: losses", 1, 1.0),
    ]
    total = [row for row in dataset.manifest["coverage"] if row["cause"] == "modules_differ"]
    assert [(row["count"], row["share"], row["known"]) for row in total] == [(2, 2 / 3, False)]
    assert "parse reports of different models" in total[0]["advice"]
    assert dataset.manifest["reports"][2]["rows"]["coverage"] == 2
    assert dataset.manifest["rows"]["coverage"] == dataset.table("coverage").num_rows == 5
    other = joined_here(paths[::-1], tmp_path / "other")
    assert other.table("modules").equals(dataset.table("modules"))


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_siblings_stand_as_they_do_in_the_reports_whatever_the_order_of_these(
    tmp_path: Path, order: tuple[int, ...]
) -> None:
    """Stages of a pipeline: what no report has both of stands by number, and by name."""
    stages = (["embed", "layers.0", "layers.1"], ["layers.2", "layers.10"], ["layers.11", "norm", "head"])
    lines = [
        "\n".join(
            f"range 1 {at} {at + 5} {{'Module': 'm.{name}'}}" for at, name in zip(range(0, 99, 10), names, strict=False)
        )
        for names in stages
    ]
    paths = reports(tmp_path, *lines)
    dataset = joined_here([paths[at] for at in order], tmp_path / "run")
    assert dataset.table("modules").column("path").to_pylist() == [
        "m",
        "m.embed",
        "m.layers",
        *(f"m.layers.{at}" for at in (0, 1, 2, 10, 11)),
        "m.norm",
        "m.head",
    ]


def test_the_share_of_a_loss_is_of_what_all_reports_have(tmp_path: Path) -> None:
    work = "launch 1 20 25 #1\nkernel 1 30 40 #1 gemm\n"
    paths = [
        report(tmp_path / "rank1.rank2.sqlite", f"{work}range 1 0 - x"),
        report(tmp_path / "b.sqlite", f"{work}range 1 0 5 y\nrange 1 6 9 z"),
    ]
    dataset = joined_here(paths, tmp_path / "run")
    shares = {row["cause"]: row["share"] for row in dataset.manifest["coverage"]}
    assert shares == {
        "range": 1 / 2,
        "outside_ranges": 1 / 2,
        "plain": 1.0,
        "never_ended": 1 / 3,
        "rank_contradicted": 1 / 2,
    }


def test_rows_come_into_the_order_of_the_united_modules(tmp_path: Path) -> None:
    """The second report knows its modules in another order, the third the same ones with others between."""
    lines = [
        "\n".join(
            f"range 1 {100 * at} {100 * at + 50} {{'Module': '{name}'}}\n"
            f"launch 1 {100 * at + 1} {100 * at + 2} #{at + 1}\n"
            f"kernel 1 {9000 + at} {9001 + at} #{at + 1} {name}"
            for at, name in enumerate(names)
        )
        for names in (["a", "b", "c", "b"], ["c", "a", "b", "a"], ["d", "a", "e", "c"], [])
    ]
    paths = reports(tmp_path, *lines)
    dataset = joined_here(paths, tmp_path / "run")
    check_joined(dataset, {path.stem: tracekit.parse(path) for path in paths})
    assert dataset.kernels()["module"].tolist() == [*"abbc", *"aabc", *"daec"]


@settings(max_examples=12)
@given(st.lists(plans() | plans(faulty=True), min_size=2, max_size=3))
def test_a_joined_dataset_says_of_every_report_what_its_own_dataset_says(these: list[Plan]) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        paths = [write_report(simulate(plan), folder / f"r{at}.sqlite") for at, plan in enumerate(these)]
        singles = {path.stem: tracekit.parse(path) for path in paths}
        check_joined(joined_here(paths, folder / "run"), singles)


def test_the_totals_of_eventful_programs_are_the_sums_of_the_single_ones(tmp_path: Path) -> None:
    paths = [write_report(simulate(eventful(seed, actions=60)), tmp_path / f"rank{seed}.sqlite") for seed in range(3)]
    check_totals(tracekit.parse(paths, tmp_path / "run"), [tracekit.parse(path) for path in paths])


def check_totals(whole: Dataset, singles: list[Dataset]) -> None:
    """Counts and times of the joined dataset are the sums over the single ones."""
    expected = sum(map(totals, singles), Counter())
    actual = totals(whole)
    assert sum(expected.values()) > 0
    for counted in (actual, expected):
        for key in [key for key in counted if "modules_differ" in key]:
            del counted[key]
    assert actual == expected
    for what in ("kernels", "ranges"):
        shares = [row["share"] for row in whole.manifest["coverage"] if row["what"] == what]
        assert not shares or np.isclose(sum(shares), 1.0)


def totals(dataset: Dataset) -> Counter:
    counter: Counter = Counter()
    for row in dataset.manifest["coverage"]:
        counter[row["what"], row["cause"], "count"] += row["count"]
        counter[row["what"], row["cause"], "time"] += row["time_ns"]
    for row in modules_by_time.frame(dataset).to_dict("records"):
        for name in ("calls", "kernels", "self_ns", "inclusive_ns"):
            counter[row["path"], name] += row[name]
    counter["gpu_time"] += int(dataset.kernels()["dur_ns"].sum())
    counter["launches"] += int(dataset.calls()["launch_time_ns"].sum())
    return +counter


@pytest.mark.traces
def test_real_traces_of_several_versions_join(tmp_path: Path) -> None:
    names = (
        "fsdp_2rank_h100_v2026.2",
        "graph_mode_v2025.5",
        "mpi_one_rank_v2020.5.export_v2023.4.4",
        "no_nvtx_v2026.1",
        "saxpy_mpi_backtraces_v2022.2",
        "unversioned_v2021.2",
    )
    paths = [TRACES / "nsys" / f"{name}.sqlite" for name in names]
    whole = tracekit.parse(paths, tmp_path / "run", by="modules")
    singles = {path.stem: tracekit.parse(path, tmp_path / path.stem, by="modules") for path in paths}
    check_totals(whole, list(singles.values()))
    check_joined(whole, singles)


@pytest.mark.traces
def test_ranges_of_real_traces_join_by_their_names(tmp_path: Path) -> None:
    names = ("cupy_domains_v2025.3", "nvfuser_h200_v2025.1", "windows_transformer_v2026.2", "cupy_domains_v2025.3")
    paths = [tmp_path / f"{number}.sqlite" for number, _ in enumerate(names)]
    for path, name in zip(paths, names, strict=True):
        shutil.copyfile(TRACES / "nsys" / f"{name}.sqlite", path)
    whole = tracekit.parse(paths, tmp_path / "run")
    singles = [tracekit.parse(path, tmp_path / path.stem) for path in paths]
    places = [names_down_to_each(single) for single in singles]
    assert sorted(names_down_to_each(whole)) == sorted(set().union(*places))
    joint = names_down_to_each(whole)
    ids = whole.kernels(["module_id"]).module_id
    expected = Counter(
        single_places[number]
        for single, single_places in zip(singles, places, strict=True)
        for number in single.kernels(["module_id"]).module_id.dropna()
    )
    assert Counter(joint[number] for number in ids.dropna()) == expected
    assert {entry["hierarchy"]["by"] for entry in whole.manifest["reports"]} == {"ranges"}


def test_modules_of_one_report_and_ranges_of_another_are_never_one_node(tmp_path: Path) -> None:
    texts = {"marked": ("{'Module': 'top'}", "{'Module': 'top.a'}"), "plain": ("top", "a")}
    paths = [
        report(tmp_path / f"{name}.sqlite", f"range 1 0 100 {outer}\nrange 1 10 20 {inner}")
        for name, (outer, inner) in texts.items()
    ]
    nodes = tracekit.parse(paths, tmp_path / "run").table("modules").to_pylist()
    kinds = [("top", "module"), ("top.a", "module"), ("top~2", "range"), ("top~2.a", "range")]
    assert [(row["path"], row["kind"]) for row in nodes] == kinds


def names_down_to_each(dataset: Dataset) -> list[tuple[str, ...]]:
    """For every module the names from its root down to it."""
    places: list[tuple[str, ...]] = []
    for row in dataset.table("modules").to_pylist():
        above = () if row["parent_id"] is None else places[row["parent_id"]]
        places.append((*above, row["name"]))
    return places


PATHS = st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map(".".join), min_size=0, max_size=12)


@given(st.lists(PATHS, min_size=1, max_size=4))
def test_united_modules_are_in_pre_order_whatever_the_order_of_reports(
    called: list[list[str]],
) -> None:
    """Against the obvious way, for random hierarchies."""
    singles = [hierarchy_of(paths) for paths in called]
    backwards = united([modules.SPEC.table(columns(rows)) for rows in reversed(singles)])
    union = united([modules.SPEC.table(columns(rows)) for rows in singles])
    rows = union.table.to_pylist()
    assert backwards.table.equals(union.table)
    check_hierarchy(rows, singles)
    for own, ids in zip(singles, union.module_id, strict=True):
        assert [rows[at]["path"] for at in ids.tolist()] == [row["path"] for row in own]
    assert union.differing == [0] * len(called)


def hierarchy_of(paths: list[str]) -> list[dict]:
    """The rows of ``modules`` for some paths and the containers above them."""
    parts = [path.split(".") for path in paths]
    seen = dict.fromkeys(".".join(p[:n]) for p in parts for n in range(1, len(p) + 1))
    order: list[str] = []

    def walk(above: str) -> None:
        for path in seen:
            if path.rpartition(".")[0] == above:
                order.append(path)
                walk(path)

    walk("")
    return [
        {
            "module_id": at,
            "subtree_end_id": at + 1 + sum(one.startswith(f"{path}.") for one in order),
            "parent_id": order.index(path.rpartition(".")[0]) if "." in path else None,
            "depth": path.count("."),
            "path": path,
            "name": path.rpartition(".")[2],
            "kind": "module",
            "class_name": None,
            "alias_of": None,
            "params": [],
            "static_params": None,
        }
        for at, path in enumerate(order)
    ]


def columns(rows: list[dict]) -> dict[str, object]:
    return {column.name: pa.array([row[column.name] for row in rows], column.type) for column in modules.SPEC.columns}


def test_every_table_of_a_report_is_partitioned_or_united() -> None:
    assert {table.SPEC.name for table in TABLES} == {*BY_REPORT, "modules"}


@given(PATHS, PATHS)
def test_reports_that_say_the_same_of_modules_are_united_once(first: list[str], second: list[str]) -> None:
    one, other = (modules.SPEC.table(columns(hierarchy_of(paths))) for paths in (first, second))
    alone, again = united([one, other]), united([one, other, one, other])
    assert again.table.equals(alone.table)
    assert [ids.tolist() for ids in again.module_id] == [ids.tolist() for ids in alone.module_id] * 2
    assert again.differing == alone.differing * 2


def test_what_one_of_many_equal_reports_says_differently_counts_in_each(tmp_path: Path) -> None:
    markers = [f"{{'Module': 'a', 'TrainableParams': {{'w': [2, {size}]}}}}" for size in (3, 3, 4, 3)]
    paths = reports(tmp_path, *(f"range 1 0 9 {marker}" for marker in markers))
    dataset = joined_here(paths, tmp_path / "run")
    rows = [row for row in dataset.table("coverage").to_pylist() if row["cause"] == "modules_differ"]
    assert [(row["report"], row["count"]) for row in rows] == [(f"rank{at}", 1) for at in range(4)]


def test_of_many_reports_the_progress_is_that_of_all(tmp_path: Path) -> None:
    paths = reports(tmp_path, *["range 1 0 9 {'Module': 'a'}"] * 20)
    told: list[tuple[str, float]] = []
    dataset = tracekit.parse(paths, tmp_path / "run", progress=lambda stage, share: told.append((stage, share)))
    assert len(dataset.reports) == 20
    assert {stage for stage, _ in told} == {"20 reports", "joining"}
    shares = [share for stage, share in told if stage == "20 reports"]
    assert max(shares) == pytest.approx(1.0)

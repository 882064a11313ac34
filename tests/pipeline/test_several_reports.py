"""Several reports as one dataset: what it holds, and that it holds what the single ones do."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st

import tracekit
from tests.golden import expect
from tests.joined import BY_REPORT, check_joined, joined_here, said_of_reports
from tests.simulator import Plan, simulate, write_report
from tests.simulator.strategies import plans
from tests.trace_lines import report
from tracekit.dataset.opening import Dataset
from tracekit.pipeline.several import IDS_PER_REPORT

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


#: A third rank, with a module between those of the others, and one that it describes differently.
THIRD = """
range  7   0 100 {'Module': 'net'}
range  7  10  40 {'Module': 'net.embed', 'StaticParams': {'size': 8}}
launch 7  20  30 #1
kernel 7 200 210 #1 gather
range  7  42  48 {'Module': 'net.between'}
range  7  50  90 {'Module': 'net.mlp'}
launch 7  60  70 #2
kernel 7 220 250 #2 gemm
"""
#: As the first, but of another size.
CONTRADICTING = RANKS[0].replace("'net.mlp'", "'net.mlp', 'TrainableParams': {'weight': [4, 4]}")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("two")
    return tracekit.parse(reports(folder, *RANKS), folder / "run")


def test_a_module_of_both_reports_is_one_row_and_other_tables_have_the_rows_of_all(two: Dataset) -> None:
    expect(two, "modules")("""
        module_id  subtree_end_id  parent_id  depth  path
        0          4               -          0      net
        1          2               0          1      net.embed
        2          3               0          1      net.mlp
        3          4               0          1      net.head
    """)
    expect(two, "kernels")(f"""
        report  rank  pid  device  kernel_id  name    module     module_id  call_id
        rank0   0     1    0       0          gather  net.embed  1          1
        rank0   0     1    0       1          gemm    net.mlp    2          2
        rank1   1     1    1       {FAR + 1}  gemm    net.mlp    2          {FAR + 1}
        rank1   1     1    1       {FAR + 2}  gemm    net.head   3          {FAR + 2}
        rank1   1     1    1       {FAR}      free    -          -          -
    """)
    expect(two, "calls")(f"""
        report  rank  call_id    parent_call_id  module     occurrence  step_id  gpu_time_ns
        rank0   0     0          -               net        1           0        40
        rank0   0     1          0               net.embed  1           0        10
        rank0   0     2          0               net.mlp    1           0        30
        rank1   1     {FAR}      -               net        1           {FAR}    50
        rank1   1     {FAR + 1}  {FAR}           net.mlp    1           {FAR}    30
        rank1   1     {FAR + 2}  {FAR}           net.head   1           {FAR}    20
    """)
    expect(two, "steps")(f"report  rank  step_id  name\nrank0  0  0  net\nrank1  1  {FAR}  net")


def test_the_totals_of_the_manifest_are_the_sums_of_its_reports(two: Dataset) -> None:
    manifest = two.manifest
    rows = {"ranges": 6, "calls": 6, "kernels": 5, "kernel_modules": 4, "modules": 4, "steps": 2, "coverage": 5}
    assert manifest["rows"] == rows | {"api_calls": 0, "waits": 0, "allocations": 0}
    totals = {(row["what"], row["cause"]): (row["count"], row["time_ns"], row["share"]) for row in manifest["coverage"]}
    assert totals == {
        ("kernels", "range"): (4, 90, 90 / 91),
        ("kernels", "outside_modules"): (1, 1, 1 / 91),
        ("ranges", "marker"): (6, 340, 1.0),
    }
    for rank, entry in enumerate(manifest["reports"]):
        assert (entry["name"], entry["source"]["name"]) == (f"rank{rank}", f"rank{rank}.sqlite")
        assert (entry["first_id"], entry["rows"]["kernels"]) == (rank * FAR, 2 + rank)
        assert entry["ranks"] == [{"pid": 1, "rank": rank, "source": "file_name"}]
    assert manifest["left_out"] == []


def test_a_folder_of_several_reports_holds_partitions_and_nothing_else(two: Dataset) -> None:
    files = {str(path.relative_to(two.folder)) for path in two.folder.rglob("*") if path.is_file()}
    parts = {f"{name}.parquet/report=rank{rank}/part-0.parquet" for name in BY_REPORT for rank in (0, 1)}
    assert files == {"manifest.json", "modules.parquet", *parts}


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


def test_a_subtree_is_taken_out_of_all_reports(two: Dataset) -> None:
    part = two.subtree("net.mlp")
    expect(part, "kernels")("report  name  module\nrank0  gemm  net.mlp\nrank1  gemm  net.mlp")
    assert part.calls()["gpu_time_ns"].tolist() == [30, 30]
    assert two.subtree("net.head").steps()["report"].tolist() == ["rank1"]
    assert two.subtree("net.head").table("kernels", ["report"]).num_rows == 1
    assert len(two.subtree("net").kernels()) == 4


def test_what_reports_say_differently_of_a_module_is_null_and_counted_in_each(tmp_path: Path) -> None:
    """Whichever report comes first; what one does not say is filled in."""
    params = ("", ", 'TrainableParams': {'w': [2, 3]}", ", 'TrainableParams': {'w': [2, 4]}")
    paths = reports(tmp_path, *(f"range 1 0 9 {{'Module': 'a'{more}}}" for more in params))
    dataset = joined_here(paths, tmp_path / "run")
    [module] = dataset.table("modules").to_pylist()
    assert module["params"] == [{"name": "w", "shape": [2, None], "dtype": None}]
    rows = [row for row in dataset.table("coverage").to_pylist() if row["cause"] == "modules_differ"]
    assert [(row["report"], row["what"], row["count"], row["share"]) for row in rows] == [
        (name, "modules: losses", 1, 1.0) for name in ("rank1", "rank2")
    ]
    total = [row for row in dataset.manifest["coverage"] if row["cause"] == "modules_differ"]
    assert [(row["count"], row["share"], row["known"]) for row in total] == [(2, 2 / 3, False)]
    assert "parse reports of different models" in total[0]["advice"]
    assert dataset.manifest["reports"][2]["rows"]["coverage"] == 2
    assert dataset.manifest["rows"]["coverage"] == dataset.table("coverage").num_rows == 5
    other = joined_here(paths[::-1], tmp_path / "other")
    assert other.table("modules").equals(dataset.table("modules"))


@pytest.mark.parametrize("order", [1, -1])
def test_a_module_is_one_with_its_like_of_another_report_also_where_that_has_two_of_its_path(tmp_path, order) -> None:
    one, other = (
        f"range 1 {size} {size + 1} {{'Module': 'a', 'TrainableParams': {{'w': [{size}]}}}}" for size in (2, 4)
    )
    paths = reports(tmp_path, f"{one}\n{other}", other)[::order]
    calls = joined_here(paths, tmp_path / "run").table("calls", ["report", "module"]).to_pylist()
    assert sorted(map(str, calls)) == [
        str({"report": report, "module": path}) for report, path in (("rank0", "a"), ("rank0", "a~2"), ("rank1", "a~2"))
    ]


def test_of_the_paths_that_markers_record_another_than_the_module_s_own_counts(tmp_path: Path) -> None:
    paths = reports(tmp_path, *(f"range 1 0 9 {{'Module': 'a'}}\nrange 1 2 5 {{'Module': '{own}.b'}}" for own in "xay"))
    assert joined_here(paths, tmp_path / "run").table("modules").column("alias_of").to_pylist() == [None, "x.b"]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_siblings_stand_as_they_do_in_the_reports_whatever_the_order_of_these(tmp_path, order) -> None:
    """Stages of a pipeline: what no report has both of stands by number, and by name."""
    stages = (["embed", "layers.0", "layers.1"], ["layers.2", "layers.10"], ["layers.11", "norm~7", "head"])
    lines = [[f"range 1 {10 * at} {10 * at + 5} {{'Module': 'm.{name}'}}" for at, name in enumerate(s)] for s in stages]
    paths = reports(tmp_path, *map("\n".join, lines))
    dataset = joined_here([paths[at] for at in order], tmp_path / "run")
    layers = [f"layers.{at}" for at in (0, 1, 2, 10, 11)]
    paths = ["m", *(f"m.{name}" for name in ("embed", "layers", *layers, "norm~7", "head"))]
    assert dataset.table("modules").column("path").to_pylist() == paths


def test_the_share_of_a_loss_is_of_what_all_reports_have(tmp_path: Path) -> None:
    work = "launch 1 20 25 #1\nkernel 1 30 40 #1 gemm\n"
    paths = [
        report(tmp_path / "rank1.rank2.sqlite", f"{work}range 1 0 - x"),
        report(tmp_path / "b.sqlite", f"{work}range 1 0 5 y\nrange 1 6 9 z"),
    ]
    dataset = joined_here(paths, tmp_path / "run")
    shares = {row["cause"]: row["share"] for row in dataset.manifest["coverage"]}
    of_time = {"range": 1 / 2, "outside_ranges": 1 / 2, "plain": 1.0}
    assert shares == of_time | {"range_cut": 1 / 3, "rank_contradicted": 1 / 2}


@settings(max_examples=12)
@given(st.lists(plans() | plans(faulty=True), min_size=2, max_size=2))
def test_a_joined_dataset_says_of_every_report_what_its_own_says_in_any_order(these: list[Plan]) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        paths = [write_report(simulate(plan), folder / f"r{at}.sqlite") for at, plan in enumerate(these)]
        singles = {path.stem: tracekit.parse(path) for path in paths}
        whole = joined_here(paths, folder / "run")
        check_joined(whole, singles)
        assert said_of_reports(joined_here(paths[::-1], folder / "reversed")) == said_of_reports(whole)


def test_modules_of_one_report_and_ranges_of_another_are_never_one_node(tmp_path: Path) -> None:
    texts = {"marked": ("{'Module': 'top'}", "{'Module': 'top.a'}"), "plain": ("top", "a")}
    paths = [
        report(tmp_path / f"{name}.sqlite", f"range 1 0 100 {outer}\nrange 1 10 20 {inner}")
        for name, (outer, inner) in texts.items()
    ]
    nodes = tracekit.parse(paths, tmp_path / "run").table("modules").to_pylist()
    kinds = [("top", "module"), ("top.a", "module"), ("top~2", "range"), ("top~2.a", "range")]
    assert [(row["path"], row["kind"]) for row in nodes] == kinds

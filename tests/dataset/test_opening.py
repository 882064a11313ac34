"""Reading a dataset: types, columns, and what is promised of the files."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import tracekit
from tests.benchmarks.serving_report import with_waits, write_report
from tests.command import LINES, ROOT, command, refusal
from tests.golden import expect
from tests.trace_lines import report
from tracekit.dataset.opening import Dataset
from tracekit.tables import TABLES

SPECS = {table.SPEC.name: table.SPEC for table in TABLES}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("served")
    return tracekit.parse(with_waits(write_report(folder / "report.sqlite", kernels=10_000)))


@pytest.fixture
def small(tmp_path: Path) -> Dataset:
    return tracekit.parse(report(tmp_path / "report.sqlite", LINES))


@pytest.mark.parametrize("name", SPECS)
def test_every_file_carries_the_schema_of_its_spec_with_docs_and_units(name: str, small: Dataset) -> None:
    stored, promised = pq.read_schema(small.folder / f"{name}.parquet"), SPECS[name].schema()
    assert stored.metadata[b"doc"].decode() == SPECS[name].doc
    assert stored.names == promised.names
    for field, column in zip(stored, SPECS[name].columns, strict=True):
        assert (field.type, field.nullable) == (column.type, column.nullable), field.name
        assert field.metadata[b"doc"].decode() == column.doc
        assert field.metadata.get(b"unit", b"").decode() == (column.unit or "")
    assert small.table(name).schema.equals(promised)


@pytest.mark.parametrize("name", [name for name, spec in SPECS.items() if spec.sorted_by])
def test_every_file_is_sorted_as_its_spec_says_nulls_last(name: str, served: Dataset) -> None:
    keys = SPECS[name].sorted_by
    table = served.table(name, list(keys))
    assert table.num_rows > 1
    order = pc.sort_indices(table, sort_keys=[(key, "ascending") for key in keys])
    assert table.take(order).combine_chunks().equals(table.combine_chunks())


def test_the_manifest_tells_the_source_and_what_was_written(small: Dataset) -> None:
    manifest = json.loads((small.folder / "manifest.json").read_text("utf-8"))
    source = (small.folder.parent / "report.sqlite").read_bytes()
    assert (manifest["format"], manifest["format_version"]) == ("tracekit dataset", 4)
    assert manifest["tracekit"] == tracekit.__version__
    told = {"name": "report.sqlite", "size_bytes": len(source), "sha256": hashlib.sha256(source).hexdigest()}
    told |= {"format": "nsight-sqlite", "exporter": "2023.4.4.54-234433681190v0", "schema_version": "3.7.2"}
    unknown = dict.fromkeys(("started_utc_ns", "trace_id", "world_size", "host"))
    assert manifest["source"] == told | unknown
    assert manifest["rows"] == {name: small.table(name).num_rows for name in SPECS}
    assert manifest["coverage"] == small.table("coverage").to_pylist()
    assert manifest["processes"] == [{"pid": 1, "name": None}]


def test_integers_of_frames_stay_integers_and_strings_that_repeat_are_categories(served, small) -> None:
    for dataset in (served, small):
        for name, spec in SPECS.items():
            frame = dataset.frame(name)
            for column in spec.columns:
                assert pd.api.types.is_integer_dtype(frame[column.name].dtype) == pa.types.is_integer(column.type)
    kernels = small.kernels()
    assert kernels["call_id"].isna().any()
    assert kernels["dur_ns"].dtype == pd.ArrowDtype(pa.int64())
    assert isinstance(kernels["module"].dtype, pd.CategoricalDtype)
    assert small.modules()["path"].dtype == pd.ArrowDtype(pa.string())
    assert kernels.groupby("module", observed=True)["dur_ns"].sum().to_dict() == {"top": 100, "top.a": 100}


def test_columns_come_alone_and_in_the_order_asked_for(small: Dataset) -> None:
    assert list(small.kernels(["dur_ns", "module"]).columns) == ["dur_ns", "module"]
    assert small.table("calls", ["end_ns"]).column_names == ["end_ns"]
    assert small.subtree("top").table("kernels", ["dur_ns", "name"]).column_names == ["dur_ns", "name"]
    assert small.subtree("top").table("steps", ["name"]).column_names == ["name"]
    assert small.table("kernels", []).num_columns == 0


@pytest.mark.parametrize("root", [None, "top.a"])
def test_an_unknown_table_or_column_is_answered_with_those_there_are(root: str | None, small: Dataset) -> None:
    dataset = small if root is None else small.subtree(root)
    with pytest.raises(tracekit.UsageError, match=r"^there is no table kernel; did you mean kernels\?$"):
        dataset.table("kernel")
    names = ", ".join(SPECS["steps"].schema().names)
    with pytest.raises(tracekit.UsageError, match=f"^steps has no column duration; expected one of {names}$"):
        dataset.table("steps", ["name", "duration"])


def test_a_loaded_dataset_holds_what_its_files_hold(small: Dataset) -> None:
    loaded = tracekit.load(str(small.folder))
    assert loaded.folder == tracekit.load(small.folder).folder == small.folder
    assert loaded.manifest == json.loads((small.folder / "manifest.json").read_text("utf-8"))
    for name in SPECS:
        assert loaded.table(name).equals(pq.read_table(small.folder / f"{name}.parquet")), name
    expect(loaded, "kernels")("""
        name                          kind    module  start_ns  end_ns  method
        relu                          kernel  top     700       800     range
        gemm                          kernel  top.a   40        140     range
        [CUDA memcpy Host-to-Device]  memcpy  -       900       910     -
    """)


@pytest.mark.parametrize(
    ("manifest", "problem"),
    [
        (None, "does not exist; expected a dataset, or a report"),
        ("{", "its manifest cannot be read"),
        ('{"manifest_version": 3}', "its manifest.json was not written by tracekit"),  # as of a web extension
        ('{"format": "tracekit dataset", "format_version": 99}', "has format version 99, this tracekit reads 4"),
    ],
)
def test_a_folder_that_is_no_dataset_is_not_loaded(manifest: str | None, problem: str, tmp_path: Path) -> None:
    folder = tmp_path / "data.tracekit"
    if manifest is not None:
        folder.mkdir()
        (folder / "manifest.json").write_text(manifest)
    with pytest.raises(tracekit.DatasetError, match=f"^{folder}: {problem}"):
        tracekit.load(folder)


def forged(file: Path, column: str, value: object, type_: pa.DataType | None) -> None:
    """Another value in every row of a file, of another type if one is given; its id stays."""
    rows = pq.ParquetFile(file).read()
    at = rows.schema.get_field_index(column)
    field = rows.schema.field(at) if type_ is None else pa.field(column, type_)
    pq.write_table(rows.set_column(at, field, pa.array([value] * rows.num_rows, field.type)), file)


#: What stands in all rows of a column, its type if that is another, and what is said.
FORGED = (
    ("kernels", "start_ns", "x", pa.string(), "start_ns is string?, not int64"),
    ("kernels", "start_ns", None, pa.int64(), "start_ns is int64?, not int64"),
    ("kernels", "end_ns", 5, pa.int32(), "end_ns is int32?, not int64"),
    ("kernels", "name", "gemm", pa.string(), "name is string?, not category"),
    ("modules", "path", 1.5, pa.float64(), "path is double?, not string"),
    ("kernels", "kernel_id", 3, None, "kernel_id is 3, not in [0, 3)"),
    ("kernels", "launch_start_ns", -(1 << 63), None, f"launch_start_ns is {-(1 << 63)}, not in [-23058"),
    ("ranges", "end_ns", 1 << 61, None, f"end_ns is {1 << 61}, not in [-23058"),
    ("calls", "module_id", -7, None, "module_id is -7, not in [0, 2)"),
    ("calls", "parent_call_id", 2, None, "parent_call_id is 2, not in [0, 2)"),
    ("kernels", "step_id", 1, None, "step_id is 1, not in [0, 1)"),
)


@pytest.mark.parametrize(("name", "column", "value", "type_", "problem"), FORGED)
def test_a_column_of_another_type_and_a_number_that_means_nothing_are_refused(
    name, column, value, type_, problem, small
) -> None:
    forged(small.folder / f"{name}.parquet", column, value, type_)
    dataset = tracekit.load(small.folder)
    for read in (lambda: dataset.table(name, [column]), lambda: [*dataset.pieces(name)]):
        said = re.escape(f"its table {name} cannot be read ({name}.parquet is damaged: {problem}")
        with pytest.raises(tracekit.DatasetError, match=rf"{said}.*\); parse the report again$"):
            read()
    refusal(command("export", dataset.folder, "--format", "csv", "-o", dataset.folder.with_name("csv")), dataset.folder)


@pytest.mark.parametrize("name", ["name", "to_come"])
def test_a_column_that_is_there_twice_is_damage_also_one_that_nobody_knows(name: str, small: Dataset) -> None:
    rows = pq.ParquetFile(file := small.folder / "kernels.parquet").read()
    names = rows.column("name")
    pq.write_table(rows.append_column(name, names).append_column("to_come", names), file)
    with pytest.raises(tracekit.DatasetError, match=rf"kernels\.parquet is damaged: it has {name} twice"):
        tracekit.load(small.folder).subtree("top").table("kernels")


def test_ids_are_those_of_the_own_report_and_columns_to_come_are_let_be(tmp_path: Path) -> None:
    paths = [report(tmp_path / f"rank{at}.sqlite", LINES) for at in range(2)]
    dataset = tracekit.parse(paths, tmp_path / "ranks")
    file = dataset.folder / "kernels.parquet" / "report=rank1" / "part-0.parquet"
    rows = pq.ParquetFile(file).read()
    pq.write_table(rows.append_column("later_start_ns", pa.array(["x"] * rows.num_rows)), file)
    first = 1 << 40
    ids = dataset.table("kernels", ["kernel_id"]).column("kernel_id").to_pylist()
    assert sorted(ids) == [0, 1, 2, first, first + 1, first + 2]
    assert dataset.of_reports("rank1").table("kernels").num_rows == rows.num_rows
    forged(file, "kernel_id", 0, None)
    with pytest.raises(tracekit.DatasetError, match=rf"kernel_id is 0, not in \[{first}, {first + 3}\)"):
        dataset.table("kernels", ["kernel_id"])
    assert dataset.table("kernels", ["dur_ns"]).num_rows == 2 * rows.num_rows


README = (ROOT / "tracekit" / "dataset" / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"```py(?:thon)?\n(.*?)```", README, re.DOTALL)
REPORTS = {
    "one report": ROOT / "data" / "llama_eager.sqlite",
    "several reports": sorted((ROOT / "data" / "llama_ranks").glob("*.sqlite")),
}


@pytest.mark.parametrize("which", REPORTS)
@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_code_runs(number: int, which: str, tmp_path, monkeypatch) -> None:
    if "polars" in BLOCKS[number]:
        pytest.importorskip("polars")
        pytest.importorskip("duckdb")
    tracekit.parse(REPORTS[which], tmp_path / "demo.tracekit")
    code = BLOCKS[number]
    if which == "several reports":
        code = code.replace("kernels.parquet'", "kernels.parquet/*/*.parquet'")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), names)
    assert names
    assert len(BLOCKS) == 2

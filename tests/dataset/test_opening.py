"""Reading a dataset: types, columns, and what is promised of the files."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import tracekit
from tests.benchmarks.serving_report import with_waits, write_report
from tests.command import LINES
from tests.golden import check
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
    assert manifest["source"] == {
        "name": "report.sqlite",
        "size_bytes": len(source),
        "sha256": hashlib.sha256(source).hexdigest(),
        "format": "nsight-sqlite",
        "exporter": "2023.4.4.54-234433681190v0",
        "schema_version": "3.7.2",
        "started_utc_ns": None,
        "trace_id": None,
        "world_size": None,
        "host": None,
    }
    assert manifest["rows"] == {name: small.table(name).num_rows for name in SPECS}
    assert manifest["coverage"] == small.table("coverage").to_pylist()
    assert manifest["processes"] == [{"pid": 1, "name": None}]


def test_integers_stay_integers_also_where_some_are_missing(served: Dataset, small: Dataset) -> None:
    for dataset in (served, small):
        for name, spec in SPECS.items():
            frame = dataset.frame(name)
            for column in spec.columns:
                assert pd.api.types.is_integer_dtype(frame[column.name].dtype) == pa.types.is_integer(column.type)
    assert small.kernels()["call_id"].isna().any()


def test_frames_are_backed_by_arrow_and_strings_that_repeat_are_categories(small: Dataset) -> None:
    kernels = small.kernels()
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
    with pytest.raises(tracekit.UsageError) as unknown:
        dataset.table("kernel")
    assert str(unknown.value) == "there is no table kernel; did you mean kernels?"
    with pytest.raises(tracekit.UsageError) as lacking:
        dataset.table("steps", ["name", "duration"])
    assert (
        str(lacking.value)
        == f"steps has no column duration; expected one of {', '.join(SPECS['steps'].schema().names)}"
    )


@pytest.mark.parametrize("kind", [Path, str])
def test_a_loaded_dataset_holds_what_its_files_hold(kind: Callable[[Path], object], small: Dataset) -> None:
    loaded = tracekit.load(kind(small.folder))
    assert loaded.folder == small.folder
    assert loaded.manifest == json.loads((small.folder / "manifest.json").read_text("utf-8"))
    for name in SPECS:
        assert loaded.table(name).equals(pq.read_table(small.folder / f"{name}.parquet")), name
    check(
        loaded,
        "kernels",
        """
        name                          kind    module  start_ns  end_ns  method
        relu                          kernel  top     700       800     range
        gemm                          kernel  top.a   40        140     range
        [CUDA memcpy Host-to-Device]  memcpy  -       900       910     -
    """,
    )


FOREIGN = {
    "no folder": (None, "does not exist; expected a dataset, or a report"),
    "no JSON": ("{", "its manifest cannot be read"),
    "a web extension": ('{"manifest_version": 3}', "its manifest.json was not written by tracekit"),
    "tomorrow's": (
        '{"format": "tracekit dataset", "format_version": 99}',
        "has format version 99, this tracekit reads 4",
    ),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_a_folder_that_is_no_dataset_is_not_loaded(what: str, tmp_path: Path) -> None:
    manifest, problem = FOREIGN[what]
    folder = tmp_path / "data.tracekit"
    if manifest is not None:
        folder.mkdir()
        (folder / "manifest.json").write_bytes(manifest.encode() if isinstance(manifest, str) else manifest)
    with pytest.raises(tracekit.DatasetError) as raised:
        tracekit.load(folder)
    assert problem in str(raised.value)
    assert str(raised.value).startswith(f"{folder}: ")

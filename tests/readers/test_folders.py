"""Folders of tables, as ``nsys export --type parquetdir`` and ``arrowdir`` write them, read as the SQLite export is."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tracekit
from tests.readers.files import LINES, changed, lacks, rows, state
from tests.readers.folders import SUFFIXES, as_folder, write
from tests.trace_lines import report

NVTX = "NVTX_EVENTS"


@pytest.fixture(params=SUFFIXES)
def suffix(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(tmp_path: Path, suffix: str) -> Path:
    return as_folder(report(tmp_path / "run.sqlite", LINES), tmp_path / "run_dir", suffix)


def read(path: Path, suffix: str) -> pa.Table:
    return pq.read_table(path) if suffix == ".parquet" else pa.ipc.open_stream(path.read_bytes()).read_all()


def replaced(folder: Path, suffix: str, name: str, column: str, values: pa.Array) -> None:
    path = folder / f"{name}{suffix}"
    table = read(path, suffix)
    write(table.set_column(table.column_names.index(column), column, values), path)


@pytest.mark.parametrize("registered", [False, True])
def test_a_folder_gives_what_the_sqlite_export_gives(*, tmp_path: Path, suffix: str, registered: bool) -> None:
    path = report(tmp_path / "run.sqlite", LINES, registered=registered)
    changed(path, "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET globalPid = globalPid | (254 << 56)")
    folder = as_folder(path, tmp_path / "run_dir", suffix)
    before = state(folder)
    by_folder, by_file = tracekit.parse(folder), tracekit.parse(path)
    assert rows(by_folder) == rows(by_file)
    assert lacks(by_folder) == lacks(by_file)
    assert by_folder.manifest["source"]["format"] == "nsight-folder"
    assert by_folder.manifest["source"]["name"] == "run_dir"
    assert state(folder) == before


def test_threads_whose_names_are_not_in_the_report_have_none(tmp_path: Path, suffix: str) -> None:
    path = report(tmp_path / "run.sqlite", f"{LINES}\nnamed 1 0 0 loader")
    folder = as_folder(path, tmp_path / "run_dir", suffix)
    changed(path, "DROP TABLE StringIds")
    (folder / f"StringIds{suffix}").unlink()
    for one in (path, folder):
        assert tracekit.parse(one).manifest["rows"]["calls"] > 0


def test_a_thread_whose_name_is_not_utf_8_is_read(folder: Path, suffix: str) -> None:
    rows = read(folder / f"{NVTX}{suffix}", suffix).num_rows
    texts = pa.array([b"MPI Rank \xff"] * rows, pa.binary())
    replaced(folder, suffix, NVTX, "text", pa.Array.from_buffers(pa.string(), rows, texts.buffers()))
    replaced(folder, suffix, NVTX, "eventType", pa.array([39] * rows))
    assert tracekit.parse(folder).manifest["ranks"] == []


def test_the_rank_comes_from_the_name_of_the_folder(folder: Path) -> None:
    dataset = tracekit.parse(folder.rename(folder.with_name("run_rank3_dir")))
    assert [rank["rank"] for rank in dataset.manifest["ranks"]] == [3]


def test_other_types_of_texts_and_ids_are_read_too(folder: Path, suffix: str) -> None:
    whole = rows(tracekit.parse(folder))
    table = read(folder / f"{NVTX}{suffix}", suffix)
    for column, type_ in (("text", pa.large_string()), ("globalTid", pa.dictionary(pa.int8(), pa.uint64()))):
        values = table.column(column).combine_chunks()
        values = values.dictionary_encode() if pa.types.is_dictionary(type_) else values
        replaced(folder, suffix, NVTX, column, values.cast(type_))
    assert rows(tracekit.parse(folder, force=True)) == whole


def test_a_file_that_is_cut_is_named(folder: Path, suffix: str) -> None:
    path = folder / f"{NVTX}{suffix}"
    whole = path.read_bytes()
    for length in (0, 7, len(whole) // 2, len(whole) - 8, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(tracekit.ReportError, match=rf"{NVTX}{suffix} cannot be read .*export the report again"):
            tracekit.parse(folder)


def test_a_column_of_another_kind_is_damage(folder: Path, suffix: str) -> None:
    size = read(folder / f"{NVTX}{suffix}", suffix).num_rows
    replaced(folder, suffix, NVTX, "start", pa.array(["soon"] * size))
    with pytest.raises(tracekit.ReportError, match="string"):
        tracekit.parse(folder)


def test_a_column_that_is_there_twice_counts_as_missing(folder: Path, suffix: str) -> None:
    table = read(folder / f"{NVTX}{suffix}", suffix)
    write(table.append_column("start", table.column("start")), folder / f"{NVTX}{suffix}")
    with pytest.raises(tracekit.ReportError, match="lacks start"):
        tracekit.parse(folder)


def test_a_dataset_is_not_taken_for_a_report(folder: Path) -> None:
    tracekit.parse(folder)
    with pytest.raises(tracekit.ReportError, match="is a dataset, not a report; to look at it: tracekit show tree"):
        tracekit.parse(folder.with_suffix(".tracekit"))

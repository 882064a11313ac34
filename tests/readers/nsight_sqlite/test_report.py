"""Nsight's SQLite files of all versions and in odd states: what is read does not depend on their form."""

import random
import shlex
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pytest

import tracekit
from tests.command import command, refusal
from tests.readers.files import LINES, Rewrite, changed, lacks, rows, state
from tests.trace_lines import TABLES, report
from tracekit.errors import ReportError
from tracekit.nsight import tables as nsight
from tracekit.readers.sqlite import file as sqlite_file, pages as sqlite_pages
from tracekit.readers.sqlite.pages import NotPlain

pytestmark = pytest.mark.releases


def optional_columns() -> list[tuple[str, str]]:
    stored = (nsight.STRINGS, nsight.NVTX, nsight.RUNTIME, nsight.KERNEL, nsight.MEMCPY, nsight.MEMSET)
    read = [(table.name, column) for table in (*stored, nsight.GRAPH_TRACE) for column in table.columns]
    return [(table, name) for table, name in read if name in TABLES[table] and name not in nsight.ESSENTIAL[table]]


@pytest.mark.parametrize(("table", "column"), optional_columns())
def test_a_column_that_is_absent_costs_no_row(rewritten: Rewrite, table: str, column: str) -> None:
    whole = rows(rewritten())
    found = rows(rewritten(f"ALTER TABLE {table} DROP COLUMN {column};"))
    kept = ["kind", "start_ns", "end_ns", "correlation_id", "pid"]
    # Without texts there are no modules; a graph's launch is known by its name.
    kept += [] if column in {"text", "nameId"} else ["module", "cause"]
    for name in kept:
        expected = sorted(str(row[name]) for row in whole["kernels"])
        assert sorted(str(row[name]) for row in found["kernels"]) == expected
    for name in ("start_ns", "end_ns", "gpu_op_count", "tid"):
        assert [row[name] for row in found["ranges"]] == [row[name] for row in whole["ranges"]]


@pytest.mark.parametrize(
    ("table", "column"), [(table, column) for table, columns in nsight.ESSENTIAL.items() for column in columns]
)
def test_a_table_without_its_essential_columns_is_refused_by_name(tmp_path: Path, table: str, column: str) -> None:
    path = report(tmp_path / "report.sqlite", LINES + "\nop 1 5 6 aten::x")
    changed(path, f"ALTER TABLE {table} RENAME COLUMN {column} TO other;")
    with pytest.raises(ReportError, match=f"{table} lacks {column}"):
        tracekit.parse(path)


@pytest.mark.parametrize(
    ("table", "kernels", "ranges", "lack"),
    [
        ("NVTX_EVENTS", 4, 0, "NVTX ranges"),
        ("CUPTI_ACTIVITY_KIND_RUNTIME", 4, 3, "CUDA API calls"),
        ("CUPTI_ACTIVITY_KIND_KERNEL", 3, 3, None),
        ("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", 3, 3, "the GPU time of CUDA graphs"),
        ("PROCESSES", 4, 3, None),
    ],
)
def test_a_table_that_is_absent_is_as_one_without_rows(
    rewritten: Rewrite, table: str, kernels: int, ranges: int, lack: str | None
) -> None:
    empty = rewritten(f"DELETE FROM {table};")  # noqa: S608
    expected, lacking = rows(empty), lacks(empty)
    dataset = rewritten(f"DROP TABLE {table};")
    assert rows(dataset) == expected
    assert lacks(dataset) == lacking
    assert (len(expected["kernels"]), len(expected["ranges"])) == (kernels, ranges)
    assert lack is None or lack in lacking


@pytest.mark.parametrize(
    ("sql", "versions"),
    [
        ("", ("2023.4.4.54-234433681190v0", "3.7.2")),
        ("ALTER TABLE META_DATA_EXPORT RENAME TO EXPORT_META_DATA;", ("2023.4.4.54-234433681190v0", "3.7.2")),
        ("DROP TABLE META_DATA_EXPORT;", (None, None)),
    ],
)
def test_the_version_is_where_its_version_wrote_it(rewritten: Rewrite, sql: str, versions: tuple) -> None:
    source = rewritten(sql).manifest["source"]
    assert (source["exporter"], source["schema_version"]) == versions


def test_the_order_of_rows_does_not_matter(rewritten: Rewrite) -> None:
    lines = LINES.strip().splitlines()
    random.Random(1).shuffle(lines)
    assert rows(rewritten(lines="\n".join(lines))) == rows(rewritten())


IN_PARTS = [(sqlite_file, "PART_PAGES", 1), (sqlite_pages, "_CHUNK_BYTES", 1)]
BY_QUERIES = [(sqlite_file, "leaves", Mock(side_effect=NotPlain))]


@pytest.mark.parametrize("registered", [False, True])
@pytest.mark.parametrize("changes", [IN_PARTS, BY_QUERIES, [*BY_QUERIES, (sqlite_file, "_BATCH_ROWS", 1)]])
def test_a_table_is_the_same_from_pages_at_once_in_parts_and_from_queries(
    rewritten: Rewrite, monkeypatch: pytest.MonkeyPatch, registered: bool, changes: list
) -> None:
    whole = rows(rewritten(registered=registered))
    for module, name, value in changes:
        monkeypatch.setattr(module, name, value)
    assert rows(rewritten(registered=registered)) == whole


@pytest.mark.parametrize("beside", ["-wal", "-shm", "-journal"])
def test_strays_beside_the_report_are_neither_read_nor_changed(tmp_path: Path, beside: str) -> None:
    folder = tmp_path / "reports"
    folder.mkdir()
    path = report(folder / "report.sqlite", LINES)
    expected = rows(tracekit.parse(path, tmp_path / "before"))
    (folder / f"report.sqlite{beside}").write_bytes(b"\x37\x7f\x06\x82" + b"stray" * 1000)
    before = state(folder)
    assert rows(tracekit.parse(path, tmp_path / "after")) == expected
    assert state(folder) == before


@pytest.mark.parametrize(
    ("mode", "beside", "problem"),
    [
        ("DELETE", "-journal", "holds half of a change, and half.sqlite-journal next to it how to take that back"),
        ("WAL", "-wal", "lacks its latest changes, which are still in half.sqlite-wal next to it"),
    ],
)
def test_a_report_that_is_not_whole_by_itself_is_refused_until_sqlite_has_made_it_so(
    tmp_path: Path, mode: str, beside: str, problem: str
) -> None:
    path, half, link = (tmp_path / f"{name}.sqlite" for name in ("report", "half", "link"))
    report(path, LINES)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.executescript(f"PRAGMA journal_mode={mode}; PRAGMA cache_size=1; BEGIN; CREATE TABLE large (text)")
        connection.executemany("INSERT INTO large VALUES (?)", [("x" * 3_000,)] * 100)
        connection.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET deviceId = 5")
        if mode == "WAL":
            connection.commit()
        for end in ("", beside):
            shutil.copy(f"{path}{end}", f"{half}{end}")
    link.symlink_to(half)
    before = state(tmp_path)
    for named in (link, half):
        line = refusal(command("parse", named), named)
        assert problem in line
    assert state(tmp_path) == before
    advice = shlex.split(line.rpartition("run: ")[2])
    with closing(sqlite3.connect(advice[1])) as connection:
        connection.execute(advice[2])
    dataset = tracekit.parse(half)
    assert rows(dataset) == rows(tracekit.parse(path))
    assert (5 in set(dataset.kernels().device)) == (mode == "WAL")


@pytest.mark.parametrize("journal", ["DELETE", "WAL"])
def test_a_report_in_a_read_only_folder_is_read_and_left_as_it_was(tmp_path: Path, journal: str) -> None:
    folder = tmp_path / "reports"
    folder.mkdir()
    path = report(folder / "report.sqlite", LINES)
    changed(path, f"PRAGMA journal_mode={journal};")
    before = state(folder)
    path.chmod(0o444)
    folder.chmod(0o555)
    try:
        assert len(rows(tracekit.parse(path, tmp_path / "out"))["kernels"]) == 4
        assert state(folder) == before
    finally:
        folder.chmod(0o755)

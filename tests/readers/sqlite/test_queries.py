"""What cannot be read from pages comes out of a query, value by value the same."""

from pathlib import Path

import pyarrow as pa
import pytest

from tests.sqlite import writing
from tracekit.errors import ReportError
from tracekit.nsight.tables import StoredTable
from tracekit.readers.source import ENCODED, ENCODED_BLOB, ENCODED_TEXT, Request
from tracekit.readers.sqlite import file as sqlite_file
from tracekit.readers.sqlite.file import SqliteFile

TABLE = StoredTable("t", {"a": int, "b": str, "c": float})
TYPES = {"a": pa.int64(), "b": ENCODED_TEXT, "c": pa.float64()}
WAYS = {
    "plain": "CREATE TABLE t (a, b, c)",
    "a long text": "CREATE TABLE t (a, b, c); INSERT INTO t VALUES (0, printf('%.*c', 9000, 'x'), 0)",
    "another encoding": "PRAGMA encoding='UTF-16le'; CREATE TABLE t (a, b, c)",
    "a primary key": "CREATE TABLE t (a INTEGER PRIMARY KEY, b, c)",
    "no rowid": "CREATE TABLE t (a INTEGER PRIMARY KEY, b, c) WITHOUT ROWID",
    "a column called rowid": "CREATE TABLE t (a, b, c, rowid)",
    "a computed column": "CREATE TABLE t (d AS (a + 1), a, b, c)",
    "an index over all columns": "CREATE TABLE t (a, b, c); CREATE INDEX i ON t (c, b, a)",
    "a log": "PRAGMA journal_mode=WAL; CREATE TABLE t (a, b, c)",
}
ROWS = [(1, "ä", 0.5), (2, None, None), (2**62, "", -1.0), (-5, "x" * 100, 1e300), (7, "ä", 2.0)]


def read(path: Path, types: dict[str, pa.DataType] = TYPES) -> pa.Table:
    return SqliteFile(path).read({"t": Request(TABLE, types)}, lambda _: None)["t"]


def written(path: Path, script: str, rows: list[tuple[object, ...]] = ROWS) -> Path:
    with writing(path) as db:
        db.executescript(script)
        db.executemany("INSERT INTO t (a, b, c) VALUES (?, ?, ?)", rows)
    return path


def test_strings_by_number_are_read_without_a_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    strings = {1: "", 3: "ä", 4: None, 70_000: "x" * 100}
    path = written(tmp_path / "t.sqlite", WAYS["a primary key"], [(*string, None) for string in strings.items()])
    monkeypatch.setattr(SqliteFile, "_queried", None)
    table = read(path, {"a": pa.int64(), "b": pa.string()})
    assert table.equals(pa.table({"a": list(strings), "b": list(strings.values())}))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("batch_rows", [1, 16_384])
def test_however_a_table_lies_in_its_file_its_rows_are_the_same(
    tmp_path: Path, way: str, batch_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "_BATCH_ROWS", batch_rows)
    table = read(written(tmp_path / "rows.sqlite", WAYS[way]))
    assert list(map(str, table.schema.types)) == list(map(str, TYPES.values()))
    rows = [tuple(row.values()) for row in table.to_pylist() if row["a"]]
    assert rows == (sorted(ROWS) if "KEY" in WAYS[way] else ROWS)


@pytest.mark.parametrize("way", ["plain", "a primary key", "a computed column"])
def test_bytes_are_the_same_from_pages_and_from_queries(tmp_path: Path, way: str) -> None:
    blobs = [b"", b"\0" * 12, b"\0" * 13, None, b"\xff" * 300, b"\0" * 12]
    rows: list[tuple[object, ...]] = [(number, blob, 0.0) for number, blob in enumerate(blobs, 10)]
    path = written(tmp_path / "rows.sqlite", WAYS[way], rows)
    for types in ({"b": ENCODED_BLOB}, {"a": pa.int64(), "b": ENCODED_BLOB}):
        table = read(path, types)
        assert table.column("b").type == ENCODED_BLOB
        assert table.column("b").to_pylist() == blobs


def test_computed_columns_do_not_lie_in_the_rows(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.sqlite", WAYS["a computed column"], [(1, 2, 3)])
    assert read(path, {"a": pa.int64()}).column("a").to_pylist() == [1]


def test_numbers_too_large_become_null(tmp_path: Path) -> None:
    numbers = (-(1 << 31) - 1, -(1 << 31), (1 << 31) - 1, 1 << 31)
    path = written(tmp_path / "rows.sqlite", WAYS["a computed column"], [(number, b"", 0.0) for number in numbers])
    assert read(path, {"a": pa.int32()}).column("a").to_pylist() == [None, *numbers[1:3], None]


def test_texts_are_never_invalid_and_numbers_among_them_count_as_their_digits(tmp_path: Path) -> None:
    script = f"{WAYS['a computed column']}; INSERT INTO t VALUES (0, CAST(x'61ff' AS TEXT), 0), (0, 7, 0)"  # noqa: S608
    table = read(written(tmp_path / "rows.sqlite", script, []))
    assert table.column("b").to_pylist() == ["a\ufffd", "7"]


@pytest.mark.parametrize("value", [1.5, "text"], ids=["a fraction", "a text"])
@pytest.mark.parametrize("type_", [pa.int64(), ENCODED], ids=["int64", "id"])
def test_what_is_not_an_integer_is_refused_by_the_name_of_its_column(
    tmp_path: Path, value: object, type_: pa.DataType
) -> None:
    path = written(tmp_path / "rows.sqlite", WAYS["a computed column"], [(1, "", 0.0), (value, "", 0.0)])
    with pytest.raises(ReportError, match=r"t\.a has values that are not int"):
        read(path, {"a": type_})

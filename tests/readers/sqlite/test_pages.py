"""Rows decoded from a file's pages are those that SQLite itself returns, or are left to it."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.sqlite import writing
from tracekit.readers.source import ENCODED_TEXT
from tracekit.readers.sqlite.pages import Columns, NotPlain, columns, leaves, open_pages

Value = int | str | float | bytes | None

EDGES = [0, 1, -1, *(sign * 2**bits + off for bits in (7, 15, 23, 31, 47) for sign in (1, -1) for off in (-1, 0, 1))]
INTEGERS = st.none() | st.sampled_from(EDGES) | st.integers(-(2**63), 2**63 - 1)
TEXTS = (
    st.none()
    | st.sampled_from(["", "a" * 12, "a" * 13, "ä☃", "x" * 57, "x" * 58, "x" * 400])
    | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
)
FLOATS = INTEGERS.filter(lambda number: number is None or abs(number) < 2**53) | st.floats(allow_nan=False)
ROWS = st.lists(st.tuples(INTEGERS, TEXTS, INTEGERS, FLOATS), max_size=60)
NUMBER, TEXT, FLOAT = pa.int64(), ENCODED_TEXT, pa.float64()
DECLARED = "a INTEGER, b TEXT, c INTEGER, d REAL"


def written(path: Path, rows: list[tuple[Value, ...]], *, page_size: int = 512, declared: str = DECLARED) -> int:
    path.unlink(missing_ok=True)
    with writing(path) as db:
        db.execute(f"PRAGMA page_size={page_size}")
        db.execute(f"CREATE TABLE t ({declared})")
        db.executemany(f"INSERT INTO t VALUES (?{', ?' * declared.count(',')})", rows)  # noqa: S608
        root: int = db.execute("SELECT rootpage FROM sqlite_master").fetchone()[0]
    return root


def decoded(path: Path, root: int) -> tuple[np.ndarray, Columns]:
    with open_pages(path) as pages:
        return columns(pages, leaves(pages, root), {0: NUMBER, 1: TEXT, 2: NUMBER, 3: FLOAT})


def as_rows(found: tuple[np.ndarray, Columns]) -> list[tuple[Value, ...]]:
    rowid, values = found
    listed = [[None] * rowid.size if column is None else column.to_pylist() for column in values.values()]
    return list(zip(rowid.tolist(), *listed, strict=True))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(rows=ROWS, page_size=st.sampled_from([512, 1024, 4096, 65536]), times=st.sampled_from([1, 40]))
def test_pages_give_what_sqlite_gives(
    tmp_path: Path, rows: list[tuple[Value, ...]], page_size: int, times: int
) -> None:
    path = tmp_path / "rows.sqlite"
    root = written(path, rows * times, page_size=page_size)
    with writing(path) as db:
        expected = db.execute("SELECT rowid, a, b, c, d FROM t ORDER BY rowid").fetchall()
    try:
        found = decoded(path, root)
    except NotPlain:
        assert any(isinstance(value, str) and len(value.encode()) > 300 for row in rows for value in row)
        return
    assert as_rows(found) == expected


#: Integers of one length, then of several, and texts with serial types of one or two bytes.
LENGTHS = st.tuples(*[st.sampled_from([None, 0, 1, 300, 2**40])] * 2, st.sampled_from([None, "short", "x" * 70]))


@given(rows=st.lists(LENGTHS, min_size=1, max_size=20))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
def test_columns_far_behind_many_others_are_those_that_sqlite_gives(
    tmp_path: Path, rows: list[tuple[Value, ...]]
) -> None:
    path = tmp_path / "wide.sqlite"
    wide = [(2**40, *row) * 75 for row in rows]
    # Each row is on one page.
    root = written(path, wide, page_size=65536, declared=", ".join(f"c{at}" for at in range(300)))
    with open_pages(path) as pages:
        _, found = columns(pages, leaves(pages, root), {**dict.fromkeys((0, 1, 150, 298), NUMBER), 299: TEXT})
    for at, column in found.items():
        assert ([None] * len(rows) if column is None else column.to_pylist()) == [row[at] for row in wide]


@pytest.mark.parametrize("value", [1.5, "text", b"bytes"], ids=["a float", "a text", "bytes"])
def test_a_column_of_integers_that_holds_something_else_is_left_to_sqlite(tmp_path: Path, value: Value) -> None:
    root = written(tmp_path / "rows.sqlite", [(1, None, 2, None), (value, None, 2, None)])
    with pytest.raises(NotPlain):
        decoded(tmp_path / "rows.sqlite", root)


def test_rows_from_before_a_column_was_added_are_left_to_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "rows.sqlite"
    root = written(path, [(1, "a", 2, None)])
    with writing(path) as db:
        db.execute("ALTER TABLE t ADD COLUMN e INTEGER DEFAULT 7")
    with open_pages(path) as pages, pytest.raises(NotPlain):
        columns(pages, leaves(pages, root), {0: NUMBER, 4: NUMBER})


def test_a_tree_that_leads_back_to_itself_is_left_to_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "rows.sqlite"
    root = written(path, [(1, "x" * 57, 2, None)] * 200)
    raw = bytearray(path.read_bytes())
    page = (root - 1) * 512
    assert raw[page] == 5
    raw[page + 8 : page + 12] = root.to_bytes(4, "big")
    path.write_bytes(raw)
    with pytest.raises(NotPlain):
        decoded(path, root)


def test_flipped_bits_give_rows_or_are_left_to_sqlite_but_never_fail(tmp_path: Path) -> None:
    path = tmp_path / "rows.sqlite"
    root = written(path, [(2**40, "text", -5, None)] * 60)
    whole = path.read_bytes()
    left = 0
    for place in range(100, len(whole), 7):
        raw = bytearray(whole)
        raw[place] ^= 1 << (place % 8)
        path.write_bytes(raw)
        try:
            decoded(path, root)
        except NotPlain:
            left += 1
    assert left


@pytest.mark.parametrize("page_size", [512, 4096])
def test_the_end_of_a_long_row_is_never_taken_from_its_neighbours(tmp_path: Path, page_size: int) -> None:
    """A row of more than the page size less 35 bytes goes on elsewhere, also if its page had room."""
    path = tmp_path / "rows.sqlite"
    plain = 0
    for first in range(page_size // 2, page_size, page_size // 16):
        for second in range(page_size - 60, page_size - 5):
            rows = [(1, "x" * first, 1000, None), (2, "y" * second, 1001, None)]
            root = written(path, rows, page_size=page_size)
            try:
                found = decoded(path, root)
            except NotPlain:
                continue
            plain += 1
            assert [row[1:] for row in as_rows(found)] == rows
    assert plain

"""Tables as CSV, as a workbook and in databases are the tables of the dataset."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree
from zipfile import ZipFile

import openpyxl
import pyarrow as pa
import pyarrow.csv
import pytest
import sqlalchemy as sa

import tracekit
from tests.command import command, contents
from tests.exports import postgres
from tests.trace_lines import report
from tracekit.dataset.opening import TABLE_NAMES
from tracekit.exports import sql, xlsx

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tracekit.dataset.opening import Dataset

NASTY = """=1+1 "a;b" 'c' <script>alert(1)</script>, é"""
TRACE = f"""
range  1    0 9000 step[DECODE bs=2]
range  1   10 5000 {{'Module': 'top', 'TrainableParams': {{'weight': [4, 3]}}, 'Inputs': [[2, 3], []]}}
range  1   20 4000 {{'Module': 'top.a', 'Inputs': [[2, 3]], 'Kwargs': {{'m"k': [[1, 2], [3]]}}}}
launch 1  100  200 #1
kernel 1 1001 3501 #1 {NASTY}
memcpy 1 6200 6300 #2 64
async  1   30   40
range  1   50   60 two\\nlines
"""


@pytest.fixture(params=["one report", "two reports"])
def dataset(request: pytest.FixtureRequest, tmp_path: Path) -> Dataset:
    one = report(tmp_path / "a.sqlite", TRACE)
    if request.param == "one report":
        return tracekit.parse(one, tmp_path / "run")
    other = report(tmp_path / "b.sqlite", TRACE.replace("top", "net"))
    return tracekit.parse([one, other], tmp_path / "run")


@pytest.fixture(scope="module")
def postgres_url() -> Iterator[str]:
    with postgres.server() as url:
        yield url


def export(dataset: Dataset, kind: str, out: object, *more: str) -> None:
    outcome = command("export", dataset.folder, "--format", kind, "-o", out, "--quiet", *more)
    assert outcome == (0, "", "")


def rows(dataset: Dataset, name: str) -> list[dict[str, Any]]:
    """The rows of a table; maps are dicts."""
    table = dataset.table(name)
    maps = {field.name for field in table.schema if pa.types.is_map(field.type)}
    return [
        {key: dict(value) if key in maps and value is not None else value for key, value in row.items()}
        for row in table.to_pylist()
    ]


def unpacked(dataset: Dataset, name: str, values: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of text, with lists and maps read from their JSON."""
    nested = {field.name for field in dataset.schema(name) if pa.types.is_nested(field.type)}
    return [
        {key: json.loads(value) if key in nested and value is not None else value for key, value in row.items()}
        for row in values
    ]


def test_csv_files_are_the_tables(dataset: Dataset, tmp_path: Path) -> None:
    export(dataset, "csv", tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {f"{n}.csv" for n in TABLE_NAMES}
    for name in TABLE_NAMES:
        schema = dataset.schema(name)
        types = {
            f.name: pa.string() if pa.types.is_nested(f.type) or pa.types.is_dictionary(f.type) else f.type
            for f in schema
        }
        read = pa.csv.read_csv(
            tmp_path / "out" / f"{name}.csv",
            parse_options=pa.csv.ParseOptions(newlines_in_values=True),
            convert_options=pa.csv.ConvertOptions(
                column_types=types,
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        assert read.column_names == schema.names
        values = [{key: unmarked(value) for key, value in row.items()} for row in read.to_pylist()]
        assert unpacked(dataset, name, values) == rows(dataset, name)


def unmarked(value: object) -> object:
    """A cell without the apostrophe that keeps a text from being a formula."""
    return value[1:] if isinstance(value, str) and value.startswith("'") else value


@pytest.mark.parametrize(
    "name", ["=1+1", "@SUM(A1)", "+1+1", "-2+3", "--x", "\t=1", "\r=1", "\n=1", "'=1", "'quoted'", "+", "-"]
)
def test_no_text_in_a_csv_file_is_a_formula_and_every_one_can_be_had_back(tmp_path: Path, name: str) -> None:
    dataset = report_of_a_kernel(tmp_path, name)
    export(dataset, "csv", tmp_path / "out")
    with (tmp_path / "out" / "kernels.csv").open(newline="") as file:
        exported = next(csv.DictReader(file))["name"]
    text = command("show", "kernels", dataset.folder, "--csv").out
    shown = next(csv.DictReader(io.StringIO(text, newline="")))["name"]
    assert exported == shown == f"'{name}"


@pytest.mark.parametrize("name", ["gemm", "-1", "+2.5e-3", "1", "a=b", "", " =1", "[x]"])
def test_texts_that_are_no_formulas_and_numbers_are_what_they_are(tmp_path: Path, name: str) -> None:
    dataset = report_of_a_kernel(tmp_path, name)
    export(dataset, "csv", tmp_path / "out")
    with (tmp_path / "out" / "kernels.csv").open(newline="") as file:
        row = next(csv.DictReader(file))
    assert (row["name"], row["start_ns"]) == (name, "-20")


def report_of_a_kernel(folder: Path, name: str) -> Dataset:
    path = report(folder / "r.sqlite", "launch 1 -30 -25 #1\nkernel 1 -20 -10 #1 k")
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE StringIds SET value = ? WHERE value = 'k'", (name,))
    return tracekit.parse(path, folder / "run")


def test_a_csv_of_no_rows_has_the_names(tmp_path: Path) -> None:
    export(tracekit.parse(report(tmp_path / "r.sqlite", "")), "csv", tmp_path / "out")
    assert (tmp_path / "out" / "kernel_modules.csv").read_text() == (
        '"kernel_id","module_id","weight","flops","flops_dtype","flops_unknown"\n'
    )


def test_sheets_of_a_workbook_are_the_tables(dataset: Dataset, tmp_path: Path) -> None:
    export(dataset, "xlsx", tmp_path / "out.xlsx")
    book = openpyxl.load_workbook(tmp_path / "out.xlsx")
    assert tuple(book.sheetnames) == TABLE_NAMES
    for name in TABLE_NAMES:
        names, *values = book[name].iter_rows(values_only=True)
        assert list(names) == dataset.schema(name).names
        read = [dict(zip(names, row, strict=True)) for row in values]
        expected = [
            {
                key: pytest.approx(value, rel=1e-15) if isinstance(value, float) else value or None
                for key, value in row.items()
            }
            for row in rows(dataset, name)
        ]
        values = [{key: value or None for key, value in row.items()} for row in unpacked(dataset, name, read)]
        assert values == expected


def test_no_cell_of_a_workbook_is_a_formula(dataset: Dataset, tmp_path: Path) -> None:
    export(dataset, "xlsx", tmp_path / "out.xlsx")
    book = openpyxl.load_workbook(tmp_path / "out.xlsx")
    cells = [cell for sheet in book for row in sheet.iter_rows() for cell in row]
    assert NASTY in {cell.value for cell in cells}
    assert all(cell.data_type != "f" for cell in cells)


def test_what_a_cell_cannot_hold_is_said_otherwise(tmp_path: Path) -> None:
    name = "k" * 40_000
    start = -(1 << 52)
    lines = f"launch 1 1 2 #1\nkernel 1 {start} {1 - start} #1 {name}\nkernel 1 5 6 #2 a\x01b"
    export(tracekit.parse(report(tmp_path / "r.sqlite", lines)), "xlsx", tmp_path / "out.xlsx")
    sheet = openpyxl.load_workbook(tmp_path / "out.xlsx")["kernels"]
    names, *values = sheet.iter_rows(values_only=True)
    second, first = (dict(zip(names, row, strict=True)) for row in values)
    assert first["name"] == "a\N{REPLACEMENT CHARACTER}b"
    assert second["name"] == "k" * 32_766 + "…"
    assert (second["dur_ns"], second["start_ns"]) == (str((1 << 53) + 1), start)


ODD = {
    "U+FFFE": "\ufffe",
    "U+FFFF": "\uffff",
    "a control character": "\x01",
    "a bell": "\x07",
}


@pytest.mark.parametrize("odd", ODD)
def test_a_workbook_of_names_that_xml_cannot_hold_can_be_opened_and_says_so(odd: str, tmp_path: Path) -> None:
    lines = f"""
        range  1  1 9 {{'Module': 'to{ODD[odd]}p', 'Inputs': [[1]]}}
        launch 1  2 3 #1
        kernel 1 10 20 #1 ge{ODD[odd]}mm
        kernel 1 20 30 #2 \U0001f525 \U0001fffe \ud7ff \ue000 \ufffd
    """
    folder = tracekit.parse(report(tmp_path / "r.sqlite", lines)).folder
    done = command("export", folder, "--format", "xlsx", "-o", tmp_path / "out.xlsx")
    assert (done.code, done.err) == (0, "")
    changed = sum(
        ODD[odd] in str(one)
        for n in TABLE_NAMES
        for row in tracekit.load(folder).table(n).to_pylist()
        for one in row.values()
    )
    assert done.out == (
        f"{folder}: exported as xlsx; {changed} texts had characters that a workbook cannot hold, which became U+FFFD\n"
    )
    with ZipFile(tmp_path / "out.xlsx") as book:
        for part in book.namelist():
            ElementTree.fromstring(book.read(part))
    sheets = openpyxl.load_workbook(tmp_path / "out.xlsx")
    cells = {cell.value for sheet in sheets for row in sheet.iter_rows() for cell in row}
    assert {"to\ufffdp", "ge\ufffdmm", "\U0001f525 \U0001fffe \ud7ff \ue000 \ufffd"} <= cells


def test_halves_of_letters_are_no_characters_of_a_workbook() -> None:
    assert xlsx._holdable("a\ud800b\udfff", Counter()) == "a\ufffdb\ufffd"


def test_letters_that_spreadsheets_count_twice_are_counted_twice(tmp_path: Path) -> None:
    changed: Counter[str] = Counter()
    assert xlsx._holdable("\U0001f525" * 16_383, changed) == "\U0001f525" * 16_383
    assert xlsx._holdable("\U0001f525" * 16_384, changed) == "\U0001f525" * 16_383 + "…"
    assert changed == {"characters": 0, "length": 1}


def test_a_name_that_a_spreadsheet_takes_for_an_error_stays_text(tmp_path: Path) -> None:
    lines = "launch 1 1 2 #1\nkernel 1 10 20 #1 #N/A"
    export(tracekit.parse(report(tmp_path / "r.sqlite", lines)), "xlsx", tmp_path / "out.xlsx")
    cells = [c for row in openpyxl.load_workbook(tmp_path / "out.xlsx")["kernels"].iter_rows() for c in row]
    assert {cell.data_type for cell in cells if cell.value == "#N/A"} == {"s"}


def test_more_rows_than_a_sheet_holds_are_refused(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(xlsx, "MOST_ROWS", 1)
    before = contents(tmp_path)
    outcome = command("export", dataset.folder, "--format", "xlsx", "-o", tmp_path / "out.xlsx")
    assert (outcome.code, outcome.out) == (1, "")
    assert "rows, a sheet holds 1; choose --format csv or sql" in outcome.err
    assert contents(tmp_path) == before


def in_database(url: str, dataset: Dataset) -> dict[str, list[dict[str, Any]]]:
    engine = sa.create_engine(url)
    values = {}
    with engine.connect() as connection:
        for name in TABLE_NAMES:
            table = sa.Table(name, sa.MetaData(), autoload_with=connection)
            assert list(table.columns.keys()) == dataset.schema(name).names
            read = [dict(row._mapping) for row in connection.execute(sa.select(table))]
            values[name] = unpacked(dataset, name, read)
    engine.dispose()
    return values


def test_tables_of_an_sqlite_database_are_the_tables(dataset: Dataset, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/out.db"
    export(dataset, "sql", url)
    assert in_database(url, dataset) == {name: rows(dataset, name) for name in TABLE_NAMES}


@pytest.mark.postgres
def test_tables_of_a_postgresql_database_are_the_tables(dataset: Dataset, postgres_url: str) -> None:
    export(dataset, "sql", postgres_url, "--force")
    assert in_database(postgres_url, dataset) == {name: rows(dataset, name) for name in TABLE_NAMES}
    again = command("export", dataset.folder, "--format", "sql", "-o", postgres_url)
    assert again.code == 1
    assert "already has a table ranges; replace it with --force" in again.err


@pytest.mark.postgres
def test_postgresql_takes_names_that_it_could_not_hold(tmp_path: Path, postgres_url: str) -> None:
    dataset = tracekit.parse(report(tmp_path / "r.sqlite", "range 1 0 9 a\0b"))
    export(dataset, "sql", postgres_url, "--force")
    (row,) = in_database(postgres_url, dataset)["ranges"]
    assert row["text"] in ("a\N{REPLACEMENT CHARACTER}b", "a")


NASTY_NAMES = [
    r"a\tb",
    r"a\nb",
    r"a\r\nb",
    r"\\.x",
    r"a\n\\.\nb",
    r"\\N",
    r"a\\b",
    r"\\\\t",
    '"',
    '"a""b"',
    "é\U0001f600",
    "%s {} :x",
]


@pytest.mark.postgres
@pytest.mark.parametrize("name", NASTY_NAMES)
def test_no_text_ends_a_row_or_a_value_of_a_database(name: str, tmp_path: Path, postgres_url: str) -> None:
    """As Python writes them in a marker; what each means stands in the dataset."""
    line = f"range 1 0 9 {{'Module': 'top.{name}', 'Inputs': [[2, 3]]}}"
    dataset = tracekit.parse(report(tmp_path / "r.sqlite", line))
    assert len(dataset.table("modules")) > 1
    export(dataset, "sql", postgres_url, "--force")
    assert in_database(postgres_url, dataset) == {name: rows(dataset, name) for name in TABLE_NAMES}


@pytest.mark.postgres
def test_a_row_that_postgresql_refuses_is_told_in_one_line(
    dataset: Dataset, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "_lines", lambda _: b"1\n")
    outcome = command("export", dataset.folder, "--format", "sql", "-o", postgres_url, "--force")
    assert outcome.code == 1
    assert "cannot be written (missing data for column" in outcome.err
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize("where", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def test_a_failure_in_the_middle_leaves_the_database_as_it_was(
    where: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path}/out.db"
    if where == "postgres":
        url = request.getfixturevalue("postgres_url")
    first = tracekit.parse(report(tmp_path / "a.sqlite", TRACE))
    export(first, "sql", url, "--force")
    second = tracekit.parse(report(tmp_path / "b.sqlite", "range 1 0 9 other"))
    (second.folder / "coverage.parquet").write_bytes(b"broken")
    outcome = command("export", second.folder, "--format", "sql", "-o", url, "--force")
    assert outcome.code == 1
    assert "its table coverage cannot be read" in outcome.err
    assert in_database(url, first) == {name: rows(first, name) for name in TABLE_NAMES}

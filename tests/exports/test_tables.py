"""Tables as CSV, as a workbook and in databases are the tables of the dataset."""

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
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
from tests.sqlite import writing
from tests.trace_lines import report
from tracekit.dataset.opening import TABLE_NAMES, Dataset
from tracekit.exports import sheets

NASTY = """=1+1 "a;b" 'c' <script>alert(1)</script>, é"""
TRACE = f"""
range  1    0 9000 step[DECODE bs=2]
range  1   10 5000 {{'Module': 'top', 'TrainableParams': {{'weight': [4, 3]}}, 'Inputs': [[2, 3], []]}}
range  1   20 4000 {{'Module': 'top.a', 'Inputs': [[2, 3]], 'Kwargs': {{'m"k': [[1, 2], [3]]}}}}
launch 1  100  200 #1
kernel 1 1001 3501 #1 {NASTY}
memcpy 1 6200 6300 #2 64
async  1   30   40
range  1   50   60 two\\nlines "a""b" \\t %s {{}} :x
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
    table = dataset.table(name)
    maps = {field.name for field in table.schema if pa.types.is_map(field.type)}
    return [
        {key: dict(value) if key in maps and value is not None else value for key, value in row.items()}
        for row in table.to_pylist()
    ]


def unpacked(dataset: Dataset, name: str, values: list[dict[str, Any]]) -> list[dict[str, Any]]:
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
                column_types=types, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
            ),
        )
        assert read.column_names == schema.names
        values = [{key: unmarked(value) for key, value in row.items()} for row in read.to_pylist()]
        assert unpacked(dataset, name, values) == rows(dataset, name)


def unmarked(value: object) -> object:
    return value[1:] if isinstance(value, str) and value.startswith("'") else value


@pytest.mark.parametrize("name", ["=1+1", "@SUM(A1)", "#N/A", "-2+3", "\r=1", "'quoted'"])
def test_no_text_in_a_csv_file_is_a_formula_and_every_one_can_be_had_back(tmp_path: Path, name: str) -> None:
    dataset = report_of_a_kernel(tmp_path, name)
    export(dataset, "csv", tmp_path / "out")
    with (tmp_path / "out" / "kernels.csv").open(newline="") as file:
        exported = next(csv.DictReader(file))["name"]
    text = command("show", "kernels", dataset.folder, "--csv").out
    shown = next(csv.DictReader(io.StringIO(text, newline="")))["name"]
    assert exported == shown == f"'{name}"


def report_of_a_kernel(folder: Path, name: str) -> Dataset:
    path = report(folder / "r.sqlite", "launch 1 -30 -25 #1\nkernel 1 -20 -10 #1 k")
    with writing(path) as db:
        db.execute("UPDATE StringIds SET value = ? WHERE value = 'k'", (name,))
    return tracekit.parse(path, folder / "run")


def test_sheets_of_a_workbook_are_the_tables_and_no_cell_is_a_formula(dataset: Dataset, tmp_path: Path) -> None:
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
        values = [{key: unmarked(value) or None for key, value in row.items()} for row in unpacked(dataset, name, read)]
        assert values == expected
    cells = [cell for sheet in book for row in sheet.iter_rows() for cell in row]
    assert f"'{NASTY}" in {cell.value for cell in cells}
    assert all(cell.data_type != "f" for cell in cells)


def test_what_a_cell_cannot_hold_is_said_otherwise(tmp_path: Path) -> None:
    start = -(1 << 52)
    lines = f"""
        range  1  1 9 {{'Module': 'to\ufffep', 'Inputs': [[1]]}}
        launch 1 1 2 #1
        kernel 1 {start} {1 - start} #1 {"k" * 40_000}
        kernel 1 5 6 #2 a\x01b\U0001f525
        kernel 1 7 8 #2 #N/A
    """
    export(tracekit.parse(report(tmp_path / "r.sqlite", lines)), "xlsx", tmp_path / "out.xlsx")
    with ZipFile(tmp_path / "out.xlsx") as book:
        for part in book.namelist():
            ElementTree.fromstring(book.read(part))
    book = openpyxl.load_workbook(tmp_path / "out.xlsx")
    names, *values = book["kernels"].iter_rows(values_only=True)
    rows = {row["name"]: row for row in (dict(zip(names, row, strict=True)) for row in values)}
    assert set(rows) == {"k" * 16_000 + "…", "a\ufffdb\U0001f525", "'#N/A"}
    long = rows["k" * 16_000 + "…"]
    assert (long["dur_ns"], long["start_ns"]) == (str((1 << 53) + 1), start)
    assert "to\ufffdp" in {cell.value for row in book["modules"].iter_rows() for cell in row}


def test_more_rows_than_a_sheet_holds_are_refused(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sheets, "MOST_ROWS", 1)
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


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/out.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")


def test_tables_of_a_database_are_the_tables(dataset: Dataset, url: str) -> None:
    export(dataset, "sql", url, "--force")
    assert in_database(url, dataset) == {name: rows(dataset, name) for name in TABLE_NAMES}
    again = command("export", dataset.folder, "--format", "sql", "-o", url)
    assert again.code == 1
    assert "already has a table ranges; replace it with --force" in again.err


def test_a_failure_in_the_middle_leaves_the_database_as_it_was(url: str, tmp_path: Path) -> None:
    first = tracekit.parse(report(tmp_path / "a.sqlite", TRACE))
    export(first, "sql", url, "--force")
    second = tracekit.parse(report(tmp_path / "b.sqlite", "range 1 0 9 other"))
    (second.folder / "coverage.parquet").write_bytes(b"broken")
    outcome = command("export", second.folder, "--format", "sql", "-o", url, "--force")
    assert outcome.code == 1
    assert "its table coverage cannot be read" in outcome.err
    assert in_database(url, first) == {name: rows(first, name) for name in TABLE_NAMES}


@pytest.mark.postgres
def test_a_text_that_postgresql_cannot_hold_is_an_error_of_the_export(tmp_path: Path, postgres_url: str) -> None:
    dataset = report_of_a_kernel(tmp_path, "a\0b")
    assert dataset.table("kernels", ["name"]).column(0).to_pylist() == ["a\0b"]
    outcome = command("export", dataset.folder, "--format", "sql", "-o", postgres_url, "--force", "--quiet")
    assert outcome.code == 1
    assert "cannot be written" in outcome.err
    assert "Traceback" not in outcome.err


def test_rows_that_are_alike_but_for_one_number_are_all_inserted(url: str, tmp_path: Path) -> None:
    lines = "launch 1 -30 -25 #1\n" + "\n".join(f"kernel 1 {at} {at + 5} #1 k" for at in range(0, 50, 10))
    dataset = tracekit.parse(report(tmp_path / "r.sqlite", lines))
    export(dataset, "sql", url, "--force")
    assert in_database(url, dataset) == {name: rows(dataset, name) for name in TABLE_NAMES}

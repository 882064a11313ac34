"""The tables for spreadsheets: as CSV, one file each, and as a workbook, one sheet each (needs openpyxl).

Lists and maps are JSON, nulls are empty. Text never becomes a formula, see :mod:`tracekit.arrays.text`. What a
sheet of a workbook cannot hold is refused or changed: more than 1,048,575 rows are refused, whole numbers beyond 2^53
become text, fractions keep 16 digits, characters that XML does not have become U+FFFD, and longer texts than a cell
holds end in an ellipsis.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import pyarrow as pa
from pyarrow import csv

from tracekit.arrays.text import safe_in_a_sheet
from tracekit.dataset.opening import TABLE_NAMES, Dataset
from tracekit.errors import ExportError
from tracekit.exports.base import Target, exported_file, exported_folder, plain_columns, spec_tables
from tracekit.progress import Progress

#: Rows of a sheet below the header: https://support.microsoft.com, "Excel specifications and limits".
MOST_ROWS = 1_048_575
#: A cell holds 32,767 letters; those beyond U+FFFF count twice.
_MOST_LETTERS = 16_000
_EXACT = 1 << 53
#: Characters that XML 1.0 does not have: https://www.w3.org/TR/xml/#charsets.
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write_csv(dataset: Dataset, target: Target, progress: Progress) -> None:
    """Writes a folder with a CSV file for every table, row group by row group."""
    with exported_folder(dataset, target, {f"{name}.csv" for name in TABLE_NAMES}) as folder:
        for name, schema in spec_tables(dataset, progress):
            pieces = (_with_texts(piece, safe_in_a_sheet) for piece in dataset.pieces(name))
            _write_csv(folder / f"{name}.csv", plain_columns(schema.empty_table()).schema, pieces)


def _write_csv(path: Path, schema: pa.Schema, pieces: Iterator[pa.Table]) -> None:
    with csv.CSVWriter(path, schema) as writer:
        for piece in pieces:
            writer.write_table(piece)


def write_xlsx(dataset: Dataset, target: Target, progress: Progress) -> None:
    """Writes a workbook with a sheet for every table."""
    try:
        # Only this format needs it.
        from openpyxl import Workbook  # noqa: PLC0415
        from openpyxl.writer.excel import ExcelWriter  # noqa: PLC0415
    except ImportError:
        raise ExportError("writing a workbook needs openpyxl: pip install openpyxl") from None
    for name, rows in dataset.manifest["rows"].items():
        if rows > MOST_ROWS:
            problem = f"its table {name} has {rows:,} rows, a sheet holds {MOST_ROWS:,}"
            raise ExportError(f"{dataset.folder}: {problem}; choose --format csv or sql")
    book = Workbook(write_only=True)
    with exported_file(dataset, target) as partial:
        for name, schema in spec_tables(dataset, progress):
            sheet = book.create_sheet(name)
            sheet.append(schema.names)
            for row in _rows(dataset.pieces(name)):
                sheet.append(row)
        with ZipFile(partial, "w", ZIP_DEFLATED) as archive:
            ExcelWriter(book, archive).save()


def _rows(pieces: Iterator[pa.Table]) -> Iterator[tuple[object, ...]]:
    for piece in pieces:
        columns = [column.to_pylist() for column in _with_texts(piece, _holdable).columns]
        for row in zip(*columns, strict=True):
            yield tuple(str(value) if isinstance(value, int) and abs(value) > _EXACT else value for value in row)


def _holdable(text: str) -> str:
    text = safe_in_a_sheet(_NOT_IN_XML.sub("\N{REPLACEMENT CHARACTER}", text))
    return text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}…"


def _with_texts(piece: pa.Table, changed: Callable[[str], str]) -> pa.Table:
    piece = plain_columns(piece)
    for index, field in enumerate(piece.schema):
        if field.type == pa.string():
            column = piece.column(index).dictionary_encode().combine_chunks()
            texts = pa.array([changed(text) for text in column.dictionary.to_pylist()], pa.string())
            piece = piece.set_column(index, field, texts.take(column.indices))
    return piece

"""The tables as a workbook, one sheet each. Needs openpyxl.

What a sheet cannot hold is refused or changed. More than 1,048,575 rows are refused. Whole numbers beyond 2^53 become
text, fractions keep 16 digits, characters that XML does not have (control characters, U+FFFE, U+FFFF, lone surrogates)
become U+FFFD, carriage returns are read as newlines, and texts longer than a cell's 32,767 characters end in an
ellipsis. Text stays text even if it begins with ``=`` or ``#``. Changes are counted and reported.
"""

from __future__ import annotations

import re
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING
from zipfile import ZIP_DEFLATED, ZipFile

from tracekit.errors import ExportError
from tracekit.exports.base import exported_file, python_values, spec_tables

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from openpyxl import Workbook
    from openpyxl.cell import WriteOnlyCell
    from openpyxl.worksheet._write_only import WriteOnlyWorksheet

    from tracekit.dataset.opening import Dataset
    from tracekit.exports.base import Target
    from tracekit.progress import Progress

NAME = "xlsx"
HELP = "a workbook with a sheet for every table"

#: Rows of a sheet below the header: https://support.microsoft.com, "Excel specifications and limits".
MOST_ROWS = 1_048_575
_MOST_LETTERS = 32_767
_EXACT = 1 << 53
#: Characters that XML 1.0 does not have: https://www.w3.org/TR/xml/#charsets.
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_CHANGES = {
    "characters": "texts had characters that a workbook cannot hold, which became U+FFFD",
    "length": "texts were longer than a cell and were cut",
    "numbers": "whole numbers were too large for a cell and became text",
}


def write(dataset: Dataset, target: Target, progress: Progress) -> str | None:
    """Writes the workbook.

    Returns:
        How many cells differ from the tables, and how; None if none does.

    Raises:
        ExportError: If it cannot be written there, a table has too many rows, or openpyxl is missing.
    """
    try:
        # Only this format needs it.
        from openpyxl import Workbook  # noqa: PLC0415
        from openpyxl.writer.excel import ExcelWriter  # noqa: PLC0415
    except ImportError:
        message = "writing a workbook needs openpyxl: pip install openpyxl"
        raise ExportError(message) from None
    _check_rows(dataset)
    changed: Counter[str] = Counter()
    with exported_file(dataset, target) as partial:
        book = Workbook(write_only=True)
        try:
            for name, schema in spec_tables(dataset, progress):
                sheet = book.create_sheet(name)
                sheet.append(schema.names)
                _fill(sheet, dataset.pieces(name), changed)
            with ZipFile(partial, "w", ZIP_DEFLATED) as archive:
                ExcelWriter(book, archive).save()
        except BaseException:
            _close(book)
            raise
    return "; ".join(f"{changed[key]:,} {change}" for key, change in _CHANGES.items() if changed[key]) or None


def _check_rows(dataset: Dataset) -> None:
    for name, rows in dataset.manifest["rows"].items():
        if rows > MOST_ROWS:
            problem = f"its table {name} has {rows:,} rows, a sheet holds {MOST_ROWS:,}"
            raise ExportError(f"{dataset.folder}: {problem}; choose --format csv or sql")


def _close(book: Workbook) -> None:
    """Closes what openpyxl has open, or it would warn when the workbook is collected."""
    for sheet in book.worksheets:
        with suppress(Exception):
            sheet.close()


def _fill(sheet: WriteOnlyWorksheet, pieces: Iterator[pa.Table], changed: Counter[str]) -> None:
    for piece in pieces:
        columns = [python_values(column) for column in piece.columns]
        for row in zip(*columns, strict=True):
            sheet.append([_cell(sheet, value, changed) for value in row])


def _cell(sheet: WriteOnlyWorksheet, value: object, changed: Counter[str]) -> WriteOnlyCell | object:
    if isinstance(value, int) and abs(value) > _EXACT:
        changed["numbers"] += 1
        return str(value)
    if not isinstance(value, str):
        return value
    text = _holdable(value, changed)
    if not text.startswith(("=", "#")):
        return text
    from openpyxl.cell import WriteOnlyCell  # noqa: PLC0415

    cell = WriteOnlyCell(sheet, text)
    cell.data_type = "s"  # or a spreadsheet would take it for a formula or an error
    return cell


def _holdable(value: str, changed: Counter[str]) -> str:
    """A text as a cell can hold it."""
    text, replaced = _NOT_IN_XML.subn("\N{REPLACEMENT CHARACTER}", value)
    changed["characters"] += replaced > 0
    if len(text) <= _MOST_LETTERS // 2:  # spreadsheets count letters beyond U+FFFF twice
        return text
    units = text.encode("utf-16-le")
    if len(units) <= 2 * _MOST_LETTERS:
        return text
    changed["length"] += 1
    return f"{units[: 2 * (_MOST_LETTERS - 1)].decode('utf-16-le', 'ignore')}…"

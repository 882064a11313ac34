"""The tables as a workbook, one sheet each. Needs openpyxl, which the extra ``xlsx`` brings.

What a sheet cannot hold is refused or changed: more than 1,048,575 rows are refused, whole numbers beyond 2^53 become
text, fractions keep 16 digits, control characters become U+FFFD, texts longer than a cell's 32,767 characters end in
an ellipsis. Text stays text, also where it begins with ``=``.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING
from zipfile import ZIP_DEFLATED, ZipFile

from tracekit.errors import ExportError
from tracekit.exports.base import python_values, spec_tables, whole_file

if TYPE_CHECKING:
    from openpyxl import Workbook
    from openpyxl.cell import WriteOnlyCell
    from openpyxl.worksheet._write_only import WriteOnlyWorksheet

    from tracekit.dataset import Dataset
    from tracekit.exports.base import Target
    from tracekit.progress import Progress

NAME = "xlsx"
HELP = "a workbook with a sheet for every table"

#: Rows of a sheet, without that of the names: https://support.microsoft.com, "Excel specifications and limits".
MOST_ROWS = 1_048_575
_MOST_LETTERS = 32_767
_EXACT = 1 << 53
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")


def write(dataset: Dataset, target: Target, progress: Progress) -> None:
    """Writes the workbook.

    Raises:
        ExportError: If it cannot be written there, a table has too many rows, or openpyxl is missing.
    """
    try:
        # An extra, which other formats do not need.
        from openpyxl import Workbook  # noqa: PLC0415
        from openpyxl.writer.excel import ExcelWriter  # noqa: PLC0415
    except ImportError:
        message = "a workbook is written with openpyxl: pip install 'tracekit[xlsx]'"
        raise ExportError(message) from None
    for name, rows in dataset.manifest["rows"].items():
        if rows > MOST_ROWS:
            problem = f"its table {name} has {rows:,} rows, a sheet holds {MOST_ROWS:,}"
            raise ExportError(f"{dataset.folder}: {problem}; choose --format csv or sql")
    with whole_file(dataset, target) as partial:
        book = Workbook(write_only=True)
        try:
            for name, schema in spec_tables(dataset, progress):
                sheet = book.create_sheet(name)
                sheet.append(schema.names)
                _fill(sheet, dataset, name)
            with ZipFile(partial, "w", ZIP_DEFLATED) as archive:
                ExcelWriter(book, archive).save()
        except BaseException:
            _close(book)
            raise


def _close(book: Workbook) -> None:
    """Ends what openpyxl has open, or it would complain of it when it is collected."""
    for sheet in book.worksheets:
        with suppress(Exception):
            sheet.close()


def _fill(sheet: WriteOnlyWorksheet, dataset: Dataset, name: str) -> None:
    for piece in dataset.pieces(name):
        columns = [python_values(column) for column in piece.columns]
        for row in zip(*columns, strict=True):
            sheet.append([_cell(sheet, value) for value in row])


def _cell(sheet: WriteOnlyWorksheet, value: object) -> WriteOnlyCell | object:
    if isinstance(value, int) and abs(value) > _EXACT:
        return str(value)
    if not isinstance(value, str):
        return value
    text = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", value)
    if len(text) > _MOST_LETTERS:
        text = f"{text[: _MOST_LETTERS - 1]}…"
    if not text.startswith("="):
        return text
    from openpyxl.cell import WriteOnlyCell  # noqa: PLC0415

    cell = WriteOnlyCell(sheet, text)
    cell.data_type = "s"  # or a spreadsheet would compute it
    return cell

"""Columns of a table out of a query: for small tables, and for those that cannot be read from pages.

Slow beside pages, since every value becomes a Python object first, but it reads whatever SQLite reads.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tracekit.errors import ReportError
from tracekit.readers.sqlite.file import DAMAGED, column_of, selecting

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tracekit.nsight.stored import StoredTable
    from tracekit.readers.sqlite.file import SqliteFile

#: The number by which SQLite keeps a row, as a column that can be asked for.
ROWID = "rowid"

#: Rows that stand in memory as Python objects at a time.
_BATCH_ROWS = 16_384


def batches(file: SqliteFile, table: StoredTable, types: Mapping[str, pa.DataType]) -> Iterator[list[pa.Array]]:
    """Columns of a table, thousands of rows at a time, in the order of its rowids where they are asked for.

    Args:
        file: The file.
        table: A table that it has.
        types: Columns that it has, or ``ROWID``, with the types they are to be stored as.

    Yields:
        An array for each column: 64-bit integers, floats or texts.

    Raises:
        ReportError: If the file is damaged, or a value is not of its column's type.
    """
    names = [f"{table.name}.{name}" for name in types]
    for rows in _rows(file, table, _query(table, types)):
        values = zip(*rows, strict=True)
        yield [_array(file, *column) for column in zip(names, values, types.values(), strict=True)]


def _query(table: StoredTable, types: Mapping[str, pa.DataType]) -> str:
    columns = [_column(table, name, type_) for name, type_ in types.items()]
    return selecting(columns, table.name, ROWID if ROWID in types else "")


def _column(table: StoredTable, name: str, type_: pa.DataType) -> str:
    if name == ROWID:
        return ROWID
    column = column_of(table.name, name)
    # In a column of texts a number counts as its digits.
    return f"CAST({column} AS TEXT)" if _value_type(type_) == pa.string() else column


def _value_type(type_: pa.DataType) -> pa.DataType:
    """The type of a column's values before they are stored as this type."""
    value = type_.value_type if pa.types.is_dictionary(type_) else type_
    return pa.int64() if pa.types.is_integer(value) else value


def _rows(file: SqliteFile, table: StoredTable, query: str) -> Iterator[list[tuple[object, ...]]]:
    try:
        with closing(file.connect()) as connection:
            cursor = connection.execute(query)
            while rows := cursor.fetchmany(_BATCH_ROWS):
                yield rows
    except (sqlite3.Error, UnicodeDecodeError) as error:
        problem = f"{table.name} cannot be read ({error})"
        raise ReportError(file.path, problem, DAMAGED) from None


def _array(file: SqliteFile, name: str, values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    stored = _value_type(type_)
    if stored == pa.float64():
        values = [float(value) if isinstance(value, int) else value for value in values]
    try:
        if stored == pa.int64() and float in set(map(type, values)):
            raise pa.ArrowInvalid("found a float")  # which Arrow would cut to an integer
        return pa.array(values, stored)
    except pa.ArrowException as error:
        problem = f"{name} has values that are not {stored} ({error})"
        raise ReportError(file.path, problem, DAMAGED) from None

"""Where the tables of a report come from, and what is asked of them.

A source is a SQLite file, or a folder with a file for each table. It is asked for declared columns in Arrow types of
our own, whatever the file stores.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.errors import ReportError
from tracekit.nsight.tables import StoredTable

#: Ids with few distinct values, stored once each.
ENCODED = pa.dictionary(pa.int32(), pa.int64())
#: Texts with each distinct one stored once.
ENCODED_TEXT = pa.dictionary(pa.int32(), pa.string())
#: Bytes, likewise.
ENCODED_BLOB = pa.dictionary(pa.int32(), pa.binary())

_Values = TypeVar("_Values", pa.Array, pa.ChunkedArray)

_LEAST, _MOST = -(2**31), 2**31 - 1


@dataclass(frozen=True, slots=True)
class Request:
    """One bulk read."""

    table: StoredTable  # a declared table
    #: The columns to read with the Arrow types to store them in; columns that the file lacks are left out.
    columns: Mapping[str, pa.DataType]
    rare: tuple[str, ...] = ()  # columns that are also left out if all their values are null

    def without_empty(self, table: pa.Table) -> pa.Table:
        """The table without those rare columns in which all values are null."""
        empty = [name for name in self.rare if name in table.column_names]
        return table.drop_columns([name for name in empty if table.column(name).null_count == len(table)])


def as_type(array: _Values, type_: pa.DataType) -> _Values:
    """The values in their stored type; those that are too large for it become null.

    Those of 32 bits may be stored in fewer; :func:`pyarrow.concat_tables` widens them where others are larger.
    """
    if pa.types.is_dictionary(type_):
        narrower = pa.types.is_integer(array.type) and pa.types.is_integer(type_.value_type)
        if array.type != type_.value_type and not narrower:
            raise pa.ArrowInvalid(f"found {array.type}")
        if pa.types.is_integer(array.type) and array.null_count == 0 and len(array):
            least, most = pc.min_max(array).values()
            if least == most:  # as of most ids of threads and processes
                index = pa.array(np.zeros(len(array), np.int32))
                one = pa.DictionaryArray.from_arrays(index, pa.array([least.as_py()], type_.value_type))
                return pa.chunked_array([one]) if isinstance(array, pa.ChunkedArray) else one
        return array.dictionary_encode().cast(type_)
    if type_ == pa.int32() and array.type in {pa.int8(), pa.int16()}:
        return array
    try:
        return array.cast(type_)
    except pa.ArrowInvalid:
        if type_ != pa.int32() or array.type != pa.int64():
            raise
        fits = pc.and_(pc.greater_equal(array, _LEAST), pc.less_equal(array, _MOST))
        return pc.if_else(fits, array, None).cast(type_)


class Piece(NamedTuple):
    """Some rows of a large table."""

    rows: pa.Table
    #: The first and last place of the rows in their table, by any numbers that grow from row to row.
    place: tuple[int, int]


class TableSource(Protocol):
    """The tables of a report. Integers are those of SQLite: unsigned ids wrap to two's complement.

    Large tables are given whole or piece by piece, so that several processes can share the work.
    """

    path: Path  # the report, which errors name
    tables: Mapping[str, frozenset[str]]  # the columns of each table

    def values(self, table: str, columns: tuple[str, ...], /) -> list[Any]:
        """Columns of a small table that has them, a tuple for each row."""

    def read(self, requests: Mapping[str, Request], progress: Callable[[float], None], /) -> dict[str, pa.Table]:
        """Reads large tables, by names of the caller's; one that the source lacks has no columns."""

    def pieces(self, request: Request, /) -> list[Any] | None:
        """What to ask :meth:`piece` for, in the order of the rows; None if the table can only be read whole."""

    def piece(self, request: Request, which: Any, /) -> Piece | None:  # noqa: ANN401 - the source's own
        """A piece of a table; None if its table can only be read whole."""


def has(source: TableSource, table: StoredTable, *columns: str) -> bool:
    """Whether there is a table with these columns."""
    return table.name in source.tables and set(columns) <= source.tables[table.name]


def check_columns(source: TableSource, essential: Mapping[str, Sequence[str]], remedy: str) -> None:
    """Refuses a report that has a table without the columns that make it useful."""
    for table, columns in essential.items():
        if table in source.tables and (missing := [name for name in columns if name not in source.tables[table]]):
            raise ReportError(source.path, f"its table {table} lacks {' and '.join(missing)}", remedy)


def named_rows(source: TableSource, table: StoredTable) -> list[dict[str, Any]]:
    """The rows of a small table by those of its declared columns that it has."""
    columns = tuple(name for name in table.columns if has(source, table, name))
    return [dict(zip(columns, row, strict=True)) for row in source.values(table.name, columns)] if columns else []


def typed(source: TableSource, table: StoredTable, *columns: str) -> list[Any]:
    """The rows of a small table whose values have the declared types; none if it lacks a column."""
    if not has(source, table, *columns):
        return []
    types = [table.columns[name] for name in columns]
    return [tuple(row) for row in source.values(table.name, columns) if all(map(isinstance, row, types))]

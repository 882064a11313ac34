"""Columns that queries return, straight into Arrow: large tables are cut by rowid into parts read side by side.

SQLAlchemy builds the queries, ADBC runs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import adbc_driver_manager as adbc
import adbc_driver_sqlite
import pyarrow as pa
import sqlalchemy as sql
from sqlalchemy.dialects import sqlite as dialect

from tracekit.errors import ReportError
from tracekit.readers.sqlite.file import DAMAGED

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator, Mapping

    from sqlalchemy.sql.elements import ColumnElement

    from tracekit.readers.sqlite.file import SqliteFile

#: The number by which SQLite keeps a row, as a column that can be asked for.
ROWID = "rowid"

_BATCH_ROWS = 16_384
_PART_ROWS = 250_000
_MOST_PARTS = 64
_ROWID: ColumnElement[int] = sql.literal_column(ROWID, sql.Integer)


def queries(file: SqliteFile, table: sql.Table, columns: Mapping[str, pa.DataType]) -> list[str]:
    """The SQL that reads columns of a table, part by part in the order of its rowids.

    Args:
        file: The file.
        table: A table that it has.
        columns: Columns that it has, or ``ROWID``, with the types of their values.
    """
    chosen = [_ROWID.label(ROWID) if name == ROWID else table.c[name] for name in columns]
    rows = sql.select(*chosen).select_from(table)
    # The driver takes the types from what it sees first.
    examples = [sql.literal(_example(type_)).label(name) for name, type_ in columns.items()]
    return [_text(sql.union_all(sql.select(*examples), rows.where(part))) for part in _parts(file, table)]


def _example(type_: pa.DataType) -> object:
    value = type_.value_type if pa.types.is_dictionary(type_) else type_
    return "" if value == pa.string() else 0.0 if value == pa.float64() else 0


def _text(query: sql.CompoundSelect[tuple[object, ...]]) -> str:
    return str(query.compile(dialect=dialect.dialect(), compile_kwargs={"literal_binds": True}))


def _parts(file: SqliteFile, table: sql.Table) -> list[ColumnElement[bool]]:
    """Conditions that cut the table into parts of about equal size."""
    if any(column.lower() == ROWID for column in file.tables[table.name]):
        return [sql.true()]
    try:
        low, high = (
            file.rows(sql.select(extreme(_ROWID)).select_from(table))[0][0] for extreme in (sql.func.min, sql.func.max)
        )
    except ReportError:
        # A table without rowids is read in one piece; damage shows again there.
        return [sql.true()]
    if low is None or high - low < _PART_ROWS:
        return [sql.true()]
    parts = min(_MOST_PARTS, (high - low) // _PART_ROWS + 1)
    edges = [low + (high - low) * part // parts for part in range(1, parts)]
    above = [sql.true(), *(edge <= _ROWID for edge in edges)]
    below = [*(edge > _ROWID for edge in edges), sql.true()]
    return [sql.and_(*bounds) for bounds in zip(above, below, strict=True)]


def run(file: SqliteFile, table: str, query: str, stop: threading.Event) -> Iterator[pa.RecordBatch]:
    """The batches that a query returns, less the row that tells the types.

    Raises:
        ReportError: If the file is damaged.
    """
    try:
        for number, batch in enumerate(_batches(file, query)):
            yield batch.slice(1) if number == 0 else batch
            if stop.is_set():
                return
    except (adbc.Error, pa.ArrowException, UnicodeDecodeError) as error:
        problem = f"{table} cannot be read ({str(error).splitlines()[0]})"
        raise ReportError(file.path, problem, DAMAGED) from None


def _batches(file: SqliteFile, query: str) -> Iterator[pa.RecordBatch]:
    # ADBC's own layer, not its DB-API: that one imports pandas.
    with (
        adbc_driver_sqlite.connect(file.uri) as database,
        adbc.AdbcConnection(database) as connection,
        adbc.AdbcStatement(connection) as statement,
    ):
        statement.set_options(**{"adbc.sqlite.query.batch_rows": str(_BATCH_ROWS)})
        statement.set_sql_query(query)
        stream, _ = statement.execute_query()
        yield from pa.RecordBatchReader.from_stream(stream)

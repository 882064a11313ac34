"""Writes rows as a SQLite file in the shape of Nsight Systems' exports, completely or not at all.

Tables are those of :mod:`tracekit.nsight.tables`; as in nsys's own exports, tables without rows are left out.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Column, Float, Integer, LargeBinary, MetaData, Table, Text, create_engine, event
from sqlalchemy.engine import Connection
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from tracekit.errors import CaptureError
from tracekit.files import whole_file
from tracekit.nsight import tables as nsight
from tracekit.nsight.tables import StoredTable

_TYPES: dict[type, Any] = {int: Integer, str: Text, float: Float, bytes: LargeBinary}
#: Rows that are in memory at a time.
_BATCH = 50_000


#: Rows of a table, each a mapping from column to value, all with the same columns.
Rows = Collection[Mapping[str, Any]]


def write(path: Path, tables: Mapping[str, Rows], progress: Callable[[float], object] = bool) -> None:
    """Writes a report next to its place and moves it there when it is complete; an existing one is replaced.

    ``progress`` is called with each share of the rows when it is written.
    """
    try:
        with whole_file(path) as partial:
            _write(partial, tables, progress)
    except (SQLAlchemyError, OSError) as error:
        reason = getattr(error, "orig", None) or getattr(error, "strerror", None) or error
        message = f"{path}: cannot be written ({reason}); free disk space, or choose another path with -o"
        raise CaptureError(message) from None


def _write(path: Path, tables: Mapping[str, Rows], progress: Callable[[float], object]) -> None:
    # A path in a URL would be cut at its first question mark.
    engine = create_engine(URL.create("sqlite", database=str(path)), poolclass=NullPool)
    # The file is moved to its place when it is complete, so it needs no journal.
    event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA journal_mode=OFF"))
    schema = MetaData()
    filled = {_table(nsight.TABLES[name], schema): rows for name, rows in tables.items() if rows}
    total = sum(map(len, filled.values()))
    with engine.begin() as connection:
        schema.create_all(connection)
        for table, rows in filled.items():
            for count in _inserted(connection, table, rows):
                progress(count / total)
    engine.dispose()


def _inserted(connection: Connection, table: Table, rows: Rows) -> Iterator[int]:
    """Inserts rows; yields how many at a time. Tuples, because SQLAlchemy takes four times as long for mappings."""
    remaining = iter(rows)
    while batch := list(islice(remaining, _BATCH)):
        names = [column.name for column in table.columns if column.name in batch[0]]
        insert = table.insert().compile(connection, column_keys=names)
        connection.exec_driver_sql(str(insert), [tuple([row[name] for name in names]) for row in batch])
        yield len(batch)


def _table(declared: StoredTable, schema: MetaData) -> Table:
    return Table(declared.name, schema, *(Column(name, _TYPES[type_]) for name, type_ in declared.columns.items()))

"""Writes rows as a SQLite file in the shape of Nsight Systems' exports, completely or not at all.

Tables are those of :mod:`tracekit.nsight.tables`; as in nsys's own exports, tables without rows are left out.
"""

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Column, Float, Integer, LargeBinary, MetaData, Table, Text, create_engine, event
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from tracekit.errors import CaptureError
from tracekit.files import whole_file
from tracekit.nsight import tables as nsight
from tracekit.nsight.tables import StoredTable

_TYPES: dict[type, Any] = {int: Integer, str: Text, float: Float, bytes: LargeBinary}
#: Rows that are in memory at a time.
_BATCH = 50_000


def write(path: Path, tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Writes a report next to its place and moves it there when it is complete.

    Args:
        path: The file; an existing one is replaced.
        tables: Rows by the name of their table, each a mapping from column to value; all rows of a table have the
            same columns.
    """
    try:
        with whole_file(path) as partial:
            _write(partial, tables)
    except (SQLAlchemyError, OSError) as error:
        reason = getattr(error, "orig", None) or getattr(error, "strerror", None) or error
        message = f"{path}: cannot be written ({reason}); free disk space, or choose another path with -o"
        raise CaptureError(message) from None


def _write(path: Path, tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    # A path in a URL would be cut at its first question mark.
    engine = create_engine(URL.create("sqlite", database=str(path)), poolclass=NullPool)
    # The file is moved to its place when it is complete, so it needs no journal.
    event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA journal_mode=OFF"))
    schema = MetaData()
    filled = {_table(nsight.TABLES[name], schema): rows for name, rows in tables.items() if rows}
    with engine.begin() as connection:
        schema.create_all(connection)
        for table, rows in filled.items():
            remaining = iter(rows)
            while batch := list(islice(remaining, _BATCH)):
                connection.execute(table.insert(), batch)
    engine.dispose()


def _table(declared: StoredTable, schema: MetaData) -> Table:
    return Table(declared.name, schema, *(Column(name, _TYPES[type_]) for name, type_ in declared.columns.items()))

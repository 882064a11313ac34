"""Writes rows as a SQLite file in the shape of Nsight Systems' exports, whole or not at all.

Tables are those of :mod:`tracekit.nsight.tables`; as in nsys's own exports, one without rows is left out.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from sqlalchemy import URL, create_engine, event
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from tracekit.errors import CaptureError
from tracekit.nsight import tables as nsight

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


def write(path: Path, tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Writes a report beside its place and moves it there when it is complete.

    Args:
        path: Where; a file that is there is replaced.
        tables: Rows by the name of their table, each a mapping from column to value; all rows of a table have the
            same columns.

    Raises:
        CaptureError: If it cannot be written.
    """
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        _write(partial, tables)
        partial.replace(path)
    except (SQLAlchemyError, OSError) as error:
        reason = getattr(error, "orig", None) or getattr(error, "strerror", None) or error
        message = f"{path}: cannot be written ({reason}); free the disk or choose another place: -o"
        raise CaptureError(message) from None
    finally:
        partial.unlink(missing_ok=True)


def _write(path: Path, tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    path.unlink(missing_ok=True)
    # A path in a URL would be cut at its first question mark.
    engine = create_engine(URL.create("sqlite", database=str(path)), poolclass=NullPool)
    # Whoever looks meanwhile sees nothing: the file is moved when complete, so no journal is needed.
    event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA journal_mode=OFF"))
    filled = {nsight.SCHEMA.tables[name]: rows for name, rows in tables.items() if rows}
    with engine.begin() as connection:
        nsight.SCHEMA.create_all(connection, tables=list(filled))
        for table, rows in filled.items():
            connection.execute(table.insert(), list(rows))
    engine.dispose()

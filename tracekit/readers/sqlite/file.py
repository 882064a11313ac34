"""An open SQLite file: its tables, and the rows of small ones.

The file is opened read-only and immutable: no lock is taken, no ``-wal`` or ``-shm`` file is read or created, and a
read-only disk is enough.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import sqlalchemy as sql
from sqlalchemy.pool import NullPool

from tracekit.errors import ReportError
from tracekit.recording.provenance import Lack

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SQLITE_MAGIC = b"SQLite format 3\0"
_HEADER_BYTES = 100
DAMAGED = "the file is damaged or truncated; export the report again"


@dataclass(frozen=True, slots=True)
class Layout:
    """How the rows of a table lie in the file.

    Attributes:
        root: Its root page, counted from 1.
        positions: Where each column stands in a row.
        keys: Columns whose values are the numbers of the rows and so are not stored in them.
    """

    root: int
    positions: Mapping[str, int]
    keys: frozenset[str] = frozenset()

    @property
    def hides_rowid(self) -> bool:
        """Whether a column has taken the name by which rows are numbered."""
        return any(name.lower() == "rowid" for name in self.positions)


class SqliteFile:
    """An open SQLite file."""

    def __init__(self, path: Path) -> None:
        """Opens the file.

        Raises:
            ReportError: If SQLite cannot read it.
        """
        self.path = path
        self.uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
        self._engine = sql.create_engine("sqlite://", creator=self.connect, poolclass=NullPool)
        self._roots = self._root_pages()
        #: The columns of each table, without computed ones.
        self.tables: dict[str, frozenset[str]] = {
            name: frozenset(column for column, _, hidden in self._columns(name) if not hidden) for name in self._roots
        }

    def __enter__(self) -> Self:
        """The file itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes the file."""
        self._engine.dispose()

    def connect(self) -> sqlite3.Connection:
        """A connection whose texts are never invalid: bytes that are not UTF-8 are replaced."""
        connection = sqlite3.connect(self.uri, uri=True)
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        return connection

    def _root_pages(self) -> dict[str, int]:
        # Only real tables have a root page: views and virtual tables could run anything.
        master = sql.table("sqlite_master", *map(sql.column, ("type", "name", "rootpage")))
        real = sql.select(master.c.name, master.c.rootpage)
        rows = self.rows(real.where(master.c.type == "table", master.c.rootpage > 0))
        return {name: root for name, root in rows if isinstance(name, str)}

    def _columns(self, table: str) -> list[Any]:
        """Name, part in the primary key, and kind of every column, in the order of the table."""
        info = sql.func.pragma_table_xinfo(sql.bindparam("of")).table_valued("name", "pk", "hidden")
        return self.rows(sql.select(info.c.name, info.c.pk, info.c.hidden), of=table)

    def layout(self, table: str) -> Layout | None:
        """How the table's rows lie in the file; None if there is more to it than one column after the other."""
        columns = self._columns(table)
        keys = frozenset(name for name, key, _ in columns if key)
        if any(hidden for *_, hidden in columns) or (keys and self._has_key_index(table)):
            return None
        return Layout(self._roots[table], {name: at for at, (name, *_) in enumerate(columns)}, keys)

    def _has_key_index(self, table: str) -> bool:
        """Whether the primary key has an index or is the table itself, so that it is not the number of the row."""
        info = sql.func.pragma_index_list(sql.bindparam("of")).table_valued("origin")
        return any(origin == "pk" for (origin,) in self.rows(sql.select(info.c.origin), of=table))

    @property
    def lacks(self) -> tuple[Lack, ...]:
        """Its latest changes, if they are still in a write-ahead log; a stray log file does not count."""
        name = self.path.name
        log = self.path.with_name(f"{name}-wal")
        with self.path.open("rb") as file:
            uses_log = file.read(_HEADER_BYTES)[18:19] == b"\x02"
        if not (uses_log and log.is_file() and log.stat().st_size > 0):
            return ()
        remedy = f"close the program that writes it, or run: sqlite3 {name} 'PRAGMA wal_checkpoint(TRUNCATE)'"
        return (Lack(f"its latest changes, which are still in {log.name}", remedy),)

    def values(self, table: str, columns: tuple[str, ...]) -> list[Any]:
        """Columns of a small table, a tuple for each row."""
        named: list[sql.ColumnElement[Any]] = [sql.column(name) for name in columns]
        return self.rows(sql.select(*named).select_from(sql.table(table)))

    def rows(self, query: sql.Select[Any], **values: object) -> list[Any]:
        """All rows of a small query."""
        try:
            with self._engine.connect() as connection:
                return list(connection.execute(query, values))
        except sql.exc.DatabaseError as error:
            problem = f"SQLite cannot read it ({error.orig})"
            raise ReportError(self.path, problem, DAMAGED) from None
        except UnicodeDecodeError:  # SQLite's own message quotes what is damaged
            raise ReportError(self.path, "SQLite cannot read it", DAMAGED) from None

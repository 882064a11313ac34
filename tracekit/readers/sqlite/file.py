"""A SQLite file: its tables, and the rows of small ones.

The file is opened read-only and immutable: no lock is taken, no ``-wal`` or ``-shm`` file is read or created, and a
read-only disk is enough.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracekit.errors import ReportError
from tracekit.recording.provenance import Lack

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

SQLITE_MAGIC = b"SQLite format 3\0"
_HEADER_BYTES = 100
# Only real tables have a root page: views and virtual tables could run anything.
_COLUMNS = """
    SELECT main.name, main.rootpage, info.name, info.pk, info.hidden
    FROM sqlite_master AS main LEFT JOIN pragma_table_xinfo(main.name) AS info
    WHERE main.type = 'table' AND main.rootpage > 0
    ORDER BY main.rowid, info.cid
"""
_INDEXES = "SELECT origin FROM pragma_index_list(?)"
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
    """A SQLite file, which is opened anew for every query."""

    def __init__(self, path: Path) -> None:
        """Reads which tables the file has.

        Raises:
            ReportError: If SQLite cannot read it.
        """
        self.path = path
        self.uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
        self._roots: dict[str, int] = {}
        #: Name, part in the primary key, and kind of every column, in the order of the table.
        self._columns: dict[str, list[tuple[str, int, int]]] = {}
        for table, root, *column in self.rows(_COLUMNS):
            if isinstance(table, str):
                self._roots[table] = root
                self._columns.setdefault(table, []).extend([(*column,)] if isinstance(column[0], str) else [])
        #: The columns of each table, without computed ones.
        self.tables: dict[str, frozenset[str]] = {
            table: frozenset(name for name, _, hidden in columns if not hidden)
            for table, columns in self._columns.items()
        }

    def connect(self) -> sqlite3.Connection:
        """A connection whose texts are never invalid: bytes that are not UTF-8 are replaced."""
        connection = sqlite3.connect(self.uri, uri=True)
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        return connection

    def layout(self, table: str) -> Layout | None:
        """How the table's rows lie in the file; None if there is more to it than one column after the other."""
        columns = self._columns[table]
        keys = frozenset(name for name, key, _ in columns if key)
        if any(hidden for *_, hidden in columns) or (keys and self._has_key_index(table)):
            return None
        return Layout(self._roots[table], {name: at for at, (name, *_) in enumerate(columns)}, keys)

    def _has_key_index(self, table: str) -> bool:
        """Whether the primary key has an index or is the table itself, so that it is not the number of the row."""
        return any(origin == "pk" for (origin,) in self.rows(_INDEXES, table))

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
        return self.rows(selecting([column_of(table, name) for name in columns], table))

    def rows(self, query: str, *values: object) -> list[Any]:
        """All rows of a small query."""
        try:
            with closing(self.connect()) as connection:
                return connection.execute(query, values).fetchall()
        except sqlite3.Error as error:
            problem = f"SQLite cannot read it ({error})"
            raise ReportError(self.path, problem, DAMAGED) from None
        except UnicodeDecodeError:  # SQLite's own message quotes what is damaged
            raise ReportError(self.path, "SQLite cannot read it", DAMAGED) from None


def column_of(table: str, name: str) -> str:
    """A column as a query names it: without its table, SQLite would take the name of a missing one for a text."""
    return f"{_quoted(table)}.{_quoted(name)}"


def selecting(columns: Iterable[str], table: str, order: str = "") -> str:
    """A query for columns of a table, as :func:`column_of` names them; a SQL builder takes longer to import than this.

    Args:
        columns: The columns, or expressions of them.
        table: The table's name.
        order: What the rows are sorted by, if anything.
    """
    query = f"SELECT {', '.join(columns)} FROM {_quoted(table)}"  # noqa: S608 - every name is quoted
    return f"{query} ORDER BY {order}" if order else query


def _quoted(name: str) -> str:
    escaped = name.replace('"', '""')
    return f'"{escaped}"'

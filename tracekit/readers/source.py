"""Where the tables of a report come from: a SQLite file, or a folder with a file for each table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import pyarrow as pa

    from tracekit.nsight.stored import StoredTable
    from tracekit.readers.requests import Request


class TableSource(Protocol):
    """The tables of a report. Integers are those of SQLite: unsigned ids wrap to two's complement."""

    #: What errors name.
    @property
    def path(self) -> Path:
        """The report."""

    @property
    def tables(self) -> Mapping[str, frozenset[str]]:
        """The columns of each table."""

    @property
    def beyond(self) -> int:
        """Number of values that were too large for their column and became null."""

    def values(self, table: str, columns: tuple[str, ...], /) -> list[Any]:
        """Columns of a small table that has them, a tuple for each row.

        Raises:
            ReportError: If it is damaged.
        """

    def read(self, requests: Mapping[str, Request], progress: Callable[[float], None], /) -> dict[str, pa.Table]:
        """Reads large tables, by names of the caller's; one that the source lacks has no columns.

        Raises:
            ReportError: If one is damaged.
        """


def has(source: TableSource, table: StoredTable, *columns: str) -> bool:
    """Whether there is a table with these columns."""
    return table.name in source.tables and set(columns) <= source.tables[table.name]


def typed(source: TableSource, table: StoredTable, *columns: str) -> list[Any]:
    """The rows of a small table whose values are of the declared types; none if it lacks a column."""
    if not has(source, table, *columns):
        return []
    types = [table.columns[name] for name in columns]
    return [tuple(row) for row in source.values(table.name, columns) if all(map(isinstance, row, types))]

"""Writes rows as a SQLite file in the shape of Nsight Systems' exports, completely or not at all.

Tables are those of :mod:`tracekit.nsight.tables`; as in nsys's own exports, tables without rows are left out.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import sqlalchemy as sql
from sqlalchemy.exc import SQLAlchemyError

from tracekit.errors import CaptureError
from tracekit.files import whole_file
from tracekit.nsight import tables as nsight
from tracekit.nsight.tables import StoredTable

_TYPES: dict[type, Any] = {int: sql.Integer, str: sql.Text, float: sql.Float, bytes: sql.LargeBinary}
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
            engine = _engine(partial)
            # The file is moved to its place when it is complete, so it needs no journal.
            sql.event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA journal_mode=OFF"))
            _insert(engine, tables, progress)
            engine.dispose()
    except (SQLAlchemyError, OSError) as error:
        reason = getattr(error, "orig", None) or getattr(error, "strerror", None) or error
        message = f"{path}: cannot be written ({reason}); free disk space, or choose another path with -o"
        raise CaptureError(message) from None


def add(path: Path, tables: Mapping[str, Rows]) -> None:
    """Adds tables that a report does not have yet."""
    _insert(_engine(path), tables, bool)


def table_names(path: Path) -> list[str]:
    """The names of a report's tables; those without rows are not there."""
    return sql.inspect(_engine(path)).get_table_names()


def range_texts(path: Path) -> dict[int, list[tuple[str, int]]]:
    """The texts of the ranges that were pushed, with how often each was, by process id."""
    engine, schema = _engine(path), sql.MetaData()
    if nsight.NVTX.name not in table_names(path):
        return {}
    ranges, strings = (_table(declared, schema) for declared in (nsight.NVTX, nsight.STRINGS))
    text = sql.func.coalesce(ranges.c.text, strings.c.value)
    pid = ranges.c.globalTid.op(">>")(nsight.THREAD_BITS).op("&")(nsight.ID_MASK)
    pushed = ranges.c.eventType.in_(nsight.PUSH_POP_RANGES)
    joined = ranges.outerjoin(strings, ranges.c.textId == strings.c.id)
    query = sql.select(pid, text, sql.func.count()).select_from(joined).group_by(pid, text)
    found: dict[int, list[tuple[str, int]]] = {}
    with engine.connect() as connection:
        for process, value, count in connection.execute(query.where(pushed, text.is_not(None))):
            found.setdefault(process, []).append((value, count))
    return found


def _engine(path: Path) -> sql.Engine:
    # A path in a URL would be cut at its first question mark.
    return sql.create_engine(sql.URL.create("sqlite", database=str(path)), poolclass=sql.NullPool)


def _insert(engine: sql.Engine, tables: Mapping[str, Rows], progress: Callable[[float], object]) -> None:
    schema = sql.MetaData()
    filled = {_table(nsight.TABLES[name], schema): rows for name, rows in tables.items() if rows}
    total = sum(map(len, filled.values()))
    with engine.begin() as connection:
        schema.create_all(connection)
        for table, rows in filled.items():
            for count in _inserted(connection, table, rows):
                progress(count / total)


def _inserted(connection: sql.Connection, table: sql.Table, rows: Rows) -> Iterator[int]:
    """Inserts rows; yields how many at a time. Tuples, because SQLAlchemy takes four times as long for mappings."""
    remaining = iter(rows)
    while batch := list(islice(remaining, _BATCH)):
        names = [column.name for column in table.columns if column.name in batch[0]]
        insert = table.insert().compile(connection, column_keys=names)
        connection.exec_driver_sql(str(insert), [tuple([row[name] for name in names]) for row in batch])
        yield len(batch)


def _table(declared: StoredTable, schema: sql.MetaData) -> sql.Table:
    columns = [sql.Column(name, _TYPES[type_]) for name, type_ in declared.columns.items()]
    return sql.Table(declared.name, schema, *columns)

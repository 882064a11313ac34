"""The tables in a database: any that SQLAlchemy reaches. Lists and maps are stored as JSON text.

All is done in one transaction, that of the tables too, so that a database with transactional definitions (SQLite,
PostgreSQL) holds either everything or what it held before. MySQL and Oracle commit every definition by itself: there, a
failure can leave tables that are empty or gone. Rows go into PostgreSQL by its ``COPY`` where the driver is psycopg 3,
eight times as fast as by ``INSERT``, which all others get.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa

from tracekit.dataset.opening import TABLE_NAMES
from tracekit.errors import ExportError, UsageError
from tracekit.exports.base import plain_columns, python_values, spec_tables

if TYPE_CHECKING:
    from collections.abc import Iterator
    from sqlite3 import Connection as SqliteConnection

    from tracekit.dataset.opening import Dataset
    from tracekit.exports.base import Target
    from tracekit.progress import Progress

NAME = "sql"
HELP = "the tables in a database; OUT is its SQLAlchemy URL, such as sqlite:///run.db"

_ROWS = 5_000
_NUL, _SHOWN = "\0", "\N{REPLACEMENT CHARACTER}"
#: The database and driver with a bulk load of their own.
_COPIES = "postgresql", "psycopg"
#: What COPY would take for something else; the backslash comes first.
_ESCAPES = {"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r", _NUL: _SHOWN}
_TYPES: dict[pa.DataType, type[sa.types.TypeEngine[Any]]] = {
    pa.int16(): sa.SmallInteger,
    pa.int32(): sa.Integer,
    pa.int64(): sa.BigInteger,
    pa.float64(): sa.Double,
    pa.bool_(): sa.Boolean,
    pa.string(): sa.Text,
}


def write(dataset: Dataset, target: Target, progress: Progress) -> None:
    """Writes the tables; with ``force``, those of the same names are dropped.

    Raises:
        ExportError: If the database cannot be reached or written, or has such tables.
        UsageError: If the target is no URL of a database.
    """
    with _engine(target.place) as (engine, said):
        try:
            _fill(engine, dataset, progress, drop=_in_the_way(engine, target, said))
        except (sa.exc.SQLAlchemyError, OSError) as error:
            message = f"{said}: cannot be written ({_reason(error)}); check the database and its URL"
            raise ExportError(message) from None


@contextmanager
def _engine(place: str) -> Iterator[tuple[sa.Engine, str]]:
    """An engine, and the URL as it can be shown; what SQLite made for nothing is removed."""
    said = "the database"
    try:
        url = sa.make_url(place)
        said = url.render_as_string(hide_password=True)
        engine = sa.create_engine(url)
    except sa.exc.NoSuchModuleError:
        raise UsageError(f"SQLAlchemy knows no such database: {place.partition(':')[0]}") from None
    except sa.exc.ArgumentError:
        message = "-o: that is no URL of a database; expected one such as sqlite:///run.db"
        raise UsageError(message) from None
    except ImportError as error:
        raise ExportError(f"{said}: needs a driver ({error}); install it with pip") from None
    made = None
    if engine.dialect.name == "sqlite":
        _begin_at_once(engine)
        path = Path(url.database or ":memory:")
        made = None if path.exists() or path.name == ":memory:" else path
    try:
        yield engine, said
    except BaseException:
        engine.dispose()
        if made is not None:
            with suppress(OSError):
                made.unlink(missing_ok=True)
        raise
    engine.dispose()


def _begin_at_once(engine: sa.Engine) -> None:
    """Makes definitions part of SQLite's transactions, which Python's driver leaves out by itself."""

    @sa.event.listens_for(engine, "connect")
    def _by_hand(connection: SqliteConnection, _record: object) -> None:
        connection.isolation_level = None

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _fill(engine: sa.Engine, dataset: Dataset, progress: Progress, *, drop: list[str]) -> None:
    fill = _copy if (engine.dialect.name, engine.dialect.driver) == _COPIES else _insert
    with engine.begin() as connection:
        for name in drop:
            sa.Table(name, sa.MetaData()).drop(connection)
        for name, schema in spec_tables(dataset, progress):
            table = _table(name, schema)
            table.create(connection)
            for piece in dataset.pieces(name):
                fill(connection, table, piece)


def _in_the_way(engine: sa.Engine, target: Target, said: str) -> list[str]:
    """Names of the tables that are there already, if they may be replaced."""
    there = set(sa.inspect(engine).get_table_names())
    mine = [name for name in TABLE_NAMES if name in there]
    if mine and not target.force:
        problem = f"has a table {mine[0]} already"
        raise ExportError(f"{said}: {problem}; replace it with --force or choose another database")
    return mine


def _table(name: str, schema: pa.Schema) -> sa.Table:
    columns = [sa.Column(field.name, _TYPES.get(field.type, sa.Text)(), nullable=field.nullable) for field in schema]
    return sa.Table(name, sa.MetaData(), *columns)


def _copy(connection: sa.Connection, table: sa.Table, piece: pa.Table) -> None:
    """Inserts rows as the lines of PostgreSQL's COPY, on the same connection and so in the same transaction."""
    spelled = connection.dialect.identifier_preparer
    names = ", ".join(spelled.format_column(table.c[name]) for name in piece.column_names)
    statement = f"COPY {spelled.format_table(table)} ({names}) FROM STDIN (ENCODING 'UTF8')"
    driver: Any = connection.connection.driver_connection
    try:
        with driver.cursor() as cursor, cursor.copy(statement) as copy:
            for batch in plain_columns(piece).to_batches(_ROWS):
                copy.write(_lines(batch))
    except connection.dialect.loaded_dbapi.Error as error:
        raise sa.exc.DBAPIError(None, None, error) from None


def _lines(batch: pa.RecordBatch) -> bytes:
    r"""Rows as COPY takes them: values apart by tabs, ``\N`` for null, what else means something after ``\``."""
    cells = [_escaped(column) if column.type == pa.string() else column.cast(pa.string()) for column in batch]
    lines = pc.binary_join_element_wise(*cells, "\t", null_handling="replace", null_replacement=r"\N")
    ended = pc.binary_join_element_wise(lines, "", "\n")
    whole = pa.ListArray.from_arrays(pa.array([0, len(ended)], pa.int32()), ended)
    text: str = pc.binary_join(whole, "")[0].as_py()
    return text.encode()


def _escaped(texts: pa.Array) -> pa.Array:
    for said, written in _ESCAPES.items():
        texts = pc.replace_substring(texts, said, written)
    return texts


def _insert(connection: sa.Connection, table: sa.Table, piece: pa.Table) -> None:
    # The driver is handed the rows as they are: SQLAlchemy would look at every value again.
    compiled = table.insert().compile(dialect=connection.dialect)
    names = list(compiled.positiontup or compiled.bind_names.values())
    for start in range(0, piece.num_rows, _ROWS):
        some = piece.slice(start, _ROWS)
        rows: Any = list(zip(*(_storable(some.column(name)) for name in names), strict=True))
        if not compiled.positional:
            rows = [dict(zip(names, row, strict=True)) for row in rows]
        connection.exec_driver_sql(str(compiled), rows)


def _storable(column: pa.ChunkedArray) -> list[Any]:
    """The values; PostgreSQL takes no NUL in a text."""
    values = python_values(column)
    if pa.types.is_integer(column.type):
        return values
    return [one.replace(_NUL, _SHOWN) if isinstance(one, str) else one for one in values]


def _reason(error: Exception) -> str:
    """What the driver says, without the statement and its rows."""
    cause = getattr(error, "orig", None) or error
    return " ".join(str(cause).split("\n", 1)[0].split()) or type(cause).__name__

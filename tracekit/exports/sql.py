"""The tables in a database, any that SQLAlchemy supports. Lists and maps are stored as JSON text.

Tables are created and filled in one transaction, so that a database with transactional definitions (SQLite, PostgreSQL)
holds either everything or what it held before. MySQL and Oracle commit each definition by itself: there, a failure can
leave tables empty or dropped. With psycopg 3, rows go into PostgreSQL by ``COPY``, eight times as fast as by
``INSERT``, which all other databases get.
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
_NUL, _NUL_REPLACED = "\0", "\N{REPLACEMENT CHARACTER}"
#: The database and driver that are filled by COPY.
_COPIES = "postgresql", "psycopg"
#: Characters with a meaning in COPY; the backslash comes first.
_ESCAPES = {"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r", _NUL: _NUL_REPLACED}
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
        UsageError: If the target is not the URL of a database.
    """
    engine = _engine(target.place)
    shown = engine.url.render_as_string(hide_password=True)
    with _disposed(engine):
        try:
            _fill(engine, dataset, progress, drop=_existing(engine, target, shown))
        except (sa.exc.SQLAlchemyError, OSError) as error:
            message = f"{shown}: cannot be written ({_reason(error)}); check the database and its URL"
            raise ExportError(message) from None


def _engine(place: str) -> sa.Engine:
    """An engine for a URL; no message shows the URL's password."""
    shown = "the database"
    try:
        url = sa.make_url(place)
        shown = url.render_as_string(hide_password=True)
        return sa.create_engine(url)
    except sa.exc.NoSuchModuleError:
        raise UsageError(f"SQLAlchemy supports no such database: {place.partition(':')[0]}") from None
    except sa.exc.ArgumentError:
        message = "-o: not the URL of a database; expected one such as sqlite:///run.db"
        raise UsageError(message) from None
    except ImportError as error:
        raise ExportError(f"{shown}: needs a driver ({error}); install it with pip") from None


@contextmanager
def _disposed(engine: sa.Engine) -> Iterator[None]:
    """Closes the engine after the block; if the block raises, a SQLite file that it created is removed."""
    created = None
    if engine.dialect.name == "sqlite":
        _begin_at_once(engine)
        path = Path(engine.url.database or ":memory:")
        created = None if path.exists() or path.name == ":memory:" else path
    try:
        yield
    except BaseException:
        engine.dispose()
        if created is not None:
            with suppress(OSError):
                created.unlink(missing_ok=True)
        raise
    engine.dispose()


def _begin_at_once(engine: sa.Engine) -> None:
    """Makes definitions part of SQLite's transactions, which Python's driver does not do by default."""

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


def _existing(engine: sa.Engine, target: Target, shown: str) -> list[str]:
    """Names of our tables that already exist, if they may be replaced."""
    names = set(sa.inspect(engine).get_table_names())
    existing = [name for name in TABLE_NAMES if name in names]
    if existing and not target.force:
        problem = f"already has a table {existing[0]}"
        raise ExportError(f"{shown}: {problem}; replace it with --force or choose another database")
    return existing


def _table(name: str, schema: pa.Schema) -> sa.Table:
    columns = [sa.Column(field.name, _TYPES.get(field.type, sa.Text)(), nullable=field.nullable) for field in schema]
    return sa.Table(name, sa.MetaData(), *columns)


def _copy(connection: sa.Connection, table: sa.Table, piece: pa.Table) -> None:
    """Inserts rows as lines of PostgreSQL's COPY, on the same connection and so in the same transaction."""
    quoted = connection.dialect.identifier_preparer
    names = ", ".join(quoted.format_column(table.c[name]) for name in piece.column_names)
    statement = f"COPY {quoted.format_table(table)} ({names}) FROM STDIN (ENCODING 'UTF8')"
    driver: Any = connection.connection.driver_connection
    try:
        with driver.cursor() as cursor, cursor.copy(statement) as copy:
            for batch in plain_columns(piece).to_batches(_ROWS):
                copy.write(_lines(batch))
    except connection.dialect.loaded_dbapi.Error as error:
        raise sa.exc.DBAPIError(None, None, error) from None


def _lines(batch: pa.RecordBatch) -> bytes:
    r"""Rows as COPY takes them: values separated by tabs, ``\N`` for null, special characters after ``\``."""
    cells = [_escaped(column) if column.type == pa.string() else column.cast(pa.string()) for column in batch]
    lines = pc.binary_join_element_wise(*cells, "\t", null_handling="replace", null_replacement=r"\N")
    ended = pc.binary_join_element_wise(lines, "", "\n")
    whole = pa.ListArray.from_arrays(pa.array([0, len(ended)], pa.int32()), ended)
    text: str = pc.binary_join(whole, "")[0].as_py()
    return text.encode()


def _escaped(texts: pa.Array) -> pa.Array:
    for character, escaped in _ESCAPES.items():
        texts = pc.replace_substring(texts, character, escaped)
    return texts


def _insert(connection: sa.Connection, table: sa.Table, piece: pa.Table) -> None:
    # Rows go to the driver as they are: SQLAlchemy would check every value again.
    compiled = table.insert().compile(dialect=connection.dialect)
    names = list(compiled.positiontup or compiled.bind_names.values())
    for start in range(0, piece.num_rows, _ROWS):
        batch = piece.slice(start, _ROWS)
        rows: Any = list(zip(*(_storable(batch.column(name)) for name in names), strict=True))
        if not compiled.positional:
            rows = [dict(zip(names, row, strict=True)) for row in rows]
        connection.exec_driver_sql(str(compiled), rows)


def _storable(column: pa.ChunkedArray) -> list[Any]:
    """The values; PostgreSQL takes no NUL in a text."""
    values = python_values(column)
    if pa.types.is_integer(column.type):
        return values
    return [value.replace(_NUL, _NUL_REPLACED) if isinstance(value, str) else value for value in values]


def _reason(error: Exception) -> str:
    """The driver's reason, without the statement and its rows."""
    cause = getattr(error, "orig", None) or error
    return " ".join(str(cause).split("\n", 1)[0].split()) or type(cause).__name__

"""The tables in a database, any that SQLAlchemy supports. Lists and maps are stored as JSON text.

Tables are created and filled in one transaction, so that a database with transactional definitions (SQLite, PostgreSQL)
holds either everything or what it held before. MySQL and Oracle commit each definition separately: there, a failure can
leave tables empty or dropped.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from io import BytesIO
from pathlib import Path
from sqlite3 import Connection as SqliteConnection
from typing import Any, cast

import numpy as np
import pyarrow as pa
import sqlalchemy as sa
from pyarrow import compute as pc, csv

from tracekit.arrays.text import json_text
from tracekit.dataset.opening import TABLE_NAMES, Dataset
from tracekit.errors import ExportError, UsageError
from tracekit.exports.base import Target, plain_columns, spec_tables
from tracekit.progress import Progress

_ROWS = 20_000
_TYPES: dict[pa.DataType, type[sa.types.TypeEngine[Any]]] = {
    pa.int16(): sa.SmallInteger,
    pa.int32(): sa.Integer,
    pa.int64(): sa.BigInteger,
    pa.float64(): sa.Double,
    pa.bool_(): sa.Boolean,
    pa.string(): sa.Text,
}


def write(dataset: Dataset, target: Target, progress: Progress) -> None:
    """Writes the tables; with ``force``, those of the same names are dropped."""
    engine = _engine(target.place)
    with _disposed(engine):
        inspector = sa.inspect(engine)
        existing = [name for name in TABLE_NAMES if inspector.has_table(name)]
        if existing and not target.force:
            problem = f"already has a table {existing[0]}"
            raise ExportError(f"{_shown(engine.url)}: {problem}; replace it with --force or choose another database")
        with engine.begin() as connection:
            for name in existing:
                sa.Table(name, sa.MetaData()).drop(connection)
            for name, schema in spec_tables(dataset, progress):
                _insert(connection, name, schema, dataset.pieces(name))


def _shown(url: sa.URL) -> str:
    return url.render_as_string(hide_password=True)


def _engine(place: str) -> sa.Engine:
    try:
        url = sa.make_url(place)
    except sa.exc.ArgumentError:
        raise UsageError("-o: not the URL of a database; expected one such as sqlite:///run.db") from None
    try:
        return sa.create_engine(url)
    except sa.exc.NoSuchModuleError:
        raise UsageError(f"SQLAlchemy supports no such database: {url.drivername}") from None
    except ImportError as error:
        raise ExportError(f"{_shown(url)}: needs a driver ({error}); install it with pip") from None


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
    except BaseException as error:
        engine.dispose()
        if created is not None:
            with suppress(OSError):
                created.unlink()
        if isinstance(error, (sa.exc.SQLAlchemyError, OSError, engine.dialect.loaded_dbapi.Error)):
            cause = getattr(error, "orig", None) or error
            reason = " ".join(str(cause).split("\n", 1)[0].split()) or type(cause).__name__
            problem = f"cannot be written ({reason}); check the database and its URL"
            raise ExportError(f"{_shown(engine.url)}: {problem}") from None
        raise
    engine.dispose()


def _begin_at_once(engine: sa.Engine) -> None:
    """Makes definitions part of SQLite's transactions, which Python's driver does not do by default."""

    @sa.event.listens_for(engine, "connect")
    def _by_hand(connection: SqliteConnection, _record: object) -> None:
        connection.isolation_level = None
        connection.execute("PRAGMA page_size=32768")  # of a new file; an eighth faster than 4096

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _insert(connection: sa.Connection, name: str, schema: pa.Schema, pieces: Iterator[pa.Table]) -> None:
    columns = [sa.Column(field.name, _TYPES.get(field.type, sa.Text)(), nullable=field.nullable) for field in schema]
    table = sa.Table(name, sa.MetaData(), *columns)
    table.create(connection)
    add = _copy if connection.dialect.driver == "psycopg" else _insert_rows
    for piece in pieces:
        for batch in piece.combine_chunks().to_batches(_ROWS):
            # Drivers bind nulls one by one, and slowly.
            known = [name for name in batch.schema.names if batch.column(name).null_count < batch.num_rows]
            add(connection, table, batch.select(known))


def _insert_rows(connection: sa.Connection, table: sa.Table, batch: pa.RecordBatch) -> None:
    """Inserts rows as the driver takes many; what is the same in all is part of the statement."""
    values: dict[str, sa.ColumnElement[Any]] = {name: sa.bindparam(name) for name in batch.schema.names}
    for name in batch.schema.names[1:]:
        if (value := _in_all(batch.column(name))) is not None:
            values[name] = sa.literal_column(value)
    insert = table.insert().values(values).compile(dialect=connection.dialect)
    bound = insert.positiontup or [name for name, value in values.items() if isinstance(value, sa.BindParameter)]
    native = connection.dialect.supports_native_boolean
    rows = zip(*(_values(batch.column(name), native=native) for name in bound), strict=True)
    if connection.dialect.name == "sqlite":
        with closing(connection.connection.cursor()) as cursor:
            cursor.executemany(str(insert), cast("Any", rows))  # each is bound before the next is made
    else:
        listed: Any = [*rows] if insert.positional else [dict(zip(bound, row, strict=True)) for row in rows]
        connection.exec_driver_sql(str(insert), listed)


def _in_all(column: pa.Array) -> str | None:
    """What all rows have, a number or a plain word, as SQL; None if they differ."""
    numbers = column.indices if pa.types.is_dictionary(column.type) else column
    if column.null_count or not pa.types.is_integer(numbers.type):
        return None
    low, high = (value.as_py() for value in pc.min_max(numbers).values())
    if low != high or numbers is column:
        return str(low) if low == high else None
    word = column.dictionary[low].as_py()
    return f"'{word}'" if word.isascii() and word.isidentifier() else None


def _values(column: pa.Array, *, native: bool) -> list[object]:
    """Python's values; categories share them."""
    if pa.types.is_dictionary(column.type):
        words = np.array([*column.dictionary.to_pylist(), None], object)
        return cast("list[object]", words[np.asarray(column.indices.fill_null(-1))].tolist())
    if pa.types.is_nested(column.type):
        column = json_text(column)
    elif pa.types.is_boolean(column.type) and not native:
        column = column.cast(pa.int8())
    values = column.drop_null().to_numpy(zero_copy_only=False)
    if column.null_count:
        known, values = values, np.full(len(column), None)
        values[np.asarray(column.is_valid())] = known
    return cast("list[object]", values.tolist())


def _copy(connection: sa.Connection, table: sa.Table, batch: pa.RecordBatch) -> None:
    """Copies rows into PostgreSQL as CSV, in which texts are quoted and nulls are not."""
    quoted = connection.dialect.identifier_preparer
    columns = ", ".join(map(quoted.quote, batch.schema.names))
    text = BytesIO()
    csv.write_csv(plain_columns(pa.table(batch)), text, csv.WriteOptions(include_header=False))
    statement = f"COPY {quoted.format_table(table)} ({columns}) FROM STDIN (FORMAT csv)"
    with closing(cast("Any", connection.connection.cursor())) as cursor, cursor.copy(statement) as copy:
        copy.write(text.getvalue())

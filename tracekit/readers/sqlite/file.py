"""A SQLite file as such: its tables, queries for small ones, and declared columns of large ones.

Large tables are decoded from the file's pages. Those that are not plain (a row that continues on another page, UTF-16)
come out of queries. Measured for 1 M kernels, 1 M launches and 1.7 M
ranges (185 MB), CPU seconds of a whole parse: 3.6 with pages, 11 if every table comes out of queries.
"""

import itertools
import shlex
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from tracekit.arrays.types import Ints
from tracekit.errors import ReportError
from tracekit.readers.source import ENCODED_BLOB, ENCODED_TEXT, Piece, Request, as_type
from tracekit.readers.sqlite.pages import NotPlain, columns, leaves, open_pages

SQLITE_MAGIC = b"SQLite format 3\0"
#: Begins a journal that is still needed; see https://sqlite.org/fileformat2.html#the_rollback_journal.
_JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")
#: Begins a write-ahead log, but for its byte order; and the byte of a file that uses one.
_LOG_MAGIC, _USES_LOG = bytes.fromhex("377f06"), b"\x02"
# Only real tables have a root page: views and virtual tables could run anything.
_COLUMNS = """
    SELECT main.name, main.rootpage, info.name, info.pk, info.hidden
    FROM sqlite_master AS main LEFT JOIN pragma_table_xinfo(main.name) AS info
    WHERE main.type = 'table' AND main.rootpage > 0
    ORDER BY main.rowid, info.cid
"""
_INDEXES = "SELECT origin FROM pragma_index_list(?)"
DAMAGED = "the file is damaged or truncated; export the report again"
#: Rows that are in memory as Python objects at a time.
_BATCH_ROWS = 16_384
#: So many pages of rows are decoded between reports of progress; so many make a piece, the work of one task.
PART_PAGES = 2_048
PIECE_PAGES = 8_192


class Layout(NamedTuple):
    """How the rows of a table lie in the file."""

    root: int  # its root page, counted from 1
    positions: Mapping[str, int]
    keys: frozenset[str] = frozenset()  # columns whose values are the numbers of the rows and so are not stored in them


class SqliteFile:
    """A SQLite file as a source of tables, which is opened for every query."""

    def __init__(self, path: Path) -> None:
        """Reads which tables the file has.

        Raises:
            ReportError: If SQLite cannot read it, it holds half of a change, or changes are still next to it.
        """
        self.path, self._place = path, path.resolve()  # SQLite looks for journals where a link leads to
        self._check_journals()
        self.uri = f"{self._place.as_uri()}?mode=ro&immutable=1"
        self._roots: dict[str, int] = {}
        #: Name, part in the primary key, and kind of every column, in the order of the table.
        self._columns: dict[str, list[tuple[str, int, int]]] = {}
        for table, root, *column in self.rows(_COLUMNS):
            if isinstance(table, str):
                self._roots[table] = root
                self._columns.setdefault(table, []).extend([(*column,)] if isinstance(column[0], str) else [])
        #: The columns of each table, without computed ones.
        self.tables: Mapping[str, frozenset[str]] = {
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
        # If the primary key has an index or is the table itself, it is not the number of the row.
        if any(hidden for *_, hidden in columns) or (keys and ("pk",) in self.rows(_INDEXES, table)):
            return None
        return Layout(self._roots[table], {name: at for at, (name, *_) in enumerate(columns)}, keys)

    def _check_journals(self) -> None:
        """Refuses a file that is not whole by itself: half of a change is in it, or changes are still next to it."""
        journal, log = (Path(f"{self._place}-{kind}") for kind in ("journal", "wal"))
        # Those that are empty or of something else are done with.
        if _head(journal, 8) == _JOURNAL_MAGIC:
            problem = f"holds half of a change, and {journal.name} next to it how to take that back"
        elif _head(log, 3) == _LOG_MAGIC and _head(self._place, 19)[18:] == _USES_LOG:
            problem = f"lacks its latest changes, which are still in {log.name} next to it"
        else:
            return
        command = shlex.join(["sqlite3", str(self.path), "PRAGMA wal_checkpoint(TRUNCATE)"])
        raise ReportError(self.path, problem, f"if no program is writing it, run: {command}")

    def values(self, table: str, columns: tuple[str, ...]) -> list[Any]:
        """Columns of a small table, a tuple for each row."""
        return self.rows(selecting([column_of(table, name) for name in columns], table))

    def rows(self, query: str, *values: object) -> list[Any]:
        """All rows of a small query."""
        try:
            with closing(self.connect()) as connection:
                return connection.execute(query, values).fetchall()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            # A message that cannot be decoded quotes what is damaged.
            reason = f" ({error})" if isinstance(error, sqlite3.Error) else ""
            raise ReportError(self.path, f"SQLite cannot read it{reason}", DAMAGED) from None

    def read(self, requests: Mapping[str, Request], progress: Callable[[float], None]) -> dict[str, pa.Table]:
        """Reads several tables, rows in the order of their rowids; one that the file lacks has no columns."""
        pages = {name: self.pieces(request, PART_PAGES) for name, request in requests.items()}
        total, done = max(1, sum(len(leaf or ()) for leaf in pages.values())), itertools.count(1)
        return {
            name: self._table(request, pages[name], lambda: progress(next(done) / total))
            for name, request in requests.items()
        }

    def _table(self, request: Request, pages: list[Ints] | None, read_one: Callable[[], None]) -> pa.Table:
        if request.table.name not in self.tables:
            return pa.table({})
        parts: list[Piece] = []
        for leaf in pages or ():
            if (piece := self.piece(request, leaf)) is None:
                break
            parts.append(piece)
            read_one()
        if pages is None or len(parts) < len(pages):
            return request.without_empty(self._queried(request))
        return pa.concat_tables([piece.rows for piece in parts], promote_options="permissive").unify_dictionaries()

    def pieces(self, request: Request, size: int | None = None) -> list[Ints] | None:
        """The leaf pages of a table, some thousand at a time; None if it can only be read whole."""
        size, name = size or PIECE_PAGES, request.table.name
        if name not in self.tables or (layout := self.layout(name)) is None:
            return None
        try:
            with open_pages(self.path) as pages:
                leaf = leaves(pages, layout.root)
        except NotPlain:
            return None
        return [leaf[at : at + size] for at in range(0, leaf.size, size)]

    def piece(self, request: Request, leaf: Ints) -> Piece | None:
        """The rows on some leaf pages; None if the table can only be read whole."""
        if (layout := self.layout(request.table.name)) is None:
            return None
        present = {name: type_ for name, type_ in request.columns.items() if name in layout.positions}
        asked = {layout.positions[name]: type_ for name, type_ in present.items() if name not in layout.keys}
        asked |= {at: ENCODED_TEXT for at, type_ in asked.items() if type_ == pa.string()}
        try:
            with open_pages(self.path) as pages:
                rowid, found = columns(pages, leaf, asked)
        except NotPlain:
            return None
        arrays = {}
        for name, type_ in present.items():
            value = pa.chunked_array([rowid]) if name in layout.keys else found[layout.positions[name]]
            if value is None:
                value = pa.nulls(rowid.size, type_) if name not in request.rare else None
            elif asked.get(layout.positions[name]) in {ENCODED_TEXT, ENCODED_BLOB}:
                value = value.cast(type_)
            else:
                value = as_type(value, type_)
            if value is not None:
                arrays[name] = value
        place = (int(rowid[0]), int(rowid[-1])) if rowid.size else (0, -1)
        return Piece(pa.table(arrays), place)

    def _queried(self, request: Request) -> pa.Table:
        name = request.table.name
        types = {column: type_ for column, type_ in request.columns.items() if column in self.tables[name]}
        query = selecting([_converted(name, *column) for column in types.items()], name)
        whole: dict[str, list[pa.Array]] = {column: [] for column in types}
        for rows in self._batches(name, query):
            for (column, type_), values in zip(types.items(), zip(*rows, strict=True), strict=True):
                try:
                    whole[column].append(as_type(_array(values, type_), type_))
                except pa.ArrowException as error:
                    problem = f"{name}.{column} has values that are not {_value_type(type_)} ({error})"
                    raise ReportError(self.path, problem, DAMAGED) from None
        table = pa.table({column: pa.chunked_array(whole[column], type_) for column, type_ in types.items()})
        return table.unify_dictionaries().combine_chunks()

    def _batches(self, table: str, query: str) -> Iterator[list[tuple[Any, ...]]]:
        try:
            with closing(self.connect()) as connection:
                cursor = connection.execute(query)
                while rows := cursor.fetchmany(_BATCH_ROWS):
                    yield rows
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise ReportError(self.path, f"{table} cannot be read ({error})", DAMAGED) from None


def _head(path: Path, size: int) -> bytes:
    """The first bytes of a file; none where there is no file."""
    if not path.is_file():
        return b""
    with path.open("rb") as file:
        return file.read(size)


def selecting(columns: Iterable[str], table: str) -> str:
    """A query for columns of a table in the order of its rows; a SQL builder takes longer to import than this."""
    # An index could have another order.
    return f"SELECT {', '.join(columns)} FROM {_quoted(table)} NOT INDEXED"  # noqa: S608 - every name is quoted


def column_of(table: str, name: str) -> str:
    """A column as a query names it: without its table, SQLite would take the name of a missing one for a text."""
    return f"{_quoted(table)}.{_quoted(name)}"


def _quoted(name: str) -> str:
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def _converted(table: str, name: str, type_: pa.DataType) -> str:
    # In a column of texts a number counts as its digits.
    return f"CAST({column_of(table, name)} AS TEXT)" if _value_type(type_) == pa.string() else column_of(table, name)


def _value_type(type_: pa.DataType) -> pa.DataType:
    value = type_.value_type if pa.types.is_dictionary(type_) else type_
    return pa.int64() if pa.types.is_integer(value) else value


def _array(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    stored = _value_type(type_)
    if stored == pa.float64():
        values = [float(value) if isinstance(value, int) else value for value in values]
    if stored == pa.int64() and float in set(map(type, values)):
        raise pa.ArrowInvalid("found a float")  # which Arrow would cut to an integer
    return pa.array(values, stored)

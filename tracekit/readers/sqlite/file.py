"""A SQLite file as such: its tables, queries for small ones, and declared columns of large ones.

Integers, texts and bytes of large tables are decoded from the file's pages. Floats, and tables that are not plain (a
row that continues on another page, UTF-16), come out of queries. Measured for 1 M kernels, 1 M launches and 1.7 M
ranges (185 MB), CPU seconds of a whole parse: 3.6 with pages, 11 if every table comes out of queries.
"""

import itertools
import shlex
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tracekit.arrays.types import Ints
from tracekit.errors import ReportError
from tracekit.nsight.tables import StoredTable
from tracekit.readers.source import ENCODED, ENCODED_BLOB, ENCODED_TEXT, Piece, Request, as_type
from tracekit.readers.sqlite.pages import NotPlain, Pages, leaves, open_pages
from tracekit.readers.sqlite.records import Asked, columns
from tracekit.recording.provenance import MissingData

SQLITE_MAGIC = b"SQLite format 3\0"
#: Begins a journal that is still needed; see https://sqlite.org/fileformat2.html#the_rollback_journal.
_JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")
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
            ReportError: If SQLite cannot read it, or it holds half of a change.
        """
        self.path, self._place = path, path.resolve()  # SQLite looks for journals where a link leads to
        self._check_journal()
        self.uri = f"{self._place.as_uri()}?mode=ro&immutable=1"
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

    def _check_journal(self) -> None:
        """Refuses a file of which SQLite would first take back half of a change, by the journal next to it."""
        journal = Path(f"{self._place}-journal")
        if not journal.is_file():
            return
        with journal.open("rb") as file:
            if file.read(len(_JOURNAL_MAGIC)) != _JOURNAL_MAGIC:  # it is done with, or of something else
                return
        problem = f"holds half of a change, and {journal.name} next to it how to take that back"
        command = shlex.join(["sqlite3", str(self.path), "PRAGMA schema_version"])
        raise ReportError(self.path, problem, f"if no program is writing it, run: {command}")

    @property
    def missing(self) -> tuple[MissingData, ...]:
        """Its latest changes, if they are still in a write-ahead log; a stray log file does not count."""
        name = self.path.name
        log = Path(f"{self._place}-wal")
        with self.path.open("rb") as file:
            uses_log = file.read(_HEADER_BYTES)[18:19] == b"\x02"
        if not (uses_log and log.is_file() and log.stat().st_size > 0):
            return ()
        remedy = f"close the program that writes it, or run: sqlite3 {name} 'PRAGMA wal_checkpoint(TRUNCATE)'"
        return (MissingData(f"its latest changes, which are still in {log.name}", remedy),)

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


#: The number by which SQLite keeps a row, as a column that can be asked for.
ROWID = "rowid"

#: Rows that stand in memory as Python objects at a time.
_BATCH_ROWS = 16_384


def batches(file: SqliteFile, table: StoredTable, types: Mapping[str, pa.DataType]) -> Iterator[list[pa.Array]]:
    """Columns of a table, thousands of rows at a time, in the order of its rowids where they are asked for.

    Args:
        file: The file.
        table: A table that it has.
        types: Columns that it has, or ``ROWID``, with the types they are to be stored as.

    Yields:
        An array for each column: 64-bit integers, floats or texts.
    """
    names = [f"{table.name}.{name}" for name in types]
    asked = [_column(table, *column) for column in types.items()]
    for rows in _rows(file, table, selecting(asked, table.name, ROWID if ROWID in types else "")):
        values = zip(*rows, strict=True)
        yield [_array(file, *column) for column in zip(names, values, types.values(), strict=True)]


def _column(table: StoredTable, name: str, type_: pa.DataType) -> str:
    if name == ROWID:
        return ROWID
    column = column_of(table.name, name)
    # In a column of texts a number counts as its digits.
    return f"CAST({column} AS TEXT)" if _value_type(type_) == pa.string() else column


def _value_type(type_: pa.DataType) -> pa.DataType:
    value = type_.value_type if pa.types.is_dictionary(type_) else type_
    return pa.int64() if pa.types.is_integer(value) else value


def _rows(file: SqliteFile, table: StoredTable, query: str) -> Iterator[list[tuple[object, ...]]]:
    try:
        with closing(file.connect()) as connection:
            cursor = connection.execute(query)
            while rows := cursor.fetchmany(_BATCH_ROWS):
                yield rows
    except (sqlite3.Error, UnicodeDecodeError) as error:
        problem = f"{table.name} cannot be read ({error})"
        raise ReportError(file.path, problem, DAMAGED) from None


def _array(file: SqliteFile, name: str, values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    stored = _value_type(type_)
    if stored == pa.float64():
        values = [float(value) if isinstance(value, int) else value for value in values]
    try:
        if stored == pa.int64() and float in set(map(type, values)):
            raise pa.ArrowInvalid("found a float")  # which Arrow would cut to an integer
        return pa.array(values, stored)
    except pa.ArrowException as error:
        problem = f"{name} has values that are not {stored} ({error})"
        raise ReportError(file.path, problem, DAMAGED) from None


#: So many pages of rows are decoded at a time; so many make a piece, the work of one task.
PART_PAGES = 2_048
PIECE_PAGES = 8_192


@dataclass(frozen=True, slots=True)
class Part:
    """Some rows of a table.

    Attributes:
        arrays: Their columns; without those that are null throughout.
        rowid: Their rowids; only the first and the last, unless some columns are elsewhere.
        elsewhere: Columns that are not empty but neither integers, texts nor bytes.
        beyond: Number of values that were too large for their column and became null.
    """

    arrays: dict[str, pa.ChunkedArray]
    rows: int
    rowid: Ints
    elsewhere: frozenset[str]
    beyond: int


class BulkReader:
    """Reads tables of one file; ``beyond`` counts values that were too large and became null."""

    def __init__(self, file: SqliteFile) -> None:
        self.file = file
        self.beyond = 0
        self.path = file.path
        self.tables = file.tables
        self.values = file.values

    def read(self, requests: Mapping[str, Request], progress: Callable[[float], None]) -> dict[str, pa.Table]:
        """Reads several tables.

        Args:
            requests: The reads by a name of the caller's.
            progress: Called with the share that is done.

        Returns:
            A table for each name, rows in the order of their rowids; one that the file lacks has no columns.
        """
        pieces = {name: self._pieces(request, PART_PAGES) for name, request in requests.items()}
        total, done = max(1, sum(len(leaf or ()) for leaf in pieces.values())), itertools.count(1)

        def read_one() -> None:
            progress(next(done) / total)

        return {name: self._table(request, pieces[name], read_one) for name, request in requests.items()}

    def pieces(self, request: Request) -> list[Ints] | None:
        """The leaf pages of a table, some thousand at a time; None if it can only be read whole."""
        return self._pieces(request, PIECE_PAGES)

    def _pieces(self, request: Request, size: int) -> list[Ints] | None:
        if (layout := self._plain_layout(request)) is None:
            return None
        try:
            with open_pages(self.file.path) as pages:
                leaf = leaves(pages, layout.root)
        except NotPlain:
            return None
        return [leaf[at : at + size] for at in range(0, leaf.size, size)]

    def piece(self, request: Request, leaf: Ints) -> Piece | None:
        """The rows on some leaf pages; None if the table can only be read whole."""
        if (layout := self._plain_layout(request)) is None:
            return None
        try:
            with open_pages(self.file.path) as pages:
                part = part_of(pages, leaf, request, layout)
        except NotPlain:
            return None
        if part.elsewhere:
            return None
        present = [name for name in request.columns if name in layout.positions]
        kept = [name for name in present if name in part.arrays or name not in request.rare]
        place = (int(part.rowid[0]), int(part.rowid[-1])) if part.rows else (0, -1)
        return Piece(with_nulls(part, kept, request.columns), place, part.beyond)

    def _plain_layout(self, request: Request) -> Layout | None:
        name = request.table.name
        return self.file.layout(name) if name in self.file.tables else None

    def _table(self, request: Request, pieces: list[Ints] | None, read_one: Callable[[], None]) -> pa.Table:
        name = request.table.name
        if name not in self.file.tables:
            return pa.table({})
        present = [column for column in request.columns if column in self.file.tables[name]]
        try:
            table = self._from_pages(request, present, self._parts(request, pieces, read_one))
        except NotPlain:
            table, _ = self._queried(request, present)
        return request.without_empty(table)

    def _parts(self, request: Request, pieces: list[Ints] | None, read_one: Callable[[], None]) -> list[Part]:
        if pieces is None or (layout := self._plain_layout(request)) is None:
            raise NotPlain
        parts = []
        with open_pages(self.file.path) as pages:
            for leaf in pieces:
                parts.append(part_of(pages, leaf, request, layout))
                read_one()
        return parts

    def _from_pages(self, request: Request, present: list[str], parts: list[Part]) -> pa.Table:
        rowid = np.concatenate([part.rowid for part in parts])
        elsewhere = [name for name in present if any(name in part.elsewhere for part in parts)]
        if rowid.size > 1 and not bool((rowid[1:] > rowid[:-1]).all()):
            raise NotPlain
        filled = [name for name in present if any(name in part.arrays for part in parts)]
        kept = [name for name in present if name in filled or name not in (*elsewhere, *request.rare)]
        arrays = [with_nulls(part, kept, request.columns) for part in parts]
        table = pa.concat_tables(arrays, promote_options="permissive").unify_dictionaries()
        if elsewhere:
            rest, same_rowid = self._queried(request, elsewhere)
            if not np.array_equal(rowid, same_rowid):
                raise NotPlain
            for name in elsewhere:
                table = table.append_column(name, rest.column(name))
        self.beyond += sum(part.beyond for part in parts)
        return table

    def _queried(self, request: Request, names: list[str]) -> tuple[pa.Table, Ints]:
        types = {name: request.columns[name] for name in names}
        if (layout := self.file.layout(request.table.name)) and not layout.hides_rowid:
            types = {ROWID: pa.int64()} | types
        columns: dict[str, list[pa.Array]] = {name: [] for name in types}
        for arrays in batches(self.file, request.table, types):
            for (name, type_), array in zip(types.items(), arrays, strict=True):
                stored, too_large = self._stored(f"{request.table.name}.{name}", array, type_)
                columns[name].append(stored)
                self.beyond += too_large
        whole = {name: pa.chunked_array(columns[name], type_) for name, type_ in types.items()}
        rowid = np.asarray(whole.pop(ROWID, pa.chunked_array([], pa.int64())).to_numpy())
        return pa.table(whole).unify_dictionaries().combine_chunks(), rowid

    def _stored(self, column: str, array: pa.Array, type_: pa.DataType) -> tuple[pa.Array, int]:
        try:
            return as_type(array, type_)
        except pa.ArrowInvalid as error:
            problem = f"{column} has values that are not {type_} ({error})"
            raise ReportError(self.file.path, problem, DAMAGED) from None


def _how(type_: pa.DataType) -> str:
    if type_ in {ENCODED_TEXT, pa.string()}:
        return "texts"
    if type_ == ENCODED_BLOB:
        return "blobs"
    return "integers" if type_ == ENCODED or pa.types.is_integer(type_) else "others"


def part_of(pages: Pages, leaf: Ints, request: Request, layout: Layout) -> Part:
    """Decodes some leaf pages of a table."""
    present = [name for name in request.columns if name in layout.positions]
    stored = [name for name in present if name not in layout.keys]
    integers, texts, others, blobs = (
        [name for name in stored if _how(request.columns[name]) == how]
        for how in ("integers", "texts", "others", "blobs")
    )
    at = layout.positions.__getitem__
    decoded = columns(pages, leaf, Asked(*(tuple(map(at, names)) for names in (integers, texts, others, blobs))))
    arrays: dict[str, pa.ChunkedArray] = {}
    beyond = 0
    keys = [name for name in present if name in layout.keys]
    numbers = pa.chunked_array([pa.array(decoded.rowid)])
    for name, value in zip([*integers, *keys], [*decoded.integers, *[numbers] * len(keys)], strict=True):
        if value is not None:
            arrays[name], too_large = as_type(value, request.columns[name])
            beyond += too_large
    for names, encoded in ((texts, decoded.texts), (blobs, decoded.blobs)):
        found = zip(names, encoded, strict=True)
        arrays |= {name: value.cast(request.columns[name]) for name, value in found if value is not None}
    elsewhere = frozenset(name for name, filled in zip(others, decoded.others, strict=True) if filled)
    rowid = decoded.rowid if elsewhere else decoded.rowid[:: max(1, decoded.rowid.size - 1)].copy()
    return Part(arrays, decoded.rowid.size, rowid, elsewhere, beyond)


def with_nulls(part: Part, names: list[str], types: Mapping[str, pa.DataType]) -> pa.Table:
    """A part with nulls for the columns that only other parts fill."""
    nulls = {name: pa.nulls(part.rows, types[name]) for name in names if name not in part.arrays}
    return pa.table({name: part.arrays.get(name, nulls.get(name)) for name in names})

"""Declared columns of large tables into Arrow, on several cores.

Integers and texts come straight out of the file's pages, whatever else there is out of queries; a table that is not
plain comes out of queries altogether. Measured for 1 M kernels, 1 M launches and 1.7 M ranges (185 MB, seconds of one
core): sqlite3 7.7, connectorx 2.9, queries through ADBC 2.1, pages 0.9, and 1.1 for SQLite merely to sum the columns.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.errors import ReportError
from tracekit.readers.sqlite.file import DAMAGED
from tracekit.readers.sqlite.pages import NotPlain, leaves, open_pages
from tracekit.readers.sqlite.queries import ROWID, queries, run
from tracekit.readers.sqlite.records import TEXTS, Asked, columns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Future

    import sqlalchemy as sql

    from tracekit.arrays.types import Ints
    from tracekit.readers.sqlite.file import Layout, SqliteFile
    from tracekit.readers.sqlite.pages import Pages

#: Ids with few distinct values, stored once each.
ENCODED = pa.dictionary(pa.int32(), pa.int64())
ENCODED_TEXT = TEXTS

_PART_PAGES = 2_048
_LEAST, _MOST = -(2**31), 2**31 - 1


@dataclass(frozen=True, slots=True)
class Request:
    """One bulk read.

    Attributes:
        table: A declared table.
        columns: For each column to be read, the Arrow type it is stored in; names that the file lacks are left out.
        rare: Those of them that are left out too if they are null throughout.
    """

    table: sql.Table
    columns: Mapping[str, pa.DataType]
    rare: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Part:
    """Some rows of a table.

    Attributes:
        arrays: Their columns; without those that are null throughout.
        rowid: Their rowids.
        elsewhere: Columns that hold something but are neither integers nor texts.
        beyond: How many values were too large for their column and became null.
    """

    arrays: dict[str, pa.Array | pa.ChunkedArray]
    rowid: Ints
    elsewhere: frozenset[str]
    beyond: int


class BulkReader:
    """Reads tables of one file side by side; ``beyond`` counts values that were too large and became null."""

    def __init__(self, file: SqliteFile) -> None:
        self.file = file
        self.beyond = 0
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1))

    def read(self, requests: Mapping[str, Request], progress: Callable[[float], None]) -> dict[str, pa.Table]:
        """Reads several tables.

        Args:
            requests: The reads by a name of the caller's.
            progress: Told the share that is done.

        Returns:
            A table for each name, rows in the order of their rowids; one that the file lacks has no columns.

        Raises:
            ReportError: If the file is damaged.
        """
        tables = {}
        with self._pool, ExitStack() as stack:
            try:
                begun = {name: self._begun(request, stack) for name, request in requests.items()}
                _watched(begun, progress)
                for name, request in requests.items():
                    tables[name] = self._finished(request, begun.pop(name))
            except BaseException:
                self._stop.set()
                self._pool.shutdown(cancel_futures=True)
                raise
        return tables

    def _begun(self, request: Request, stack: ExitStack) -> list[Future[_Part]] | None:
        """Starts reading a table out of its pages; None if it does not lie there plainly."""
        name = request.table.name
        layout = self.file.layout(name) if name in self.file.tables else None
        if layout is None:
            return None
        try:
            pages = stack.enter_context(open_pages(self.file.path))
            leaf = leaves(pages, layout.root)
        except NotPlain:
            return None
        parts = [leaf[at : at + _PART_PAGES] for at in range(0, leaf.size, _PART_PAGES)]
        return [self._pool.submit(self._paged, pages, part, request, layout) for part in parts]

    def _paged(self, pages: Pages, leaf: Ints, request: Request, layout: Layout) -> _Part:
        if self._stop.is_set():
            raise NotPlain
        present = [name for name in request.columns if name in layout.positions]
        integers, texts, others = (
            [name for name in present if _how(request.columns[name]) == how] for how in ("integers", "texts", "others")
        )
        at = layout.positions.__getitem__
        found = columns(
            pages,
            leaf,
            Asked(tuple(map(at, integers)), tuple(map(at, texts)), tuple(map(at, others))),
        )
        arrays: dict[str, pa.Array | pa.ChunkedArray] = {}
        beyond = 0
        for name, (values, null) in zip(integers, found.integers, strict=True):
            if values is not None:
                arrays[name], too_large = _as_type(pa.array(values, mask=null), request.columns[name])
                beyond += too_large
        arrays |= {name: text for name, text in zip(texts, found.texts, strict=True) if text is not None}
        elsewhere = frozenset(name for name, some in zip(others, found.others, strict=True) if some)
        return _Part(arrays, found.rowid, elsewhere, beyond)

    def _finished(self, request: Request, begun: list[Future[_Part]] | None) -> pa.Table:
        name = request.table.name
        if name not in self.file.tables:
            return pa.table({})
        present = [column for column in request.columns if column in self.file.tables[name]]
        try:
            table = self._from_pages(request, present, begun)
        except NotPlain:
            table, _ = self._queried(request, present)
        empty = [column for column in table.column_names if table.column(column).null_count == len(table)]
        return table.drop_columns([column for column in empty if column in request.rare])

    def _from_pages(self, request: Request, present: list[str], begun: list[Future[_Part]] | None) -> pa.Table:
        if begun is None:
            raise NotPlain
        parts = [future.result() for future in begun]
        rowid = np.concatenate([part.rowid for part in parts])
        elsewhere = [name for name in present if any(name in part.elsewhere for part in parts)]
        if rowid.size > 1 and not bool((rowid[1:] > rowid[:-1]).all()):
            raise NotPlain
        filled = [name for name in present if any(name in part.arrays for part in parts)]
        kept = [name for name in present if name in filled or name not in (*elsewhere, *request.rare)]
        table = _joined([_with_nulls(part, kept, request.columns) for part in parts])
        if elsewhere:
            rest, same_rowid = self._queried(request, elsewhere)
            if not np.array_equal(rowid, same_rowid):
                raise NotPlain
            for name in elsewhere:
                table = table.append_column(name, rest.column(name))
        self.beyond += sum(part.beyond for part in parts)
        return table

    def _queried(self, request: Request, names: list[str]) -> tuple[pa.Table, Ints]:
        """Columns of a table out of queries, and the rowids of its rows; none if it has no such."""
        types = {name: request.columns[name] for name in names}
        if (layout := self.file.layout(request.table.name)) and not layout.hides_rowid:
            types = {ROWID: pa.int64()} | types
        texts = queries(self.file, request.table, types)
        parts = list(self._pool.map(lambda text: self._part_of_query(request, text, types), texts))
        table = _joined([part for part, _ in parts])
        self.beyond += sum(beyond for _, beyond in parts)
        if ROWID not in types:
            return table, np.empty(0, dtype=np.int64)
        return table.drop_columns([ROWID]), np.asarray(table.column(ROWID).to_numpy())

    def _part_of_query(self, request: Request, text: str, types: Mapping[str, pa.DataType]) -> tuple[pa.Table, int]:
        batches, beyond = [], 0
        for batch in run(self.file, request.table.name, text, self._stop):
            arrays = []
            for name, array in zip(batch.schema.names, batch.columns, strict=True):
                stored, too_large = self._stored(f"{request.table.name}.{name}", array, types[name])
                arrays.append(stored)
                beyond += too_large
            batches.append(pa.RecordBatch.from_arrays(arrays, names=batch.schema.names))
        # Copied, since every column of the driver's keeps its whole batch in memory.
        return pa.Table.from_batches(batches).combine_chunks(), beyond

    def _stored(self, column: str, array: pa.Array, type_: pa.DataType) -> tuple[pa.Array, int]:
        try:
            return _as_type(array, type_)
        except pa.ArrowInvalid as error:
            problem = f"{column} holds values that are no {type_} ({error})"
            raise ReportError(self.file.path, problem, DAMAGED) from None


def _watched(begun: Mapping[str, list[Future[_Part]] | None], progress: Callable[[float], None]) -> None:
    """Waits for all parts, telling how many are done; what went wrong is found when they are used."""
    parts = [future for futures in begun.values() for future in futures or ()]
    for done, future in enumerate(parts, 1):
        future.exception()
        progress(done / len(parts))


def _how(type_: pa.DataType) -> str:
    """How a column of this type is read from pages."""
    if type_ == ENCODED_TEXT:
        return "texts"
    return "integers" if type_ == ENCODED or pa.types.is_integer(type_) else "others"


def _with_nulls(part: _Part, names: list[str], types: Mapping[str, pa.DataType]) -> pa.Table:
    """A part with nulls for the columns that only other parts fill."""
    nulls = {name: pa.nulls(part.rowid.size, types[name]) for name in names if name not in part.arrays}
    return pa.table({name: part.arrays.get(name, nulls.get(name)) for name in names})


def _as_type(array: pa.Array, type_: pa.DataType) -> tuple[pa.Array, int]:
    """The values as stored, and how many were too large for that and became null."""
    if pa.types.is_dictionary(type_):
        if array.type != type_.value_type:
            raise pa.ArrowInvalid(f"found {array.type}")
        return array.dictionary_encode(), 0
    try:
        return array.cast(type_), 0
    except pa.ArrowInvalid:
        if type_ != pa.int32() or array.type != pa.int64():
            raise
        fits = pc.and_(pc.greater_equal(array, _LEAST), pc.less_equal(array, _MOST))
        return pc.if_else(fits, array, None).cast(type_), pc.sum(pc.invert(fits)).as_py()


def _joined(parts: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(parts).unify_dictionaries()

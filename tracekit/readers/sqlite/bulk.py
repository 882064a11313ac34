"""Declared columns of large tables into Arrow, on several cores.

Integers, texts and bytes are decoded from the file's pages. Floats, primary keys, and tables that are not plain (a row
that continues on another page, UTF-16), come out of queries. In a usual export that is only the table of strings.

Measured for 1 M kernels, 1 M launches and 1.7 M ranges (185 MB), CPU seconds of a whole parse: 5.3 with pages, 18 if
every table comes out of queries. Queries by a driver that hands Arrow to Python (ADBC) took 5.9 and 8.4, at the same
peak of 1.1 GB: not worth two dependencies for tables that are rarely read this way.
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

from tracekit.errors import ReportError
from tracekit.readers.requests import ENCODED, ENCODED_BLOB, ENCODED_TEXT, as_type
from tracekit.readers.sqlite.file import DAMAGED
from tracekit.readers.sqlite.pages import NotPlain, leaves, open_pages
from tracekit.readers.sqlite.queries import ROWID, batches
from tracekit.readers.sqlite.records import Asked, columns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Future

    from tracekit.arrays.types import Ints
    from tracekit.readers.requests import Request
    from tracekit.readers.sqlite.file import Layout, SqliteFile
    from tracekit.readers.sqlite.pages import Pages

#: So many pages of rows are decoded at a time.
PART_PAGES = 2_048


@dataclass(frozen=True, slots=True)
class Part:
    """Some rows of a table.

    Attributes:
        arrays: Their columns; without those that are null throughout.
        rows: How many there are.
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
    """Reads tables of one file side by side; ``beyond`` counts values that were too large and became null."""

    def __init__(self, file: SqliteFile) -> None:
        self.file = file
        self.beyond = 0
        self.path = file.path
        self.tables = file.tables
        self.values = file.values
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1))

    def read(self, requests: Mapping[str, Request], progress: Callable[[float], None]) -> dict[str, pa.Table]:
        """Reads several tables.

        Args:
            requests: The reads by a name of the caller's.
            progress: Called with the share that is done.

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

    def _begun(self, request: Request, stack: ExitStack) -> list[Future[Part]] | None:
        """Starts to read a table from its pages; None if that is not possible."""
        name = request.table.name
        layout = self.file.layout(name) if name in self.file.tables else None
        if layout is None or not layout.keys.isdisjoint(request.columns):
            return None
        try:
            pages = stack.enter_context(open_pages(self.file.path))
            leaf = leaves(pages, layout.root)
        except NotPlain:
            return None
        parts = [leaf[at : at + PART_PAGES] for at in range(0, leaf.size, PART_PAGES)]
        return [self._pool.submit(self._paged, pages, part, request, layout) for part in parts]

    def _paged(self, pages: Pages, leaf: Ints, request: Request, layout: Layout) -> Part:
        if self._stop.is_set():
            raise NotPlain
        return part_of(pages, leaf, request, layout)

    def _finished(self, request: Request, begun: list[Future[Part]] | None) -> pa.Table:
        name = request.table.name
        if name not in self.file.tables:
            return pa.table({})
        present = [column for column in request.columns if column in self.file.tables[name]]
        try:
            table = self._from_pages(request, present, begun)
        except NotPlain:
            table, _ = self._queried(request, present)
        return request.without_empty(table)

    def _from_pages(self, request: Request, present: list[str], begun: list[Future[Part]] | None) -> pa.Table:
        if begun is None:
            raise NotPlain
        parts = [future.result() for future in begun]
        rowid = np.concatenate([part.rowid for part in parts])
        elsewhere = [name for name in present if any(name in part.elsewhere for part in parts)]
        if rowid.size > 1 and not bool((rowid[1:] > rowid[:-1]).all()):
            raise NotPlain
        filled = [name for name in present if any(name in part.arrays for part in parts)]
        kept = [name for name in present if name in filled or name not in (*elsewhere, *request.rare)]
        table = _joined([with_nulls(part, kept, request.columns) for part in parts])
        if elsewhere:
            rest, same_rowid = self._queried(request, elsewhere)
            if not np.array_equal(rowid, same_rowid):
                raise NotPlain
            for name in elsewhere:
                table = table.append_column(name, rest.column(name))
        self.beyond += sum(part.beyond for part in parts)
        return table

    def _queried(self, request: Request, names: list[str]) -> tuple[pa.Table, Ints]:
        """Columns of a table out of a query, and the rowids of its rows; empty if it has none."""
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


def _watched(begun: Mapping[str, list[Future[Part]] | None], progress: Callable[[float], None]) -> None:
    """Waits for all parts and reports progress; errors are raised later, when the parts are used."""
    parts = [future for futures in begun.values() for future in futures or ()]
    for done, future in enumerate(parts, 1):
        future.exception()
        progress(done / len(parts))


def _how(type_: pa.DataType) -> str:
    """How a column of this type is read from pages."""
    if type_ in {ENCODED_TEXT, ENCODED_BLOB}:
        return "texts" if type_ == ENCODED_TEXT else "blobs"
    return "integers" if type_ == ENCODED or pa.types.is_integer(type_) else "others"


def part_of(pages: Pages, leaf: Ints, request: Request, layout: Layout) -> Part:
    """Decodes some leaf pages of a table.

    Raises:
        NotPlain: If they hold something that only SQLite itself should read.
    """
    present = [name for name in request.columns if name in layout.positions]
    integers, texts, others, blobs = (
        [name for name in present if _how(request.columns[name]) == how]
        for how in ("integers", "texts", "others", "blobs")
    )
    at = layout.positions.__getitem__
    decoded = columns(pages, leaf, Asked(*(tuple(map(at, names)) for names in (integers, texts, others, blobs))))
    arrays: dict[str, pa.ChunkedArray] = {}
    beyond = 0
    for name, value in zip(integers, decoded.integers, strict=True):
        if value is not None:
            arrays[name], too_large = as_type(value, request.columns[name])
            beyond += too_large
    for names, encoded in ((texts, decoded.texts), (blobs, decoded.blobs)):
        arrays |= {name: value for name, value in zip(names, encoded, strict=True) if value is not None}
    elsewhere = frozenset(name for name, filled in zip(others, decoded.others, strict=True) if filled)
    rowid = decoded.rowid if elsewhere else decoded.rowid[:: max(1, decoded.rowid.size - 1)].copy()
    return Part(arrays, decoded.rowid.size, rowid, elsewhere, beyond)


def with_nulls(part: Part, names: list[str], types: Mapping[str, pa.DataType]) -> pa.Table:
    """A part with nulls for the columns that only other parts fill."""
    nulls = {name: pa.nulls(part.rows, types[name]) for name in names if name not in part.arrays}
    return pa.table({name: part.arrays.get(name, nulls.get(name)) for name in names})


def _joined(parts: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(parts).unify_dictionaries()

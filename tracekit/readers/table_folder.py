"""Folders with a Parquet file or an Arrow stream for each table, named after the table.

Declared columns come as the SQLite file of the same report would give them: exporters store ids as unsigned integers
of all sizes, SQLite has signed ones of 64 bits. What is stored as another kind of value than was asked for is damage;
what is too large for its column becomes null.
"""

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tracekit.errors import ReportError
from tracekit.readers.source import ENCODED_BLOB, ENCODED_TEXT, Piece, Request, as_type

_PARQUET, _ARROW = ".parquet", ".arrow"
#: So many rows at least make a piece, the work of one task.
PIECE_ROWS = 500_000
#: How an Arrow stream ends; without its end it counts as complete.
_END = b"\xff\xff\xff\xff\0\0\0\0"


def table_files(folder: Path) -> dict[str, Path]:
    """The files of the folder's tables by the tables' names."""
    return {path.stem: path for suffix in (_ARROW, _PARQUET) for path in sorted(folder.glob(f"*{suffix}"))}


@contextmanager
def _errors_named(folder: Path, path: Path) -> Iterator[None]:
    """Errors about the file of a table that cannot be read name the folder and the file."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0].removesuffix(".") if str(error) else type(error).__name__
        remedy = "its files are damaged or truncated; export the report again"
        raise ReportError(folder, f"its file {path.name} cannot be read ({reason})", remedy) from None


class _ParquetFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        with pq.ParquetFile(path) as file:
            self.columns = _once(file.schema_arrow.names)

    def groups(self) -> list[int]:
        """The number of rows of each part of the file that can be read separately."""
        with pq.ParquetFile(self._path) as file:
            return [file.metadata.row_group(at).num_rows for at in range(file.num_row_groups)]

    def read(self, columns: Sequence[str], texts: Sequence[str] = (), groups: range | None = None) -> pa.Table:
        with pq.ParquetFile(self._path, read_dictionary=[*texts], memory_map=True) as file:
            if not file.num_row_groups:  # pyarrow 19 cannot read columns of none
                return file.schema_arrow.empty_table().select([*columns])
            return file.read([*columns]) if groups is None else file.read_row_groups([*groups], [*columns])


class _ArrowFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        with pa.memory_map(str(path)) as file:
            self.columns = _once(_batches(file).schema.names)

    def groups(self) -> list[int]:
        with pa.memory_map(str(self._path)) as file:
            return [batch.num_rows for batch in _batches(file).read_all().to_batches()]

    def read(self, columns: Sequence[str], _texts: Sequence[str] = (), groups: range | None = None) -> pa.Table:
        with pa.memory_map(str(self._path)) as file:
            table = _batches(file).read_all().select([*columns])
        if groups is not None:
            batches = table.to_batches()
            table = pa.Table.from_batches([batches[at] for at in groups], table.schema)
        for column in table.columns:
            # Arrow trusts offsets in a file; texts that are not UTF-8 are dealt with later.
            (column.cast(pa.binary()) if pa.types.is_string(column.type) else column).validate(full=True)
        return table


def _batches(file: pa.MemoryMappedFile) -> pa.RecordBatchStreamReader:
    file.seek(max(0, file.size() - len(_END)))
    if file.read() != _END:
        raise pa.ArrowInvalid("its end is missing")
    file.seek(0)
    return pa.ipc.open_stream(file)


def _once(names: list[str]) -> frozenset[str]:
    """The names that stand for one column; of others it is not known which is meant."""
    return frozenset(name for name, number in Counter(names).items() if number == 1)


class FolderTables:
    """The tables of a folder."""

    def __init__(self, path: Path, wanted: Collection[str]) -> None:
        """Opens those tables that may be asked for."""
        self.path = path
        self.paths = {name: file for name, file in table_files(path).items() if name in wanted}
        self._files: dict[str, _ParquetFile | _ArrowFile] = {}
        for name, file in self.paths.items():
            with _errors_named(path, file):
                self._files[name] = _ParquetFile(file) if file.suffix == _PARQUET else _ArrowFile(file)
        self.tables: Mapping[str, frozenset[str]] = {name: file.columns for name, file in self._files.items()}

    def values(self, table: str, columns: tuple[str, ...]) -> list[Any]:
        """Columns of a small table, a tuple for each row."""
        with _errors_named(self.path, self.paths[table]):
            rows = self._files[table].read(columns)
            plain = [_python(_plain(rows.column(name))) for name in columns]
        return list(zip(*plain, strict=True))

    def read(self, requests: Mapping[str, Request], progress: Callable[[float], None]) -> dict[str, pa.Table]:
        """Reads large tables side by side; one that the folder lacks has no columns."""
        tables = {}
        with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
            for name, table in zip(requests, pool.map(self._table, requests.values()), strict=True):
                tables[name] = table
                progress(len(tables) / len(requests))
        return tables

    def pieces(self, request: Request) -> list[range] | None:
        """The row groups or record batches of a table, some hundred thousand rows at a time."""
        name = request.table.name
        if name not in self._files:
            return None
        with _errors_named(self.path, self.paths[name]):
            sizes = self._files[name].groups()
        bounds, rows = [0], 0
        for at, size in enumerate(sizes, 1):
            rows += size
            if rows >= PIECE_ROWS or at == len(sizes):
                bounds.append(at)
                rows = 0
        return [range(*ends) for ends in pairwise(bounds)]

    def piece(self, request: Request, groups: range) -> Piece:
        """The rows of some row groups or record batches."""
        return Piece(self._table(request, groups), (groups.start, groups.stop - 1))

    def _table(self, request: Request, groups: range | None = None) -> pa.Table:
        name = request.table.name
        if name not in self._files:
            return pa.table({})
        present = [column for column in request.columns if column in self.tables[name]]
        texts = [column for column in present if request.columns[column] == ENCODED_TEXT]
        with _errors_named(self.path, self.paths[name]):
            rows = self._files[name].read(present, texts, groups)
            arrays = {column: _stored(rows.column(column), request.columns[column]) for column in present}
        return request.without_empty(pa.table(arrays))


def _stored(column: pa.ChunkedArray, type_: pa.DataType) -> pa.Array:
    if column.null_count == len(column):
        return pa.nulls(len(column), type_)
    if type_ in {ENCODED_TEXT, ENCODED_BLOB}:
        encoded = column if pa.types.is_dictionary(column.type) else column.cast(type_.value_type).dictionary_encode()
        return _joined(encoded.cast(type_))
    column = _plain(column)
    if pa.types.is_floating(type_) or pa.types.is_string(type_):
        return _joined(column.cast(type_))
    if column.type != pa.int64():
        raise pa.ArrowInvalid(f"found {column.type} where integers belong")
    return as_type(_joined(column), type_)


def _joined(column: pa.ChunkedArray) -> pa.Array:
    whole = column.unify_dictionaries().combine_chunks()
    # Several pieces may only fit into several.
    return pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Integers and flags as SQLite has them: signed, of 64 bits; other values as they are."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_uint64(column.type):
        return pa.chunked_array([chunk.view(pa.int64()) for chunk in column.chunks], pa.int64())
    return column.cast(pa.int64()) if pa.types.is_integer(column.type) or pa.types.is_boolean(column.type) else column


def _python(column: pa.ChunkedArray) -> list[Any]:
    """The values of a column; bytes of texts that are not UTF-8 are replaced."""
    if not pa.types.is_string(column.type):
        return list(column.to_pylist())
    raw = column.cast(pa.binary()).to_pylist()
    return [None if text is None else text.decode("utf-8", "replace") for text in raw]

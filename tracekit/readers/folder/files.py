"""The tables of a folder: a Parquet file or an Arrow stream each, named after the table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from tracekit.errors import ReportError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

DAMAGED = "its files are damaged or truncated; export the report again"
_PARQUET, _ARROW = ".parquet", ".arrow"
#: How an Arrow file begins that is no stream, and how a stream ends; without its end a stream counts as complete.
_ARROW_FILE = b"ARROW1"
_END = b"\xff\xff\xff\xff\0\0\0\0"


class TableFile(Protocol):
    """The file of one table."""

    @property
    def columns(self) -> frozenset[str]:
        """Names of the columns that can be asked for."""

    def read(self, columns: Sequence[str], texts: Sequence[str] = ()) -> pa.Table:
        """Some columns; those named in ``texts`` may have each distinct text stored once."""


def table_files(folder: Path) -> dict[str, Path]:
    """The files of the folder's tables by the tables' names."""
    return {path.stem: path for suffix in (_ARROW, _PARQUET) for path in sorted(folder.glob(f"*{suffix}"))}


def opened(folder: Path, path: Path) -> TableFile:
    """Opens the file of a table.

    Raises:
        ReportError: If it is damaged.
    """
    try:
        return _ParquetFile(path) if path.suffix == _PARQUET else _ArrowFile(path)
    except (pa.ArrowException, OSError) as error:
        raise damaged(folder, path, error) from None


def damaged(folder: Path, path: Path, error: Exception) -> ReportError:
    """The error for a table file that cannot be read."""
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return ReportError(folder, f"its file {path.name} cannot be read ({reason.removesuffix('.')})", DAMAGED)


class _ParquetFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        with pq.ParquetFile(path) as file:
            self.columns = _once(file.schema_arrow.names)

    def read(self, columns: Sequence[str], texts: Sequence[str] = ()) -> pa.Table:
        with pq.ParquetFile(self._path, read_dictionary=[*texts], memory_map=True) as file:
            if not file.num_row_groups:  # pyarrow 19 cannot read columns of none
                return file.schema_arrow.empty_table().select([*columns])
            return file.read([*columns])


class _ArrowFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        with pa.memory_map(str(path)) as file:
            self.columns = _once(_batches(file).schema.names)

    def read(self, columns: Sequence[str], _texts: Sequence[str] = ()) -> pa.Table:
        with pa.memory_map(str(self._path)) as file:
            table = _batches(file).read_all().select([*columns])
        for column in table.columns:
            # Arrow trusts offsets in a file; texts that are not UTF-8 are dealt with later.
            (column.cast(pa.binary()) if pa.types.is_string(column.type) else column).validate(full=True)
        return table


def _batches(file: pa.MemoryMappedFile) -> pa.RecordBatchFileReader | pa.RecordBatchStreamReader:
    if file.read(len(_ARROW_FILE)) == _ARROW_FILE:
        return pa.ipc.open_file(file)
    file.seek(max(0, file.size() - len(_END)))
    if file.read() != _END:
        raise pa.ArrowInvalid("its end is missing")
    file.seek(0)
    return pa.ipc.open_stream(file)


def _once(names: list[str]) -> frozenset[str]:
    """Names that occur once: columns are asked for by name."""
    return frozenset(name for name in names if names.count(name) == 1)

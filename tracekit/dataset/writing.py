"""Writes a dataset, a folder of Parquet tables and a ``manifest.json``, whole or not at all."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tracekit.dataset import manifest
from tracekit.dataset.opening import SUFFIX
from tracekit.dataset.table_files import FILE_ID, id_of
from tracekit.errors import DatasetError
from tracekit.files import hidden_prefix, parents_made, reason_of, remedy_of, stopped_once, whole_folder
from tracekit.storage.left_behind import remove_left_behind
from tracekit.tables import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from typing_extensions import Buffer

    from tracekit.attribution.base import Trace
    from tracekit.progress import Progress
    from tracekit.schema import TableSpec
    from tracekit.tables.base import Table

#: Small enough that a module's subtree is found without reading much else.
ROW_GROUP = 65_536
_BUFFER_BYTES = 1 << 18
#: Endings of the columns that hold ids, which are counted from ``first_id``.
_ROW_IDS = ("kernel_id", "call_id", "range_id", "step_id")


def default_folder(report: Path) -> Path:
    """The default place of a report's dataset: beside the report."""
    return report.with_suffix(SUFFIX)


@contextmanager
def writing(
    folder: Path, *, force: bool = False, successor_of: Mapping[str, object] | None = None
) -> Iterator[tuple[Path, Path]]:
    """A hidden folder that replaces ``folder`` when the block ends, and is removed when the block raises.

    Args:
        folder: Where the dataset shall be.
        force: Whether an existing dataset may be replaced.
        successor_of: The manifest of the only dataset that may be replaced, if not any.

    Yields:
        The hidden folder, and ``folder`` without links.

    Raises:
        DatasetError: If something is there that must not be replaced, or the place cannot be written.
    """

    def check(place: Path) -> None:
        if successor_of is None:
            check_free(place, force=force)
        elif not manifest.is_as_read(place, successor_of):
            problem = "was replaced or added to by another parse meanwhile"
            raise DatasetError(folder, problem, "nothing was changed; run the command again")

    try:
        check(folder)
        place = folder.resolve()
        tidy(place)
        taken = whole_folder(place, lambda: check(place))
        with stopped_once(), parents_made(place), taken as partial:
            yield partial, place
    except OSError as error:
        problem = f"cannot be written ({reason_of(error)})"
        raise DatasetError(folder, problem, remedy_of(error, "choose another folder with -o")) from None


def tidy(place: Path) -> None:
    """Removes what killed parses left beside a dataset."""
    remove_left_behind(place.parent, hidden_prefix(place))


def check_free(folder: Path, *, force: bool) -> None:
    """Checks that a dataset can be put there.

    Raises:
        DatasetError: If something is there that must not be replaced.
    """
    if not folder.exists() and not folder.is_symlink():
        return
    if not folder.is_dir() or (any(folder.iterdir()) and not manifest.is_manifest(folder / manifest.MANIFEST)):
        raise DatasetError(folder, "already exists and is not a dataset", "choose another folder with -o")
    if not force:
        raise DatasetError(folder, "already exists", "replace it with --force or choose another folder with -o")


def write(
    folder: Path,
    trace: Trace,
    about: Mapping[str, object],
    progress: Progress,
    first_id: int = 0,
    row_group: int = ROW_GROUP,
) -> None:
    """Writes all tables, two at a time, and last the manifest.

    Args:
        folder: An empty folder.
        trace: The source of the tables.
        about: Fields of the manifest that describe the report.
        progress: Called with the share that is done.
        first_id: The id of the first row of every table, from which the others are counted.
        row_group: How many rows are in a row group.
    """
    *others, coverage = TABLES
    rows = _write_side_by_side(others, trace, folder, progress, (first_id, row_group))
    # Building the other tables may count more losses, so coverage comes last.
    rows[coverage.SPEC.name] = _write_table(coverage, trace, folder, (first_id, row_group), threading.Event())
    covered = pq.ParquetFile(folder / f"{coverage.SPEC.name}.parquet").read().to_pylist()
    ids = {name: id_of(pq.read_metadata(folder / f"{name}.parquet")) for name in rows}
    manifest.write(folder, {**about, "rows": rows, manifest.TABLE_IDS: ids, "coverage": covered})
    progress("writing", 1.0)


def _write_side_by_side(
    tables: Sequence[Table], trace: Trace, folder: Path, progress: Progress, how: tuple[int, int]
) -> dict[str, int]:
    """Writes tables, two at a time; returns the number of rows of each."""
    rows: dict[str, int] = {}
    stop = threading.Event()
    with ThreadPoolExecutor(max_workers=2) as pool:
        futures = {table.SPEC.name: pool.submit(_write_table, table, trace, folder, how, stop) for table in tables}
        try:
            for done, (name, future) in enumerate(futures.items(), 1):
                rows[name] = future.result()
                progress("writing", done / len(TABLES))
        except BaseException:
            stop.set()
            raise
    return rows


@contextmanager
def table_writer(path: Path, spec: TableSpec) -> Iterator[pq.ParquetWriter]:
    """Writes a table piece by piece; the file ends with its id, a digest of its rows."""
    schema = spec.schema()
    numbers = [field.name for field in schema if pa.types.is_int64(field.type)]
    with path.open("wb") as file:
        digested = _Digested(file, schema)
        # Parquet is written in many small pieces, each of which would be a call of Python.
        pieces = pa.BufferedOutputStream(pa.PythonFile(digested, mode="w"), _BUFFER_BYTES)
        with (
            pieces,
            pq.ParquetWriter(
                pieces,
                schema,
                compression="zstd",
                compression_level=1,
                use_dictionary=[field.name for field in schema if field.name not in numbers],
                column_encoding=dict.fromkeys(numbers, "DELTA_BINARY_PACKED"),
                # Rows are looked for by ids and times; the least and last of texts take a tenth of the time of writing.
                write_statistics=[field.name for field in schema if pa.types.is_integer(field.type)],
                write_batch_size=ROW_GROUP,
            ) as writer,
        ):
            yield writer
            pieces.flush()
            writer.add_key_value_metadata({FILE_ID: digested.id()})


class _Digested:
    """A file that computes a digest of what is written to it."""

    closed = False

    def __init__(self, file: BinaryIO, schema: pa.Schema) -> None:
        self._file = file
        self._digest = manifest.new_id(str(schema.remove_metadata()).encode())

    def write(self, data: Buffer) -> int:
        self._digest.update(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        """Leaves the file to whoever opened it."""

    def id(self) -> str:
        return self._digest.hexdigest()


def _write_table(table: Table, trace: Trace, folder: Path, how: tuple[int, int], stop: threading.Event) -> int:
    """Writes one table piece by piece, with its first id and rows per row group; returns how many rows it has."""
    first_id, row_group = how
    rows = 0
    with table_writer(folder / f"{table.SPEC.name}.parquet", table.SPEC) as writer:
        for piece in _one_ahead(table.build(trace)):
            if stop.is_set():
                break
            writer.write_table(numbered(piece, first_id), row_group_size=row_group)
            rows += piece.num_rows
    return rows


def _one_ahead(pieces: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The same pieces; the next one is built while the caller writes the last one, if that is worth a thread."""
    with ThreadPoolExecutor(max_workers=1) as beside:
        piece = next(pieces, None)
        while piece is not None:
            following = beside.submit(next, pieces, None) if piece.num_rows >= ROW_GROUP else None
            yield piece
            piece = following.result() if following else next(pieces, None)


def numbered(table: pa.Table, first_id: int) -> pa.Table:
    """The table with its ids counted from ``first_id`` instead of 0."""
    for at, field in enumerate(table.schema if first_id else ()):
        if field.name.endswith(_ROW_IDS):
            table = table.set_column(at, field, pc.add(table.column(at), first_id))
    return table

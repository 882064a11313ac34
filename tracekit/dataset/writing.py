"""Writes a dataset: a folder of Parquet tables and a ``manifest.json``, whole or not at all."""

from __future__ import annotations

import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tracekit.dataset import manifest
from tracekit.dataset.files import FILE_ID, id_of
from tracekit.dataset.opening import SUFFIX
from tracekit.dataset.stopping import stopped_once
from tracekit.errors import DatasetError
from tracekit.tables import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from typing_extensions import Buffer

    from tracekit.attribution.base import Trace
    from tracekit.progress import Progress
    from tracekit.schema import TableSpec
    from tracekit.tables.base import Table

#: Small enough that a module's subtree is found without reading much else.
ROW_GROUP = 65_536
#: How columns end that name a row of another table, or their own, by its id.
_ROW_IDS = ("kernel_id", "call_id", "range_id", "step_id")


def default_folder(report: Path) -> Path:
    """Where a report's dataset goes unless told otherwise: beside it."""
    return report.with_suffix(SUFFIX)


@contextmanager
def writing(folder: Path, *, force: bool) -> Iterator[tuple[Path, Path]]:
    """A hidden folder beside ``folder`` that takes its place when the block ends well, and vanishes when it does not.

    Args:
        folder: Where the dataset shall be.
        force: Whether a dataset that is there may be replaced.

    Raises:
        DatasetError: If something is there that may not be replaced, or the place cannot be written.
    """
    with stopped_once(), _taking(folder, force=force) as taken:
        yield taken


@contextmanager
def _taking(folder: Path, *, force: bool) -> Iterator[tuple[Path, Path]]:
    made: list[Path] = []
    partial: Path | None = None
    try:
        check_free(folder, force=force)
        place = folder.resolve()
        partial = place.with_name(f".{place.name}.partial-{os.getpid()}")
        made = [above for above in place.parents if not above.exists()]
        partial.mkdir(parents=True)
        yield partial, place
        _take_place(partial, place, force=force)
    except OSError as error:
        _take_back(partial, made)
        problem = f"cannot be written ({error.strerror or error})"
        raise DatasetError(folder, problem, "free some space or choose another folder with -o") from None
    except BaseException:
        _take_back(partial, made)
        raise


def _take_back(partial: Path | None, made: list[Path]) -> None:
    """Removes what was written, and the folders above it that were made for it."""
    if partial is not None:
        _remove(partial)
    for above in made:
        with suppress(OSError):
            above.rmdir()


def check_free(folder: Path, *, force: bool) -> None:
    """Looks whether a dataset can be put there.

    Raises:
        DatasetError: If something is there that may not be replaced.
    """
    if not folder.exists() and not folder.is_symlink():
        return
    if not folder.is_dir() or (any(folder.iterdir()) and not manifest.is_manifest(folder / manifest.MANIFEST)):
        raise DatasetError(folder, "is there already and is no dataset", "choose another folder with -o")
    if not force:
        raise DatasetError(folder, "is there already", "replace it with --force or choose another folder with -o")


def _take_place(partial: Path, folder: Path, *, force: bool) -> None:
    check_free(folder, force=force)  # again: parsing takes time, and others write too
    old = folder.with_name(f".{folder.name}.old-{os.getpid()}")
    try:
        if folder.exists():
            folder.rename(old)
        partial.rename(folder)
    except BaseException:  # also when stopped between the two
        if old.exists() and not folder.exists():
            old.rename(folder)
        _remove(old)  # another parse was faster
        raise
    _remove(old)


def _remove(folder: Path) -> None:
    """Removes a folder, also if the run is stopped just then."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def write(
    folder: Path,
    trace: Trace,
    about: Mapping[str, object],
    progress: Progress,
    first_id: int = 0,
) -> None:
    """Writes all tables, two at a time, and last the manifest.

    Args:
        folder: An empty folder.
        trace: What the tables are built from.
        about: What the manifest says of the source.
        progress: Told the share that is done.
        first_id: The id of the first row of every table, from which the others are counted.
    """
    *others, coverage = TABLES
    rows = {table.SPEC.name: 0 for table in TABLES}
    stop = threading.Event()
    with ThreadPoolExecutor(max_workers=2) as pool:
        futures = {table.SPEC.name: pool.submit(_write_table, table, trace, folder, first_id, stop) for table in others}
        try:
            for done, (name, future) in enumerate(futures.items(), 1):
                rows[name] = future.result()
                progress("writing", done / len(TABLES))
        except BaseException:
            stop.set()
            raise
    rows[coverage.SPEC.name] = _write_table(coverage, trace, folder, first_id, stop)
    counted = pq.read_table(folder / f"{coverage.SPEC.name}.parquet").to_pylist()
    ids = {name: id_of(pq.read_metadata(folder / f"{name}.parquet")) for name in rows}
    said = {**about, "rows": rows, manifest.TABLE_IDS: ids, "coverage": counted}
    manifest.write(folder, said)
    progress("writing", 1.0)


@contextmanager
def table_writer(path: Path, spec: TableSpec) -> Iterator[pq.ParquetWriter]:
    """A file that takes pieces of a promised table, and in the end an id: a digest of them."""
    schema = spec.schema()
    numbers = [field.name for field in schema if pa.types.is_int64(field.type)]
    with path.open("wb") as file:
        digested = _Digested(file, schema)
        with pq.ParquetWriter(
            digested,
            schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=[field.name for field in schema if field.name not in numbers],
            column_encoding=dict.fromkeys(numbers, "DELTA_BINARY_PACKED"),
        ) as writer:
            yield writer
            writer.add_key_value_metadata({FILE_ID: digested.id()})


class _Digested:
    """A file that digests what is written to it."""

    closed = False

    def __init__(self, file: BinaryIO, schema: pa.Schema) -> None:
        self._file = file
        self._digest = manifest.new_id(str(schema.remove_metadata()).encode())

    def write(self, data: Buffer) -> int:
        self._digest.update(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def id(self) -> str:
        return self._digest.hexdigest()


def _write_table(table: Table, trace: Trace, folder: Path, first_id: int, stop: threading.Event) -> int:
    """Writes one table piece by piece; returns how many rows it has."""
    rows = 0
    with table_writer(folder / f"{table.SPEC.name}.parquet", table.SPEC) as writer:
        for piece in _one_ahead(table.build(trace)):
            if stop.is_set():
                break
            writer.write_table(_numbered(piece, first_id), row_group_size=ROW_GROUP)
            rows += piece.num_rows
    return rows


def _one_ahead(pieces: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The same pieces, the next one being made while the last one is written."""
    with ThreadPoolExecutor(max_workers=1) as beside:
        following = beside.submit(next, pieces, None)
        while (piece := following.result()) is not None:
            following = beside.submit(next, pieces, None)
            yield piece


def _numbered(table: pa.Table, first_id: int) -> pa.Table:
    """The table with its ids counted from another number than 0."""
    for at, field in enumerate(table.schema if first_id else ()):
        if field.name.endswith(_ROW_IDS):
            table = table.set_column(at, field, pc.add(table.column(at), first_id))
    return table

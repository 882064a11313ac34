"""Writes a dataset, tables as Parquet and a ``manifest.json``, whole or not at all; on this machine or at a URL.

A store of objects cannot rename a folder. So a dataset is made on this machine and then put at its URL, the manifest
last; what it replaces there is removed first, beginning with the manifest. Without one, nothing is a dataset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from typing_extensions import Buffer

from tracekit.attribution.base import Trace
from tracekit.dataset import manifest
from tracekit.dataset.opening import FILE_ID, SUFFIX, TABLE_NAMES, id_of
from tracekit.errors import DatasetError, ReportsError, UsageError
from tracekit.files import hidden_prefix, parents_made, reason_of, remedy_of, stopped_once, whole_folder
from tracekit.progress import Progress, no_progress
from tracekit.schema import TableSpec
from tracekit.storage.local_copies import remove_stale, temp_dir
from tracekit.storage.locations import at_once, reachable
from tracekit.tables import TABLES

if TYPE_CHECKING:
    from upath import UPath

#: Small enough that a module's subtree is found without reading much else.
ROW_GROUP = 65_536
#: A page for each column of a row group; pyarrow since 23 makes one of every 20,000 rows, each compressed by itself.
_PAGES = {"max_rows_per_page": ROW_GROUP} if int(pa.__version__.split(".")[0]) >= 23 else {}  # noqa: PLR2004
_LOOKED_FOR = ("_id", "start_ns", "end_ns")
_BUFFER_BYTES = 1 << 18
#: Endings of the columns that hold ids, which are counted from ``first_id``.
_ROW_IDS = ("kernel_id", "call_id", "range_id", "step_id")


def default_folder(report: Path) -> Path:
    """The default place of a report's dataset: next to the report."""
    return (report.resolve() if report.name in {"", ".."} else report).with_suffix(SUFFIX)


@contextmanager
def writing(folder: Path, *, force: bool = False) -> Iterator[tuple[Path, Path]]:
    """A hidden folder that replaces ``folder`` when the block ends, and is removed when the block raises.

    It comes with ``folder`` without links.

    Raises:
        DatasetError: If something is there that must not be replaced, or the place cannot be written.
    """
    try:
        check_free(folder, force=force)
        place = folder.resolve()
        remove_stale(place.parent, hidden_prefix(place))
        taken = whole_folder(place, lambda: check_free(place, force=force))
        with stopped_once(), parents_made(place), taken as hidden:
            yield hidden, place
    except OSError as error:
        problem = f"cannot be written ({reason_of(error)})"
        raise DatasetError(folder, problem, remedy_of(error, "choose another folder with -o")) from None


def as_named(folder: Path, place: Path) -> Path:
    """A new dataset as the caller named it, unless that path led through the folder which has just been replaced."""
    return folder if (folder / manifest.MANIFEST).exists() else place


def check_free(folder: Path, *, force: bool) -> None:
    """Checks that a dataset can be put there."""
    if not folder.exists() and not folder.is_symlink():
        return
    if not folder.is_dir() or (any(folder.iterdir()) and not manifest.is_manifest(folder / manifest.MANIFEST)):
        raise DatasetError(folder, "already exists and is not a dataset", "choose another folder with -o")
    if not force:
        raise DatasetError(folder, "already exists", "replace it with --force or choose another folder with -o")


def write(folder: Path, trace: Trace, about: Mapping[str, object], progress: Progress, first_id: int = 0) -> None:
    """Writes all tables of a trace into an empty folder, and last the manifest, which says ``about`` the report.

    Ids are counted from ``first_id``.
    """
    rows = dict.fromkeys(TABLE_NAMES, 0)
    # Building the other tables may count more losses, so coverage comes last.
    for done, (spec, build) in enumerate(TABLES):
        progress("writing", done / len(TABLES))
        with table_writer(folder / f"{spec.name}.parquet", spec) as writer:
            for piece in _one_ahead(build(trace)):
                writer.write_table(_numbered(piece, first_id), row_group_size=ROW_GROUP)
                rows[spec.name] += piece.num_rows
    covered = pq.ParquetFile(folder / "coverage.parquet").read().to_pylist()
    ids = {name: id_of(pq.read_metadata(folder / f"{name}.parquet")) for name in rows}
    manifest.write(folder, {**about, "rows": rows, manifest.TABLE_IDS: ids, "coverage": covered})
    progress("writing", 1.0)


@contextmanager
def table_writer(path: Path, spec: TableSpec) -> Iterator[pq.ParquetWriter]:
    """Writes a table piece by piece; the file ends with its id, a digest of its rows."""
    schema = spec.schema()
    integers = [field for field in schema if pa.types.is_integer(field.type)]
    wide = [field.name for field in integers if pa.types.is_int64(field.type)]
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
                # Small numbers as they are: plain zstd is faster than with a dictionary, and packs as densely.
                use_dictionary=[field.name for field in schema if field not in integers],
                column_encoding=dict.fromkeys(wide, "DELTA_BINARY_PACKED"),
                # Rows are looked for by ids and times; the least and last of all others are never asked for.
                write_statistics=[field.name for field in integers if field.name.endswith(_LOOKED_FOR)],
                write_batch_size=ROW_GROUP,
                **_PAGES,
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


def _one_ahead(pieces: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The same pieces; the next one is built while the caller writes the last one, if that is worth a thread."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        piece = next(pieces, None)
        while piece is not None:
            following = pool.submit(next, pieces, None) if piece.num_rows >= ROW_GROUP else None
            yield piece
            piece = following.result() if following else next(pieces, None)


def _numbered(table: pa.Table, first_id: int) -> pa.Table:
    for at, field in enumerate(table.schema if first_id else ()):
        if field.name.endswith(_ROW_IDS):
            table = table.set_column(at, field, pc.add(table.column(at), first_id))
    return table


#: Stores that cannot be written to.
_READ_ONLY = ("http", "https")
#: Stores of objects in buckets.
_OF_BUCKETS = frozenset({"s3", "s3a", "gs", "gcs"})


@contextmanager
def published(place: UPath, progress: Progress, *, force: bool = False) -> Iterator[Path]:
    """A folder of this machine for a dataset that is put at a URL when the block ends; not if the block raises.

    Raises:
        DatasetError: If something is there that must not be replaced, or the place cannot be reached.
        ReportsError: If some reports could not be read; the dataset has the others.
        UsageError: If nothing can be written to URLs of this kind.
    """
    if place.protocol in _READ_ONLY:
        raise UsageError(f"{place}: nothing can be written by {place.protocol}; choose another place with -o")
    _check_free(place, force=force)
    with stopped_once(), temp_dir() as folder:
        errors: ReportsError | None = None
        try:
            yield folder / "dataset"
        except ReportsError as error:
            if error.folder is None:
                raise
            errors = error
        with reachable(place, DatasetError):
            _publish(folder / "dataset", place, progress)
    if errors is not None:
        raise ReportsError(errors.errors, place)


def _check_free(place: UPath, *, force: bool) -> None:
    with reachable(place, DatasetError):
        there = _names_there(place)
        # A parse that was killed leaves tables without a manifest; whatever else is there belongs to somebody.
        if all(_is_of_a_table(name) for name in there):
            return
        if not manifest.is_manifest(place / manifest.MANIFEST):
            raise DatasetError(place, "already exists and is not a dataset", "choose another place with -o")
    if not force:
        raise DatasetError(place, "already exists", "replace it with --force or choose another place with -o")


def _names_there(place: UPath) -> set[str]:
    fs, root = place.fs, place.path.rstrip("/")
    fs.invalidate_cache()
    bucket = root.partition("/")[0]
    if place.protocol in _OF_BUCKETS and not fs.exists(bucket):
        raise FileNotFoundError(f"no bucket {bucket}")
    return {name[len(root) + 1 :] for name in fs.find(root)}


def _publish(local: Path, place: UPath, progress: Progress) -> None:
    files = {file.relative_to(local).as_posix(): file for file in local.rglob("*") if file.is_file()}
    last = {manifest.MANIFEST: files.pop(manifest.MANIFEST)}
    try:
        _remove_old(place)
        _put_all(place, files, progress)
        _put_all(place, last, no_progress)
    except BaseException:
        with suppress(Exception):
            _remove_old(place)
        raise
    place.fs.invalidate_cache()
    progress("uploading", 1.0)


def _remove_old(place: UPath) -> None:
    """Removes the manifest, without which nothing is a dataset, and then all tables."""
    fs, root, there = place.fs, place.path.rstrip("/"), _names_there(place)
    for some in (there & {manifest.MANIFEST}, filter(_is_of_a_table, there)):
        if paths := [f"{root}/{name}" for name in some]:
            fs.rm(paths)


def _is_of_a_table(name: str) -> bool:
    return name.partition("/")[0].removesuffix(".parquet") in TABLE_NAMES


def _put_all(place: UPath, files: Mapping[str, Path], progress: Progress) -> None:
    root = place.path.rstrip("/")
    puts = [partial(place.fs.put_file, str(file), f"{root}/{name}") for name, file in files.items()]
    do_all(puts, at_once(place), "uploading", progress)


def do_all(jobs: Sequence[Callable[[], object]], workers: int, stage: str, progress: Progress) -> None:
    """Does jobs in so many threads. When one fails, those that wait are not begun."""
    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(job) for job in jobs]
        try:
            for done, future in enumerate(futures, 1):
                future.result()
                progress(stage, done / (len(jobs) + 1))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise

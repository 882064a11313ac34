"""Puts a dataset at a URL, whole or not at all: its files first, each named by its id, and last the manifest.

A store of objects cannot rename a folder. So no file of a new dataset has the name of one of the old dataset, which can
be read until the new manifest takes the place of the old one; only then the old files are removed.
"""

from __future__ import annotations

import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracekit.dataset import manifest
from tracekit.dataset.table_files import name_of
from tracekit.errors import DatasetError, ReportsError, UsageError
from tracekit.files import stopped_once
from tracekit.storage.failures import reachable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from upath import UPath

    from tracekit.progress import Progress

_STAGE = "uploading"
#: Stores that cannot be written to.
_READ_ONLY = ("http", "https")


@contextmanager
def published(place: UPath, *, force: bool, progress: Progress) -> Iterator[Path]:
    """A folder of this machine for a dataset that is put at a URL when the block ends; not if the block raises.

    Args:
        place: The URL.
        force: Whether an existing dataset may be replaced.
        progress: Called with the share that is there.

    Raises:
        DatasetError: If something is there that must not be replaced, or the place cannot be reached.
        ReportsError: If some reports could not be read; the dataset has the others.
        UsageError: If nothing can be written to URLs of this kind.
    """
    if place.protocol in _READ_ONLY:
        raise UsageError(f"{place}: nothing can be written by {place.protocol}; choose another place with -o")
    before = _before(place, force=force)
    with stopped_once(), tempfile.TemporaryDirectory(prefix="tracekit-", ignore_cleanup_errors=True) as folder:
        local = Path(folder, "dataset")
        errors: ReportsError | None = None
        try:
            yield local
        except ReportsError as error:
            if error.folder is None:
                raise
            errors = error
        with reachable(place, DatasetError):
            _publish(local, place, before, progress)
    if errors is not None:
        raise ReportsError(errors.errors, place)


def _before(place: UPath, *, force: bool) -> Mapping[str, Any] | None:
    """The manifest of the dataset that will be replaced; None if there is none.

    Raises:
        DatasetError: If something is there that must not be replaced.
    """
    with reachable(place, DatasetError):
        place.fs.invalidate_cache()
        names = _names(place)
    if not names:
        return None
    if manifest.MANIFEST not in names:
        # A parse that was killed leaves tables without a manifest; whatever else is there belongs to somebody.
        if all(name.partition("/")[0].endswith(".parquet") and "/" in name for name in names):
            return None
        raise DatasetError(place, "already exists and is not a dataset", "choose another place with -o")
    if not force:
        raise DatasetError(place, "already exists", "replace it with --force or choose another place with -o")
    return manifest.read(place)


def _names(place: UPath) -> set[str]:
    """Everything below a URL, by the path from there; the bucket must exist."""
    fs, root = place.fs, place.path.rstrip("/")
    bucket = root.partition("/")[0]
    if place.protocol in {"s3", "s3a", "gs", "gcs"} and not fs.exists(bucket):
        raise FileNotFoundError(f"no bucket {bucket}")
    return {name[len(root) + 1 :] for name in fs.find(root)}


def _publish(local: Path, place: UPath, before: Mapping[str, Any] | None, progress: Progress) -> None:
    fields = manifest.read(local)
    files = _files(local, fields)
    known = set() if before is None else _named_name_of(before)
    text = manifest.as_text(
        {name: value for name, value in fields.items() if name != manifest.ID} | {manifest.FILES: manifest.NAMED_BY_ID}
    )
    fs, root = place.fs, place.path.rstrip("/")
    done: list[str] = []
    try:
        for name, file in files.items():
            if name not in known:
                done.append(name)
                _put(fs, file, f"{root}/{name}")
            progress(_STAGE, len(done) / (len(files) + 1))
        _put_text(fs, text, f"{root}/{manifest.MANIFEST}")
    except BaseException:
        _remove(fs, root, done)
        raise
    _remove(fs, root, sorted(known - files.keys()))
    fs.invalidate_cache()
    progress(_STAGE, 1.0)


def _put(fs: Any, file: Path, target: str) -> None:  # noqa: ANN401 - a file system of an optional library
    with suppress(FileExistsError):
        fs.makedirs(target.rpartition("/")[0], exist_ok=True)
    fs.put_file(str(file), target)


def _put_text(fs: Any, text: str, target: str) -> None:  # noqa: ANN401 - as above
    """Puts a small file at a place at once."""
    fs.pipe_file(target, text.encode())


def _remove(fs: Any, root: str, names: list[str]) -> None:  # noqa: ANN401 - as above
    """Removes files as far as they are there and that is possible."""
    for name in names:
        with suppress(Exception):
            fs.rm_file(f"{root}/{name}")


def _files(local: Path, fields: Mapping[str, Any]) -> dict[str, Path]:
    """The files of a dataset of this machine by their names at a URL."""
    files = {
        name_of(table, None, id_): local / name_of(table, None) for table, id_ in fields[manifest.TABLE_IDS].items()
    }
    for entry in fields.get("reports", ()):
        for table, id_ in entry[manifest.TABLE_IDS].items():
            files[name_of(table, entry["name"], id_)] = local / name_of(table, entry["name"])
    return files


def _named_name_of(fields: Mapping[str, Any]) -> set[str]:
    """The names of the files of a dataset at a URL."""
    if fields.get(manifest.FILES) != manifest.NAMED_BY_ID:
        return set()
    return set(_files(Path(), fields))

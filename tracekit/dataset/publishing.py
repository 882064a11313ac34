"""Puts a dataset at a URL, whole or not at all: its files first, each named by its id, and last the manifest.

A store of objects cannot rename a folder. So no file of a new dataset has the name of one of the old dataset, which can
be read until the new manifest takes the place of the old one; only then the old files are removed.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from tracekit.dataset import manifest, own_modules
from tracekit.dataset.existing import AtUrl, is_named_by_id, names
from tracekit.dataset.opening import TABLE_NAMES
from tracekit.errors import DatasetError, ReportsError, UsageError
from tracekit.files import stopped_once
from tracekit.progress import silent
from tracekit.storage.conditional_writes import put_if_unchanged, tag_of
from tracekit.storage.failures import reachable
from tracekit.storage.left_behind import passing_folder
from tracekit.storage.locations import text_of
from tracekit.storage.requests import at_once

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Set
    from pathlib import Path

    from upath import UPath

    from tracekit.progress import Progress

_STAGE = "uploading"
#: Stores that cannot be written to.
_READ_ONLY = ("http", "https")
#: Stores of objects in buckets; and all that have no folders which would have to be made.
_OF_BUCKETS = frozenset({"s3", "s3a", "gs", "gcs"})
OF_OBJECTS = _OF_BUCKETS | {"az", "abfs", "abfss", "adl"}


@contextmanager
def published(place: UPath, put: Set[str], *, force: bool, progress: Progress) -> Iterator[Path]:
    """A folder of this machine for a dataset that is put at a URL when the block ends; not if the block raises.

    Args:
        place: The URL.
        put: Names of files that others have put there by the end of the block; they go if it raises.
        force: Whether an existing dataset may be replaced.
        progress: Called with the share that is there.

    Raises:
        DatasetError: If something is there that must not be replaced, or the place cannot be reached.
        ReportsError: If some reports could not be read; the dataset has the others.
        UsageError: If nothing can be written to URLs of this kind.
    """
    _check_writable(place)
    before = _before(place, force=force)
    with stopped_once(), passing_folder() as folder, _removed_if_raised(place, put):
        local = folder / "dataset"
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


@contextmanager
def succeeding(
    place: UPath, before: Mapping[str, Any], put: Set[str], progress: Progress
) -> Iterator[tuple[Path, AtUrl]]:
    """An empty folder of this machine for the dataset that replaces the one at a URL, and the files of that one.

    Args:
        place: The URL.
        before: The manifest of the only dataset that may be replaced.
        put: As for :func:`published`.
        progress: Called with the share that is there.

    Raises:
        DatasetError: If another parse replaced the dataset meanwhile, or the place cannot be reached.
        UsageError: If nothing can be written to URLs of this kind.
    """
    _check_writable(place)
    with stopped_once(), passing_folder() as folder, _removed_if_raised(place, put):
        local = folder / "dataset"
        local.mkdir()
        yield local, AtUrl(place, before, folder / "before")
        with reachable(place, DatasetError):
            _publish(local, place, before, progress)


@contextmanager
def _removed_if_raised(place: UPath, put: Set[str]) -> Iterator[None]:
    """Removes files at a URL if the block raises, but those of the dataset that is there."""
    try:
        yield
    except BaseException:
        if put:
            _abandon(place, put)
        raise


def _abandon(place: UPath, new: Set[str]) -> None:
    """Removes files of a dataset that has no manifest, if it is known which of them belong to the one that is there."""
    with suppress(Exception):
        _remove(place, new - _named_there(place))


def is_there(place: UPath) -> bool:
    """Whether there is a dataset at a URL.

    Raises:
        DatasetError: If the place cannot be reached.
    """
    with reachable(place, DatasetError):
        return _listed_there(place) is not None


def _check_writable(place: UPath) -> None:
    if place.protocol in _READ_ONLY:
        raise UsageError(f"{place}: nothing can be written by {place.protocol}; choose another place with -o")


def _before(place: UPath, *, force: bool) -> Mapping[str, Any] | None:
    """The manifest of the dataset that will be replaced; None if there is none.

    Raises:
        DatasetError: If something is there that must not be replaced.
    """
    with reachable(place, DatasetError):
        there = _names(place)
    if not there:
        return None
    if manifest.MANIFEST not in there:
        # A parse that was killed leaves tables without a manifest; whatever else is there belongs to somebody.
        if all(_is_of_a_table(name) for name in there):
            return None
        raise DatasetError(place, "already exists and is not a dataset", "choose another place with -o")
    if not force:
        raise DatasetError(place, "already exists", "replace it with --force or choose another place with -o")
    return manifest.read(place)


def _names(place: UPath) -> set[str]:
    """Everything below a URL as it is now, by the path from there; the bucket must exist."""
    fs, root = place.fs, place.path.rstrip("/")
    fs.invalidate_cache()
    bucket = root.partition("/")[0]
    if place.protocol in _OF_BUCKETS and not fs.exists(bucket):
        raise FileNotFoundError(f"no bucket {bucket}")
    return {name[len(root) + 1 :] for name in fs.find(root)}


def _publish(local: Path, place: UPath, before: Mapping[str, Any] | None, progress: Progress) -> None:
    fields = manifest.read(local)
    files = _files(local, fields)
    known = set() if before is None else {name for name in names(before).values() if is_named_by_id(before)}
    text = manifest.as_text(
        {name: value for name, value in fields.items() if name != manifest.ID} | {manifest.FILES: manifest.NAMED_BY_ID}
    )
    new = {name: files[name] for name in files if name not in known}
    here = {name: file for name, file in new.items() if file.exists()}
    try:
        put_all(place, here, progress)
        there = _names(place)  # what comes later may be of a dataset that succeeds this one
        _check_put(place, new.keys() - here.keys() - there)
        with ThreadPoolExecutor(1) as pool:  # which waits for the store's answer also if the run is stopped meanwhile
            pool.submit(_put_manifest, place, text, before).result()
    except BaseException:
        _abandon(place, new.keys())
        raise
    # Files of equal rows have one name: another parse that failed may have removed some of these.
    missing = new.keys() - _names(place)
    put_all(place, {name: here[name] for name in missing & here.keys()}, silent)
    _check_put(place, missing - here.keys())
    # Of parses that were killed too: other programs read whatever is in the folder of a table.
    if unwanted := {name for name in there if _is_of_a_table(name)} - files.keys():
        _remove(place, unwanted - _named_there(place))
    place.fs.invalidate_cache()
    progress(_STAGE, 1.0)


def _check_put(place: UPath, missing: Set[str]) -> None:
    """Checks that what others have put there is still there.

    Raises:
        DatasetError: If files are missing.
    """
    if missing:
        problem = f"lacks {len(missing)} files that workers have put there, such as {min(missing)}"
        raise DatasetError(
            place,
            problem,
            "check that they reach the same store, then run the command again: another parse may have removed them",
        )


def _put_manifest(place: UPath, text: str, before: Mapping[str, Any] | None) -> None:
    """Puts the manifest where the one of the dataset before is, or none; not where that of another one is by now.

    Raises:
        DatasetError: If another parse has put its manifest there meanwhile.
    """
    target, new = place / manifest.MANIFEST, json.loads(text)
    tag = tag_of(target)  # before the file is read, so that it is never the tag of a later one
    if (there := _listed_there(place)) == before:
        try:
            put_if_unchanged(target, text.encode(), tag)
        except Exception:
            if (there := _listed_there(place)) == before:
                raise
        else:
            return
    if there != new:  # it may be: the store's answer was lost and its library asked again, or both parses did the same
        problem = "was replaced or added to by another parse meanwhile"
        raise DatasetError(place, problem, "nothing was changed; run the command again")


def _named_there(place: UPath) -> set[str]:
    """The files that the manifest lists which is at a URL now."""
    return {*names(_listed_there(place) or {}).values()}


def _listed_there(place: UPath) -> dict[str, Any] | None:
    """The manifest at a URL as it is now; None if there is none."""
    try:
        fields: dict[str, Any] = json.loads(text_of(place / manifest.MANIFEST))
    except FileNotFoundError:
        return None
    return fields


def _is_of_a_table(name: str) -> bool:
    return name.partition("/")[0].removesuffix(".parquet") in {*TABLE_NAMES, own_modules.NAME}


def put_all(place: UPath, files: Mapping[str, Path], progress: Progress) -> None:
    """Puts files at a URL, by their names there, several at a time; all have ended when one fails."""
    fs, root = place.fs, place.path.rstrip("/")
    with ThreadPoolExecutor(at_once(place)) as pool:
        futures = [pool.submit(_put, fs, file, f"{root}/{name}") for name, file in files.items()]
        try:
            for done, future in enumerate(as_completed(futures), 1):
                future.result()
                progress(_STAGE, done / (len(files) + 1))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _put(fs: Any, file: Path, target: str) -> None:  # noqa: ANN401 - a file system of an optional library
    if OF_OBJECTS.isdisjoint(_protocols(fs)):
        with suppress(FileExistsError):
            fs.makedirs(target.rpartition("/")[0], exist_ok=True)
    fs.put_file(str(file), target)


def _protocols(fs: Any) -> tuple[str, ...]:  # noqa: ANN401 - as above
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)


def _remove(place: UPath, unwanted: Iterable[str]) -> None:
    """Removes files as far as they are there and that is possible."""
    fs, root = place.fs, place.path.rstrip("/")

    def remove(name: str) -> None:
        with suppress(Exception):
            fs.rm_file(f"{root}/{name}")

    with ThreadPoolExecutor(at_once(place)) as pool:
        for name in unwanted:
            pool.submit(remove, name)


def _files(local: Path, fields: Mapping[str, Any]) -> dict[str, Path]:
    """The files of a dataset of this machine by their names at a URL."""
    here, there = names(fields), names({**fields, manifest.FILES: manifest.NAMED_BY_ID})
    return {there[file]: local / name for file, name in here.items()}

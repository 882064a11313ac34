"""What a format is, and how its files come to be whole or not at all."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from tracekit.arrays.text import json_text
from tracekit.dataset.opening import TABLE_NAMES
from tracekit.errors import ExportError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tracekit.dataset.opening import Dataset
    from tracekit.progress import Progress

_ELSEWHERE = "choose another place with -o"


class Target(NamedTuple):
    """Where an export goes.

    Attributes:
        place: A file or folder, or the URL of a database.
        force: Whether an earlier export that is there may be replaced.
    """

    place: str
    force: bool


class Format(Protocol):
    """A module that writes a dataset in one format."""

    #: How the command line names it.
    NAME: str
    #: What it is for, in a few words.
    HELP: str

    def write(self, dataset: Dataset, target: Target, progress: Progress, /) -> str | None:
        """Writes the dataset, whole or not at all.

        Returns:
            What the format says otherwise than the tables, to be told; None if nothing.

        Raises:
            ExportError: If it cannot be written there.
        """


def spec_tables(dataset: Dataset, progress: Progress) -> Iterator[tuple[str, pa.Schema]]:
    """The promised tables with the columns that they have here, one after the other.

    Yields:
        The table's name, and its schema: ``report`` is its last column where there are several reports.
    """
    for done, name in enumerate(TABLE_NAMES):
        progress("exporting", done / len(TABLE_NAMES))
        yield name, dataset.schema(name)
    progress("exporting", 1.0)


def plain_columns(piece: pa.Table) -> pa.Table:
    """The rows with strings instead of categories, and JSON text instead of lists, structs and maps."""
    for at, field in enumerate(piece.schema):
        column = piece.column(at)
        if pa.types.is_nested(field.type):
            column = json_text(column)
        elif pa.types.is_dictionary(field.type):
            column = column.cast(pa.string())
        else:
            continue
        piece = piece.set_column(at, field.with_type(pa.string()), column)
    return piece


def python_values(column: pa.ChunkedArray) -> list[Any]:
    """A column's values, None where null: what drivers and spreadsheets take one by one; lists and maps as JSON.

    Several times as fast as ``to_pylist`` for the integers and categories that tables are made of.
    """
    type_ = column.type
    if pa.types.is_nested(type_):
        column = pa.chunked_array([json_text(column)])
    if pa.types.is_dictionary(type_):
        whole = column.unify_dictionaries().combine_chunks()
        words = np.array([*whole.dictionary.to_pylist(), None], dtype=object)
        return list(words[np.asarray(whole.indices.fill_null(-1))])
    if not pa.types.is_integer(type_):
        return list(column.to_pylist())
    values = np.asarray(column.fill_null(0)).astype(object)
    values[np.asarray(column.is_null())] = None
    return list(values)


@contextmanager
def whole_file(dataset: Dataset, target: Target) -> Iterator[Path]:
    """A hidden file that takes the target's place when the block ends well, and vanishes when it does not.

    Raises:
        ExportError: If something is there that may not be replaced, or the place cannot be written.
    """
    place = _free(dataset, target)
    if place.exists() and not place.is_file():
        raise ExportError(f"{place}: is there already and is no file; {_ELSEWHERE}")
    with _taking(place, lambda partial: partial.unlink(missing_ok=True)) as partial:
        yield partial
        partial.replace(place.resolve())


@contextmanager
def whole_folder(dataset: Dataset, target: Target, files: set[str]) -> Iterator[Path]:
    """The same for a folder.

    Args:
        dataset: The dataset that is exported.
        target: Where the folder shall be.
        files: Names of the files that an earlier export can have left; a folder with others is not replaced.
    """
    place = _free(dataset, target)
    if place.exists() and not (place.is_dir() and {one.name for one in place.iterdir()} <= files):
        raise ExportError(f"{place}: is there already and is no such export; {_ELSEWHERE}")
    with _taking(place, lambda partial: shutil.rmtree(partial, ignore_errors=True)) as partial:
        partial.mkdir()
        yield partial
        _replace_folder(partial, place.resolve())


def _replace_folder(partial: Path, place: Path) -> None:
    """Puts a folder in the place of another, which comes back if that fails."""
    old = place.with_name(f".{place.name}.old-{os.getpid()}")
    try:
        if place.exists():
            place.rename(old)
        partial.rename(place)
    except BaseException:
        if old.exists() and not place.exists():
            old.rename(place)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _free(dataset: Dataset, target: Target) -> Path:
    """The target as a path at which an export can be put."""
    place = Path(target.place)
    if place.name in {"", ".."}:
        raise ExportError(f"{place}: names no file or folder; {_ELSEWHERE}")
    if place.resolve().is_relative_to(dataset.folder.resolve()):
        raise ExportError(f"{place}: lies in the dataset itself; {_ELSEWHERE}")
    if (place.exists() or place.is_symlink()) and not target.force:
        raise ExportError(f"{place}: is there already; replace it with --force or {_ELSEWHERE}")
    return place


@contextmanager
def _taking(place: Path, remove: Callable[[Path], None]) -> Iterator[Path]:
    """Names what is written until it is whole; removes it if it never is."""
    partial = place.resolve().with_name(f".{place.resolve().name}.partial-{os.getpid()}")
    try:
        yield partial
    except OSError as error:
        with suppress(OSError):
            remove(partial)
        reason = " ".join(str(error.strerror or error).split())
        message = f"{place}: cannot be written ({reason}); free some space or {_ELSEWHERE}"
        raise ExportError(message) from None
    except BaseException:
        with suppress(OSError):
            remove(partial)
        raise

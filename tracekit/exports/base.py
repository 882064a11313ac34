"""What writes a format, and where an export may be written: whole or not at all, over nothing but an earlier export."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from tracekit.arrays.text import json_text
from tracekit.dataset.opening import Dataset
from tracekit.errors import ExportError
from tracekit.files import hidden_prefix, reason_of, remedy_of, stopped_once, whole_file, whole_folder
from tracekit.progress import Progress
from tracekit.storage.local_copies import remove_stale

_ELSEWHERE = "choose another place with -o"


class Target(NamedTuple):
    """Where an export goes, and whether an existing one may be replaced."""

    place: str
    force: bool


_Whole: TypeAlias = "Callable[[Path, Callable[[], object]], AbstractContextManager[Path]]"
#: Writes a dataset in one format, whole or not at all; raises ExportError if it cannot be written there.
Write: TypeAlias = "Callable[[Dataset, Target, Progress], None]"


def spec_tables(dataset: Dataset, progress: Progress) -> Iterator[tuple[str, pa.Schema]]:
    """The name and schema of each table; of several reports, ``report`` is the last column."""
    for done, name in enumerate(dataset.tables):
        progress("exporting", done / len(dataset.tables))
        yield name, dataset.schema(name)
    progress("exporting", 1.0)


def plain_columns(piece: pa.Table) -> pa.Table:
    """The rows with strings instead of categories, and JSON text instead of lists, structs and maps."""
    for index, field in enumerate(piece.schema):
        column = piece.column(index)
        if pa.types.is_nested(field.type):
            column = json_text(column)
        elif pa.types.is_dictionary(field.type):
            column = column.cast(pa.string())
        else:
            continue
        piece = piece.set_column(index, field.with_type(pa.string()), column)
    return piece


def exported_file(dataset: Dataset, target: Target) -> AbstractContextManager[Path]:
    """A path to write to that replaces the target when the block ends, and is removed when the block raises."""
    return _exported(dataset, target, whole_file, Path.is_file, "a file")


def exported_folder(dataset: Dataset, target: Target, files: set[str]) -> AbstractContextManager[Path]:
    """The same with an empty folder to fill. A folder that holds others than these files is not replaced."""

    def is_export(place: Path) -> bool:
        return place.is_dir() and {file.name for file in place.iterdir()} <= files

    return _exported(dataset, target, whole_folder, is_export, "an export")


@contextmanager
def _exported(
    dataset: Dataset, target: Target, whole: _Whole, is_earlier: Callable[[Path], bool], earlier: str
) -> Iterator[Path]:
    place = Path(target.place)

    def check() -> None:
        if place.name in {"", ".."}:
            raise ExportError(f"{place}: is not the name of a file or folder; {_ELSEWHERE}")
        refuse_inside(dataset, place)
        if (place.exists() or place.is_symlink()) and not target.force:
            raise ExportError(f"{place}: already exists; replace it with --force or {_ELSEWHERE}")
        if place.exists() and not is_earlier(place):
            raise ExportError(f"{place}: already exists and is not {earlier}; {_ELSEWHERE}")

    check()
    remove_stale(place.resolve().parent, hidden_prefix(place.resolve()))  # of killed exports
    try:
        with stopped_once(), whole(place.resolve(), check) as partial:
            yield partial
    except OSError as error:
        message = f"{place}: cannot be written ({reason_of(error)}); {remedy_of(error, _ELSEWHERE)}"
        raise ExportError(message) from None


def refuse_inside(dataset: Dataset, place: Path) -> None:
    """Refuses to write among the files of a dataset."""
    if isinstance(dataset.folder, Path) and place.resolve().is_relative_to(dataset.folder.resolve()):
        raise ExportError(f"{place}: is inside the dataset itself; {_ELSEWHERE}")

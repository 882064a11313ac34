"""Tables that a worker of a cluster puts at a URL itself, where the dataset of all reports will be.

What joining reads of every report stays with it: the manifest, the modules and the coverage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tracekit.dataset import manifest
from tracekit.dataset.existing import AtUrl
from tracekit.dataset.publishing import OF_OBJECTS, put_all
from tracekit.dataset.table_files import name_of
from tracekit.errors import DatasetError, UsageError
from tracekit.progress import silent
from tracekit.storage.failures import reachable
from tracekit.storage.locations import is_remote, location

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from upath import UPath

_STAYING = ("modules", "coverage")


class Destination(NamedTuple):
    """Where the tables of a report go; a worker need not have what opens it.

    Attributes:
        url: The dataset's URL.
        options: Those of its file system.
        report: The report's name in the dataset; None if that has only one.
    """

    url: str
    options: Mapping[str, Any]
    report: str | None


def destination(place: UPath, report: str | None) -> Destination | None:
    """Where the tables of a report go; None at a URL that need not be the same place for another machine."""
    if place.protocol not in OF_OBJECTS:
        return None
    return Destination(str(place), dict(place.storage_options), report)


def send(folder: Path, to: Destination) -> None:
    """Puts tables of a report at the URL of the dataset, and removes them here when all are there.

    Raises:
        DatasetError: If the URL cannot be reached.
        UsageError: If what is needed for it is not installed.
    """
    files = {name: folder / f"{table}.parquet" for table, name in _names(folder, to).items()}
    place = _place(to)
    with reachable(place, DatasetError):
        put_all(place, files, silent)
    for file in files.values():
        file.unlink()


def names_sent(folder: Path, to: Destination) -> set[str]:
    """The files of a report that a worker has put at the URL."""
    return {name for table, name in _names(folder, to).items() if not (folder / f"{table}.parquet").exists()}


def files_sent(folder: Path, to: Destination) -> AtUrl:
    """The files of a report, by table and the report's name there, as far as a worker has put them at the URL."""
    ids = manifest.read(folder)[manifest.TABLE_IDS]
    as_there = {manifest.FILES: manifest.NAMED_BY_ID, "reports": [{"name": to.report, manifest.TABLE_IDS: ids}]}
    return AtUrl(_place(to), as_there, folder / "brought")


def _place(to: Destination) -> UPath:
    place = location(to.url, to.options)
    if not is_remote(place):
        raise UsageError(f"{place}: is no URL to which a worker could send tables")
    return place


def _names(folder: Path, to: Destination) -> dict[str, str]:
    """What the files of tables that do not stay are called at the URL."""
    ids = manifest.read(folder)[manifest.TABLE_IDS]
    return {table: name_of(table, to.report, id_) for table, id_ in ids.items() if table not in _STAYING}

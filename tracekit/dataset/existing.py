"""The files of a dataset that is there already, on this machine or at a URL, as far as a new one goes on to have them.

At a URL, files are named by their ids and never change, so those which the new dataset has too stay where they are;
only what has to be read is brought here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from tracekit.dataset import manifest
from tracekit.dataset.table_files import name_of
from tracekit.errors import DatasetError
from tracekit.files import linked
from tracekit.storage.failures import reachable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from upath import UPath

    from tracekit.storage.locations import Location


class Files(Protocol):
    """The files of a dataset, by table and report; the report is None for what is not of one of several."""

    @property
    def place(self) -> Location:
        """Where the dataset is."""

    def readable(self, table: str, report: str | None) -> Path:
        """Where a file can be read on this machine."""

    def take(self, source: tuple[str, str | None], folder: Path, report: str | None) -> None:
        """Lets a new dataset have a file.

        Args:
            source: Its table and report.
            folder: The new dataset, on this machine.
            report: What the report is called there.
        """


class Here:
    """Those of a dataset on this machine."""

    def __init__(self, folder: Path) -> None:
        self.place = folder

    def readable(self, table: str, report: str | None) -> Path:
        """Where the file is."""
        return self.place / name_of(table, report)

    def take(self, source: tuple[str, str | None], folder: Path, report: str | None) -> None:
        """Links the file."""
        linked(self.readable(*source), folder / name_of(source[0], report))


class AtUrl:
    """Those of a dataset at a URL."""

    def __init__(self, place: UPath, fields: Mapping[str, Any], scratch: Path) -> None:
        """Nothing is brought here yet.

        Args:
            place: The URL.
            fields: The manifest.
            scratch: A folder for what will be brought here.
        """
        self.place, self._scratch = place, scratch
        self._names = names(fields)
        self._are_named_by_id = is_named_by_id(fields)

    def readable(self, table: str, report: str | None) -> Path:
        """A copy on this machine."""
        copy = self._scratch / name_of(table, report)
        copy.parent.mkdir(parents=True, exist_ok=True)
        self._bring((table, report), copy)
        return copy

    def take(self, source: tuple[str, str | None], folder: Path, report: str | None) -> None:
        """Leaves the file where it is, if the new dataset has it by the same name."""
        if report != source[1] or not self._are_named_by_id:
            self._bring(source, folder / name_of(source[0], report))

    def _bring(self, source: tuple[str, str | None], target: Path) -> None:
        with reachable(self.place, DatasetError):
            self.place.fs.get_file(f"{self.place.path.rstrip('/')}/{self._names[source]}", str(target))


def is_named_by_id(fields: Mapping[str, Any]) -> bool:
    """Whether the manifest of a dataset says that its files are named by their ids."""
    return fields.get(manifest.FILES) == manifest.NAMED_BY_ID


def names(fields: Mapping[str, Any]) -> dict[tuple[str, str | None], str]:
    """Where each file of a dataset is, by its table and report, as its manifest says."""
    by_id = is_named_by_id(fields)
    listed = [(None, fields), *((entry["name"], entry) for entry in fields.get("reports", ()))]
    return {
        (table, report): name_of(table, report, id_ if by_id else None)
        for report, entry in listed
        for table, id_ in entry.get(manifest.TABLE_IDS, {}).items()
    }

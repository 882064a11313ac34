"""Folders that ``nsys export --type parquetdir`` or ``arrowdir`` wrote."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tracekit.nsight import tables as nsight
from tracekit.progress import Progress
from tracekit.readers.base import Stored, source_of_folder
from tracekit.readers.nsight.report import of_nsight, recording_of
from tracekit.readers.table_folder import FolderTables, table_files
from tracekit.recording.tables import Recording

NAME = "nsight-folder"


def recognises(path: Path, _head: bytes) -> bool:
    """Whether it is a folder with files of some of Nsight's tables."""
    return path.is_dir() and of_nsight(table_files(path))


def read(path: Path, progress: Progress) -> Recording:
    """Reads the report."""
    tables = FolderTables(path, nsight.TABLES)
    return recording_of(tables, lambda: source_of_folder(path, table_files(path).values(), NAME), progress)


@contextmanager
def stored(path: Path, _progress: Progress) -> Iterator[Stored]:
    """Where the tables of the report are."""
    yield Stored(path, lambda: source_of_folder(path, table_files(path).values(), NAME))

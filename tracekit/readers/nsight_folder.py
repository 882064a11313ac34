"""Folders that ``nsys export --type parquetdir`` or ``arrowdir`` wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.nsight import tables as nsight
from tracekit.readers.digests import source_of_folder
from tracekit.readers.folder.files import table_files
from tracekit.readers.folder.tables import FolderTables
from tracekit.readers.nsight.report import of_nsight, recording_of

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.progress import Progress
    from tracekit.recording.tables import Recording

NAME = "nsight-folder"


def recognises(path: Path, _head: bytes) -> bool:
    """Whether it is a folder with files of some of Nsight's tables."""
    return path.is_dir() and of_nsight(table_files(path))


def read(path: Path, progress: Progress) -> Recording:
    """Reads the report.

    Raises:
        ReportError: If a table is damaged, or lacks a column without which its rows say nothing.
    """
    tables = FolderTables(path, nsight.TABLES)
    return recording_of(tables, lambda: source_of_folder(path, table_files(path).values(), NAME), progress)

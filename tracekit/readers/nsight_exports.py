"""Exports of Nsight Systems: SQLite files of 2020.3 to 2026, folders of tables, and reports of tracekit's own recorder.

Folders are those that ``nsys export --type parquetdir`` or ``arrowdir`` writes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tracekit.progress import Progress
from tracekit.readers.base import source_of
from tracekit.readers.nsight.report import Stored, of_nsight
from tracekit.readers.sqlite.file import SQLITE_MAGIC, SqliteFile
from tracekit.readers.table_folder import table_files
from tracekit.recording.tables import Recording


def recognises(path: Path, head: bytes) -> bool:
    """Whether it is SQLite, or a folder of files, with some of Nsight's tables."""
    if path.is_dir():
        return of_nsight(table_files(path))
    return head.startswith(SQLITE_MAGIC) and of_nsight(SqliteFile(path).tables)


def read(path: Path, progress: Progress) -> Recording:
    """Reads the report."""
    with stored(path, progress) as report:
        return report.recording(progress)


@contextmanager
def stored(path: Path, _progress: Progress) -> Iterator[Stored]:
    """Where the tables of the report are."""
    yield Stored(path, partial(source_of, path, "nsight-folder" if path.is_dir() else "nsight-sqlite"))

"""SQLite exports of Nsight Systems, 2020.3 to 2026, and reports of tracekit's own recorder."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tracekit.progress import Progress
from tracekit.readers.base import Stored, source_of_file
from tracekit.readers.nsight.report import of_nsight, recording_of
from tracekit.readers.sqlite.file import SQLITE_MAGIC, BulkReader, SqliteFile
from tracekit.recording.tables import Recording

NAME = "nsight-sqlite"


def recognises(path: Path, head: bytes) -> bool:
    """Whether it is SQLite with some of Nsight's tables."""
    return False if not head.startswith(SQLITE_MAGIC) else of_nsight(SqliteFile(path).tables)


def read(path: Path, progress: Progress) -> Recording:
    """Reads the report."""
    file = SqliteFile(path)
    recording = recording_of(BulkReader(file), lambda: source_of_file(path, NAME), progress)
    return replace(recording, missing=(*recording.missing, *file.missing))


@contextmanager
def stored(path: Path, _progress: Progress) -> Iterator[Stored]:
    """Where the tables of the report are."""
    yield Stored(path, lambda: source_of_file(path, NAME), SqliteFile(path).missing)

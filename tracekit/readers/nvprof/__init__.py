"""SQLite files of nvprof and the Visual Profiler: ``report`` reads one, with one module per part."""

from pathlib import Path

from tracekit.progress import Progress
from tracekit.readers.nvprof.tables import STRINGS
from tracekit.readers.sqlite.file import SQLITE_MAGIC, SqliteFile
from tracekit.recording.tables import Recording

_KINDS = "CUPTI_ACTIVITY_KIND_"


def recognises(path: Path, head: bytes) -> bool:
    """Whether it is SQLite with nvprof's strings and some activities."""
    if not head.startswith(SQLITE_MAGIC):
        return False
    tables = SqliteFile(path).tables
    return STRINGS.name in tables and any(name.startswith(_KINDS) for name in tables)


def read(path: Path, progress: Progress) -> Recording:
    """Reads the file."""
    from tracekit.readers.nvprof import report

    return report.read(path, progress)

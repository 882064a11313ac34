"""Reports in nsys's own formats, ``.nsys-rep``, ``.qdrep`` and ``.qdstrm``: exported into a cache, then read.

``report`` reads one; ``cache`` keeps exports; ``writer`` finds out which version wrote a report.
"""

from contextlib import AbstractContextManager
from pathlib import Path

from tracekit.nsight.exporting import RAW_MAGIC, REPORT_MAGIC
from tracekit.progress import Progress
from tracekit.readers.base import Stored
from tracekit.recording.tables import Recording

NAME = "nsight-native"


def recognises(_path: Path, head: bytes) -> bool:
    """Whether it begins as reports of nsys do, or their raw data."""
    return head.startswith((REPORT_MAGIC, RAW_MAGIC))


def read(path: Path, progress: Progress) -> Recording:
    """Reads the report."""
    from tracekit.readers.nsight_native import report

    return report.read(path, progress)


def stored(path: Path, progress: Progress) -> AbstractContextManager[Stored]:
    """Where the tables of the report are while the block runs."""
    from tracekit.readers.nsight_native import report

    return report.stored(path, progress)

"""Timelines that ``tracekit export`` wrote as ``chrome`` or ``perfetto``, into the recording they were made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.readers.packed import beginning

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.progress import Progress
    from tracekit.recording.tables import Recording

NAME = "tracekit_export"
#: How an export begins.
BEGINNING = b'{"displayTimeUnit": "ns", "otherData": {"tracekit": '


def recognises(_path: Path, head: bytes) -> bool:
    """Whether it is a timeline of ``tracekit export``, compressed or not."""
    return beginning(head, len(BEGINNING)).startswith(BEGINNING)


def read(path: Path, progress: Progress) -> Recording:
    """Reads the export, piece by piece.

    Raises:
        ReportError: If it is damaged, or was changed.
    """
    from tracekit.readers.exported import report

    return report.read(path, progress)

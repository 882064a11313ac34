"""One report, wherever it is and however large: as a whole, or in stretches where that would take too much memory."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from typing import TYPE_CHECKING

from tracekit.errors import ReportError
from tracekit.pipeline.one import tables_of
from tracekit.readers import nsight_sqlite, reader_for
from tracekit.storage.failures import reachable
from tracekit.storage.local_copies import brought
from tracekit.storage.locations import is_remote

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.pipeline.one import Wishes
    from tracekit.progress import Progress
    from tracekit.readers.base import Reader
    from tracekit.storage.locations import Location

_LOG = logging.getLogger("tracekit.pipeline")
#: What a report may take on any machine; and what one may take as a whole, which is done in half the CPU time that
#: stretches take, if that is no more than this part of the memory that is available.
_LITTLE_BYTES, _MOST_BYTES, _MOST_OF_AVAILABLE = 500_000_000, 4_000_000_000, 0.5
#: Parsing 185 MB took 0.8 GB at its peak, 963 MB took 3.2 GB.
_BASE_BYTES, _BYTES_PER_BYTE = 200_000_000, 4
#: How much larger a report would be as SQLite, if it is stored more densely. Of a Chrome trace, 49 MB as .gz, 525 MB
#: unpacked, took 1.0 GB; others are packed twice as densely.
_DENSITY = {".nsys-rep": 10, ".qdrep": 14, ".qdstrm": 10, ".parquet": 4, ".gz": 8}


def needed_bytes(report: Location) -> int:
    """Estimate of the memory that parsing a report as a whole takes; 0 where reading it will tell what is wrong."""
    try:
        with reachable(report, ReportError) if is_remote(report) else nullcontext():
            files = [report, *report.iterdir()] if report.is_dir() else [report]
            size = sum(file.stat().st_size * _DENSITY.get(file.suffix, 1) for file in files)
    except (OSError, ReportError):
        return 0
    return _BASE_BYTES + _BYTES_PER_BYTE * size


def parse_report(
    report: Location, folder: Path, progress: Progress, wishes: Wishes, scratch: str | None = None
) -> None:
    """Reads one report and writes its tables and manifest into a folder, which is made or empty.

    Args:
        report: The report.
        folder: The folder.
        progress: Called with each stage and the share of it that is done.
        wishes: What is asked of the dataset.
        scratch: Where a copy of a report at a URL goes meanwhile; by default where temporary files go.

    Raises:
        ReportError: If the report cannot be reached or read.
    """
    with brought(report, progress, scratch) as path:
        reader = reader_for(path)
        folder.mkdir(exist_ok=True)
        tables_of_any_size(path, reader, folder, progress, wishes)


def tables_of_any_size(path: Path, reader: Reader, folder: Path, progress: Progress, wishes: Wishes) -> None:
    """As :func:`~tracekit.pipeline.one.tables_of`, in stretches if the report can be cut and its size asks for it."""
    needed = needed_bytes(path)
    if needed > _LITTLE_BYTES:
        from tracekit.engines.memory import available_bytes  # noqa: PLC0415 - most reports are small

        available = available_bytes()
        reason = "it has another format than SQLite"
        if needed > min(_MOST_BYTES, _MOST_OF_AVAILABLE * available) and reader is nsight_sqlite:
            reason = _why_not_cut(path, folder, progress, wishes)
            if not reason:
                return
        if needed > available:
            _LOG.warning(_short(path, needed, available, reason))
    tables_of(path, reader, folder, progress, wishes)


def _why_not_cut(path: Path, folder: Path, progress: Progress, wishes: Wishes) -> str:
    """Why the report cannot be worked on in stretches; empty if it was."""
    from tracekit.pipeline import stretches  # noqa: PLC0415 - as above
    from tracekit.readers.stretches.survey import NotCuttable  # noqa: PLC0415 - as above

    try:
        stretches.tables_in_stretches(path, folder, progress, wishes, stretches.MOST_ROWS)
    except NotCuttable as what:
        return f"it has {what}"
    return ""


def _short(path: Path, needed: int, available: int, reason: str) -> str:
    """That memory may not be enough."""
    problem = f"may need {needed / 1e9:.1f} GB of memory, and {available / 1e9:.1f} GB are available"
    return f"{path}: {problem}; free memory, for the report cannot be read in stretches: {reason}"

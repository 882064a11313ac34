"""The work on one of several reports, wherever an engine has it done: its tables go into a folder of its own."""

from __future__ import annotations

import os
import socket
import traceback
from contextlib import nullcontext
from typing import TYPE_CHECKING

from tracekit.engines.dask import scratch_folder
from tracekit.errors import ReportError
from tracekit.files import reason_of
from tracekit.pipeline.one import parse_report
from tracekit.storage.failures import reachable
from tracekit.storage.left_behind import passing_folder
from tracekit.storage.locations import is_remote

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.engines.base import Share
    from tracekit.pipeline.one import Wishes
    from tracekit.progress import Progress
    from tracekit.storage.locations import Location

#: Parsing 185 MB took 0.8 GB at its peak, 963 MB took 3.2 GB.
_BASE_BYTES, _BYTES_PER_BYTE = 200_000_000, 4
#: How much larger a report would be as SQLite, if it is stored more densely. Of a Chrome trace, 49 MB as .gz, 525 MB
#: unpacked, took 1.0 GB; others are packed twice as densely.
_DENSITY = {".nsys-rep": 10, ".qdrep": 14, ".qdstrm": 10, ".parquet": 4, ".gz": 8}
#: The part of a report's progress that each stage covers.
_STAGES = {"bringing": (0.0, 0.2), "exporting": (0.0, 0.3), "reading": (0.0, 0.5), "writing": (0.5, 1.0)}
_ALONE = "parse it alone, and free memory if it ran out of memory"


def needed_bytes(report: Location) -> int:
    """Estimate of the memory that parsing a report takes."""
    try:
        with reachable(report, ReportError) if is_remote(report) else nullcontext():
            files = [report, *report.iterdir()] if report.is_dir() else [report]
            size = sum(file.stat().st_size * _DENSITY.get(file.suffix, 1) for file in files)
        return _BASE_BYTES + _BYTES_PER_BYTE * size
    except (OSError, ReportError):
        return 0  # reading it will report the error


def parsed_into(folder: Path, report: Location, wishes: Wishes, share: Share) -> ReportError | None:
    """Parses a report into a folder, which is made or empty.

    Args:
        folder: Where its tables go.
        report: Its file.
        wishes: What is asked of its dataset.
        share: Told which share is done.

    Returns:
        Why it could not be read, or None. What goes wrong with one report must not spoil the others.

    Raises:
        OSError: If the folder cannot be written.
    """
    try:
        parse_report(report, folder, _overall(share), wishes, scratch_folder())
    except ReportError as error:
        return error
    except MemoryError:
        return ReportError(report, "the process that parsed it ran out of memory", _ALONE)
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001 - a defect that one report brings to light
        traceback.print_exc()
        problem = f"tracekit failed on it ({type(error).__name__})"
        return ReportError(report, problem, "report this as a bug of tracekit, with the traceback")
    return None


def parsed_away(report: Location, wishes: Wishes, share: Share) -> ReportError | dict[str, bytes]:
    """Parses a report on a machine that may share no folder for datasets with the one that asks for it.

    Returns:
        The files of its dataset by their names, or why it could not be read.
    """
    host = socket.gethostname()
    if not is_remote(report) and not os.path.lexists(report):
        remedy = "give a path that the workers of the cluster see"
        return ReportError(report, f"does not exist on {host}", remedy)
    try:
        with passing_folder(parent=scratch_folder()) as scratch:
            folder = scratch / "part"
            error = parsed_into(folder, report, wishes, share)
            return error or {file.name: file.read_bytes() for file in folder.iterdir()}
    except OSError as error:
        problem = f"could not be parsed on {host} ({reason_of(error)})"
        return ReportError(report, problem, "free some space there, where temporary files go")


def written(folder: Path, files: dict[str, bytes]) -> None:
    """Writes what :func:`parsed_away` returned."""
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def lost(report: Location, how: str) -> ReportError:
    """Why a report could not be read whose process ended early."""
    return ReportError(report, f"the process that parsed it ended early ({how})", _ALONE)


def _overall(share: Share) -> Progress:
    """Progress by stages as the share of the whole."""

    def tell(stage: str, done: float) -> None:
        if stage in _STAGES:
            begin, end = _STAGES[stage]
            share(begin + (end - begin) * done)

    return tell

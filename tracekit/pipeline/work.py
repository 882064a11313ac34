"""The work on one of several reports, wherever an engine has it done: its tables go into a folder of its own."""

from __future__ import annotations

import os
import socket
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING

from tracekit.dataset.sending import send
from tracekit.engines.dask import scratch_folder
from tracekit.errors import DatasetError, ReportError, UsageError
from tracekit.files import reason_of
from tracekit.pipeline.any_size import parse_report
from tracekit.storage.left_behind import passing_folder
from tracekit.storage.locations import is_remote

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.dataset.sending import Destination
    from tracekit.engines.base import Share
    from tracekit.pipeline.one import Wishes
    from tracekit.progress import Progress
    from tracekit.storage.locations import Location

#: The part of a report's progress that each stage covers.
_STAGES = {
    "bringing": (0.0, 0.2),
    "exporting": (0.0, 0.3),
    "reading": (0.0, 0.5),
    "cutting": (0.0, 0.3),
    "stretches": (0.3, 0.9),
    "writing": (0.5, 1.0),
}
_ALONE = "parse it alone, and free memory if it ran out of memory"


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


def parsed_away(
    report: Location, wishes: Wishes, to: Destination | None, share: Share
) -> ReportError | dict[str, bytes]:
    """Parses a report on a machine that may share no folder for datasets with the one that asks for it.

    Args:
        report: Its file.
        wishes: What is asked of its dataset.
        to: Where tables are put at once, if this machine reaches that.
        share: Told which share is done.

    Returns:
        The files of its dataset by their names, but those which were put there, or why it could not be read.
    """
    host = socket.gethostname()
    if not is_remote(report) and not os.path.lexists(report):
        remedy = "give a path that the workers of the cluster see"
        return ReportError(report, f"does not exist on {host}", remedy)
    try:
        with passing_folder(parent=scratch_folder()) as scratch:
            folder = scratch / "part"
            error = parsed_into(folder, report, wishes, share)
            if error is None and to is not None:
                share(1.0)  # which ends a task that nobody waits for any more
                _send_if_reached(folder, to)
            return error or {file.name: file.read_bytes() for file in folder.iterdir()}
    except OSError as error:
        problem = f"could not be parsed on {host} ({reason_of(error)})"
        return ReportError(report, problem, "free some space there, where temporary files go")


def _send_if_reached(folder: Path, to: Destination) -> None:
    """Puts tables where the dataset will be; without access to that, or its library, they stay, and travel back."""
    with suppress(DatasetError, UsageError):
        send(folder, to)


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

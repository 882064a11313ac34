"""From a report to a dataset: stages 2 to 5 in a few lines. Start reading here."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from tracekit.attribute import attribute
from tracekit.dataset import load
from tracekit.decode import decode
from tracekit.errors import ReportError
from tracekit.manifest import MANIFEST
from tracekit.progress import silent
from tracekit.readers import reader_for
from tracekit.several import parse_several
from tracekit.version import __version__
from tracekit.writing import default_folder, write, writing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.dataset import Dataset
    from tracekit.progress import Progress
    from tracekit.readers.base import Reader
    from tracekit.recording import Recording


def parse(
    report: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str] | None = None,
    *,
    force: bool = False,
    progress: Progress = silent,
) -> Dataset:
    """Reads a report, or several, and writes one dataset.

    Args:
        report: A SQLite export of Nsight Systems, or several of one run, such as one per rank, which are read side
            by side; they are never changed.
        out: Folder of the dataset; of a single report by default its path with the suffix ``.tracekit``.
        force: Whether a dataset that is there may be replaced.
        progress: Told what is being done; of several reports, how far each one is.

    Returns:
        The finished dataset.

    Raises:
        ReportError: If the report cannot be read.
        ReportsError: If some of several reports cannot be read; the dataset then holds the others.
        DatasetError: If the dataset cannot be written.
        UsageError: If there is no report, one is given twice, or ``out`` is missing with several.
    """
    paths = [Path(report)] if isinstance(report, str | os.PathLike) else [*map(Path, report)]
    if len(paths) != 1:
        return parse_several(paths, out, force=force, progress=progress)
    [path] = paths
    reader = reader_for(path)
    folder = Path(out) if out is not None else default_folder(path)
    with writing(folder, force=force) as (partial, place):
        tables_of(path, reader, partial, progress)
    # As the caller named it, unless that was by way of the folder which has just been replaced.
    return load(folder if (folder / MANIFEST).exists() else place)


def tables_of(
    path: Path, reader: Reader, folder: Path, progress: Progress, first_id: int = 0
) -> None:
    """Reads one report and writes its tables and manifest into an empty folder.

    Args:
        path: The report.
        reader: The reader that recognises it.
        folder: The folder.
        progress: Told what is being done.
        first_id: The number from which rows are counted.

    Raises:
        ReportError: If the report cannot be read.
    """
    recording = _read(reader, path, progress)
    pa.default_memory_pool().release_unused()
    trace = attribute(recording, decode(recording.texts))
    pa.default_memory_pool().release_unused()
    write(folder, trace, _about(recording), progress, first_id)


def _read(reader: Reader, path: Path, progress: Progress) -> Recording:
    try:
        return reader.read(path, progress)
    except OSError as error:
        problem = f"cannot be read ({error.strerror or error})"
        raise ReportError(path, problem, "check the disk or network it lies on") from None


def _about(recording: Recording) -> dict[str, object]:
    """What the manifest says of the source."""
    return {
        "tracekit": __version__,
        "source": asdict(recording.source),
        "processes": [
            {"pid": pid, "name": recording.process_names.get(pid)}
            for pid in sorted(set(recording.threads.process_pid.tolist()))
        ],
        "devices": [
            {"device": number, **asdict(gpu)} for number, gpu in sorted(recording.devices.items())
        ],
        "ranks": [
            {"pid": found.pid, "rank": found.rank, "source": found.source}
            for found in recording.ranks
        ],
        "lacks": [asdict(lack) for lack in recording.lacks],
        "launches": recording.launches.num_rows,
    }

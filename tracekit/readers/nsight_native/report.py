"""Exports a report with the nsys of this machine, unless that was done before, and reads the export."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

from tracekit.errors import CaptureError, ReportError
from tracekit.files import reason_of
from tracekit.nsight import nsys, tables as nsight
from tracekit.nsight.exporting import ExportFailed, export, exported, is_raw
from tracekit.readers.digests import source_of_file
from tracekit.readers.folder.tables import FolderTables
from tracekit.readers.nsight.report import recording_of
from tracekit.readers.nsight_native import NAME
from tracekit.readers.nsight_native.cache import cache_folder, forget, kept, made
from tracekit.readers.nsight_native.writer import has_its_end, is_newer, written_by
from tracekit.readers.sqlite.bulk import BulkReader
from tracekit.readers.sqlite.file import SqliteFile
from tracekit.recording.provenance import Lack

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.nsight.nsys import Nsys
    from tracekit.progress import Progress
    from tracekit.recording.provenance import Source
    from tracekit.recording.tables import Recording

#: With less free space than this, a failure is due to it.
_FULL_BYTES = 1 << 20


def read(path: Path, progress: Progress) -> Recording:
    """Reads the report.

    Raises:
        ReportError: If there is no nsys to export it with, or it cannot export this report.
    """
    writer = written_by(path)
    tool = _tool(path, writer)
    source = source_of_file(path, NAME)
    key = re.sub(r"[^\w.]+", "-", f"{source.sha256[:32]}-{tool.version}")
    recording = _kept_recording(key, source, progress)
    if recording is None:
        with made(key, lambda place: _export(tool, path, writer, place, progress)) as place:
            recording = _recording(exported(place), source, progress, path)
    if not is_newer(writer, tool.version):
        return recording
    lack = Lack(f"possibly events that only nsys {writer} knows", f"export it with nsys {writer} or newer")
    return replace(recording, lacks=(*recording.lacks, lack))


def _tool(path: Path, writer: str | None) -> Nsys:
    """The nsys of this machine."""
    needed = f"Nsight Systems {writer} or newer" if writer else "a recent Nsight Systems"
    remedy = (
        f"install {needed}, or set {nsys.VARIABLE} to the path of its nsys; or export the report where it was "
        "recorded, with nsys export --type sqlite, and parse that"
    )
    try:
        tool = nsys.find()
        if tool is not None:
            tool.version  # noqa: B018 - asks the program, which may not run
            return tool
        problem = "no nsys was found to read it with"
    except CaptureError as error:
        problem = f"the nsys to read it with cannot be used ({error})"
    cut = "" if is_raw(path) or has_its_end(path) else "; its end is missing, so it is damaged or truncated"
    raise ReportError(path, f"{_what(writer)}, and {problem}{cut}", remedy)


def _what(writer: str | None) -> str:
    return f"was written by {f'nsys {writer}' if writer else 'an nsys that it does not name'}"


def _kept_recording(key: str, source: Source, progress: Progress) -> Recording | None:
    """The recording out of an export that was kept; None if there is none, or it was damaged since."""
    place = kept(key)
    if place is None:
        return None
    try:
        return _recording(exported(place), source, progress, place)
    except (ReportError, OSError):
        forget(key)
        return None


def _recording(export: Path, source: Source, progress: Progress, path: Path) -> Recording:
    """The recording out of an export; errors name the report itself."""
    try:
        if export.is_dir():
            return recording_of(FolderTables(export, nsight.TABLES), lambda: source, progress)
        return recording_of(BulkReader(SqliteFile(export)), lambda: source, progress)
    except ReportError as error:
        raise ReportError(path, f"its export by nsys cannot be read: {error.problem}", error.remedy) from None


def _export(tool: Nsys, path: Path, writer: str | None, place: Path, progress: Progress) -> None:
    """Exports the report into a folder."""
    progress("exporting", 0.0)
    try:
        export(tool, path, place, lambda share: progress("exporting", share))
    except OSError as error:
        raise _no_space(path, place, reason_of(error)) from None
    except ExportFailed as error:
        raise _failure(tool, path, writer, place, str(error)) from None


def _failure(tool: Nsys, path: Path, writer: str | None, place: Path, reason: str) -> ReportError:
    """Why nsys could not export the report, as far as that can be told."""
    if shutil.disk_usage(place).free < _FULL_BYTES:
        return _no_space(path, place, reason)
    exporter = f"nsys {tool.version} ({tool.path})"
    if is_newer(writer, tool.version):
        problem = f"{_what(writer)}, and {exporter} is too old to export it ({reason})"
        remedy = f"install Nsight Systems {writer} or newer, or set {nsys.VARIABLE} to the path of its nsys"
        return ReportError(path, problem, remedy)
    if is_raw(path):
        remedy = f"raw data needs the QdstrmImporter of the nsys that wrote it: set {nsys.VARIABLE} to that nsys"
        problem = f"{_what(writer)}, and {exporter} cannot import it: {reason}"
        return ReportError(path, problem, f"{remedy}; if it is that one, the file is damaged or truncated")
    if not has_its_end(path):
        problem = f"is damaged or truncated: its end is missing; {exporter} says: {reason}"
        return ReportError(path, problem, "copy it again from where it was recorded, or record it again")
    problem = f"{_what(writer)}, and {exporter} cannot export it: {reason}"
    return ReportError(path, problem, "try a newer Nsight Systems, or record it again if the report is damaged")


def _no_space(path: Path, place: Path, reason: str) -> ReportError:
    where = cache_folder() if cache_folder() in place.parents else place.parent
    remedy = f"free some space in {where}, or set XDG_CACHE_HOME to a folder on another disk"
    return ReportError(path, f"cannot be exported ({reason})", remedy)

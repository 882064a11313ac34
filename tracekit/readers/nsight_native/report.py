"""Reports in nsys's own formats: exported with the nsys of this machine, unless that was done before, then read."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from tracekit.errors import CaptureError, ReportError
from tracekit.files import reason_of
from tracekit.nsight import nsys
from tracekit.nsight.exporting import REPORT_END, ExportFailed, export, exported, is_raw
from tracekit.nsight.nsys import Nsys
from tracekit.progress import Progress
from tracekit.readers.base import Stored, source_of
from tracekit.readers.nsight.report import recording_of, tables_at
from tracekit.readers.nsight_native import NAME
from tracekit.readers.nsight_native.cache import cache_folder, forget, kept, made
from tracekit.recording.provenance import MissingData, Source
from tracekit.recording.tables import Recording

#: With less free space than this, a failure is due to it.
_FULL_BYTES = 1 << 20


def read(path: Path, progress: Progress) -> Recording:
    """Reads the report; see the package's ``read``."""
    found = _found(path)
    recording = _kept_recording(found.key, found.source, progress)
    if recording is None:
        with _exported(path, found, progress) as export:
            recording = _recording(export, found.source, progress, path)
    if found.writer:  # its tables hold the version that exported them
        recording = replace(recording, source=replace(recording.source, exporter=found.writer))
    return replace(recording, missing=(*recording.missing, *found.missing))


@contextmanager
def stored(path: Path, progress: Progress) -> Iterator[Stored]:
    """Where the tables of the report are while the block runs."""
    found = _found(path)
    place = kept(found.key)
    with _exported(path, found, progress) if place is None else nullcontext(exported(place)) as export:
        yield Stored(export, lambda: found.source, found.missing, found.writer)


class _Export(NamedTuple):
    """A report, which nsys wrote it and which can export it, and the name of its export."""

    writer: str | None
    tool: Nsys
    source: Source
    key: str

    @property
    def missing(self) -> tuple[MissingData, ...]:
        """What the export may lack."""
        if not _is_newer(self.writer, self.tool.version):
            return ()
        remedy = f"export it with nsys {self.writer} or newer"
        return (MissingData(f"possibly events that only nsys {self.writer} knows", remedy),)


def _found(path: Path) -> _Export:
    writer = _written_by(path)
    tool = _tool(path, writer)
    source = source_of(path, NAME)
    return _Export(writer, tool, source, re.sub(r"[^\w.]+", "-", f"{source.sha256[:32]}-{tool.version}"))


@contextmanager
def _exported(path: Path, found: _Export, progress: Progress) -> Iterator[Path]:
    with made(found.key, lambda place: _export(found.tool, path, found.writer, place, progress)) as place:
        yield exported(place)


def _tool(path: Path, writer: str | None) -> Nsys:
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
    cut = "" if is_raw(path) or _has_its_end(path) else "; its end is missing, so it is damaged or truncated"
    raise ReportError(path, f"{_what(writer)}, and {problem}{cut}", remedy)


def _what(writer: str | None) -> str:
    return f"was written by {f'nsys {writer}' if writer else 'an nsys that it does not name'}"


def _kept_recording(key: str, source: Source, progress: Progress) -> Recording | None:
    """Load the cached export, if valid."""
    place = kept(key)
    if place is None:
        return None
    try:
        return _recording(exported(place), source, progress, place)
    except (ReportError, OSError):
        forget(key)
        return None


def _recording(export: Path, source: Source, progress: Progress, path: Path) -> Recording:
    try:
        return recording_of(tables_at(export), lambda: source, progress)
    except ReportError as error:
        raise ReportError(path, f"its export by nsys cannot be read: {error.problem}", error.remedy) from None


def _export(tool: Nsys, path: Path, writer: str | None, place: Path, progress: Progress) -> None:
    progress("exporting", 0.0)
    try:
        export(tool, path, place, lambda share: progress("exporting", share))
    except OSError as error:
        raise _no_space(path, place, reason_of(error)) from None
    except ExportFailed as error:
        raise _failure(tool, path, writer, place, str(error)) from None


def _failure(tool: Nsys, path: Path, writer: str | None, place: Path, reason: str) -> ReportError:
    if shutil.disk_usage(place).free < _FULL_BYTES:
        return _no_space(path, place, reason)
    exporter = f"nsys {tool.version} ({tool.path})"
    if _is_newer(writer, tool.version):
        problem = f"{_what(writer)}, and {exporter} is too old to export it ({reason})"
        remedy = f"install Nsight Systems {writer} or newer, or set {nsys.VARIABLE} to the path of its nsys"
        return ReportError(path, problem, remedy)
    if is_raw(path):
        remedy = f"raw data needs the QdstrmImporter of the nsys that wrote it: set {nsys.VARIABLE} to that nsys"
        problem = f"{_what(writer)}, and {exporter} cannot import it: {reason}"
        return ReportError(path, problem, f"{remedy}; if it is that one, the file is damaged or truncated")
    if not _has_its_end(path):
        problem = f"is damaged or truncated: its end is missing; {exporter} says: {reason}"
        return ReportError(path, problem, "copy it again from where it was recorded, or record it again")
    problem = f"{_what(writer)}, and {exporter} cannot export it: {reason}"
    return ReportError(path, problem, "try a newer Nsight Systems, or record it again if the report is damaged")


def _no_space(path: Path, place: Path, reason: str) -> ReportError:
    where = cache_folder() if cache_folder() in place.parents else place.parent
    remedy = f"free some space in {where}, or set XDG_CACHE_HOME to a folder on another disk"
    return ReportError(path, f"cannot be exported ({reason})", remedy)


#: The version is near the end of a report and at the beginning of raw data, with its build; else in paths of programs.
_BUILD = re.compile(rb"\b(20\d\d\.\d{1,2}\.\d{1,2})(?:\.\d+)?-[0-9a-z]{6,}")
_FOLDER = re.compile(rb"[Nn]sight[- ][Ss]ystems(?:-cli)?[-/\\ ](20\d\d\.\d{1,2}(?:\.\d{1,2})?)[/\\](?:target|host|bin)")
_SEARCHED_BYTES = 1 << 20


def _written_by(path: Path) -> str | None:
    with path.open("rb") as file:
        head = file.read(_SEARCHED_BYTES)
        file.seek(max(0, path.stat().st_size - _SEARCHED_BYTES))
        end = file.read()
    if builds := _BUILD.findall(end):
        return str(builds[-1].decode())
    match = _BUILD.search(head) or _FOLDER.search(head)
    return match[1].decode() if match else None


def _has_its_end(path: Path) -> bool:
    """Whether a report is complete; only for reports, as raw data has no mark at its end."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - len(REPORT_END)))
        return file.read() == REPORT_END


def _is_newer(version: str | None, other: str) -> bool:
    return bool(version) and _numbers(other) != () and _numbers(version or "") > _numbers(other)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))[:3]

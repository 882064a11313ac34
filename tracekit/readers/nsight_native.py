"""Reports in nsys's own formats, ``.nsys-rep``, ``.qdrep`` and ``.qdstrm``, exported with the nsys of this machine.

An export lives in a temporary folder while it is read.
"""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tracekit.engines.dask import scratch_folder
from tracekit.errors import CaptureError, ReportError
from tracekit.files import reason_of
from tracekit.nsight import nsys
from tracekit.nsight.nsys import RAW_MAGIC, REPORT_END, REPORT_MAGIC, ExportFailed, Nsys, exported, is_raw
from tracekit.progress import Progress
from tracekit.readers.base import source_of
from tracekit.readers.nsight.report import Stored
from tracekit.recording.provenance import MissingData
from tracekit.recording.tables import Recording
from tracekit.storage.local_copies import temp_dir

#: With less free space than this, a failure is due to it.
_FULL_BYTES = 1 << 20
#: The version is near the end of a report and at the beginning of raw data, with its build; else in paths of programs.
_BUILD = re.compile(rb"\b(20\d\d\.\d{1,2}\.\d{1,2})(?:\.\d+)?-[0-9a-z]{6,}")
_FOLDER = re.compile(rb"[Nn]sight[- ][Ss]ystems(?:-cli)?[-/\\ ](20\d\d\.\d{1,2}(?:\.\d{1,2})?)[/\\](?:target|host|bin)")
_SEARCHED_BYTES = 1 << 20


def recognises(_path: Path, head: bytes) -> bool:
    """Whether it begins as reports of nsys do, or their raw data."""
    return head.startswith((REPORT_MAGIC, RAW_MAGIC))


def read(path: Path, progress: Progress) -> Recording:
    """Reads the report."""
    with stored(path, progress) as report:
        return report.recording(progress)


@contextmanager
def stored(path: Path, progress: Progress) -> Iterator[Stored]:
    """Where the tables of the report are while the block runs; errors about them name the report."""
    report = _report(path)
    with temp_dir(parent=scratch_folder()) as place:
        report.export(place, progress)
        tables = exported(place)
        try:
            yield Stored(tables, partial(source_of, path, "nsight-native"), report.missing, report.writer)
        except ReportError as error:
            if error.path != tables:
                raise
            raise ReportError(path, f"its export by nsys cannot be read: {error.problem}", error.remedy) from None


class _Report(NamedTuple):
    """A report, which nsys wrote it if that is known, and the nsys that can export it."""

    path: Path
    writer: str | None
    tool: Nsys

    @property
    def is_newer(self) -> bool:
        """Whether a newer nsys than the one at hand wrote it."""
        own = _numbers(self.tool.version)
        return own != () and _numbers(self.writer or "") > own

    @property
    def missing(self) -> tuple[MissingData, ...]:
        """What the export may lack."""
        remedy = f"export it with nsys {self.writer} or newer"
        return (MissingData(f"possibly events that only nsys {self.writer} knows", remedy),) if self.is_newer else ()

    def export(self, place: Path, progress: Progress) -> None:
        """Exports it into an empty folder."""
        progress("exporting", 0.0)
        try:
            self.tool.export(self.path, place, lambda share: progress("exporting", share))
        except (OSError, ExportFailed) as error:
            if isinstance(error, ExportFailed) and shutil.disk_usage(place).free >= _FULL_BYTES:
                raise ReportError(self.path, *self._failure(str(error))) from None
            reason = reason_of(error) if isinstance(error, OSError) else str(error)
            remedy = f"free some space in {place.parent}, or set TMPDIR to a folder on another disk"
            raise ReportError(self.path, f"cannot be exported ({reason})", remedy) from None

    def _failure(self, reason: str) -> tuple[str, str]:
        """The problem and its remedy where nsys gave a reason."""
        written, exporter = _written(self.writer), f"nsys {self.tool.version} ({self.tool.path})"
        if self.is_newer:
            remedy = f"install Nsight Systems {self.writer} or newer, or set {nsys.VARIABLE} to the path of its nsys"
            return f"{written}, and {exporter} is too old to export it ({reason})", remedy
        if is_raw(self.path):
            remedy = f"raw data needs the QdstrmImporter of the nsys that wrote it: set {nsys.VARIABLE} to that nsys"
            problem = f"{written}, and {exporter} cannot import it: {reason}"
            return problem, f"{remedy}; if it is that one, the file is damaged or truncated"
        if not _has_its_end(self.path):
            problem = f"is damaged or truncated: its end is missing; {exporter} says: {reason}"
            return problem, "copy it again from where it was recorded, or record it again"
        problem = f"{written}, and {exporter} cannot export it: {reason}"
        return problem, "try a newer Nsight Systems, or record it again if the report is damaged"


def _report(path: Path) -> _Report:
    writer = _writer(path)
    try:
        tool = nsys.find()
        if tool is not None:
            tool.version  # noqa: B018 - asks the program, which may not run
            return _Report(path, writer, tool)
        problem = "no nsys was found to read it with"
    except CaptureError as error:
        problem = f"the nsys to read it with cannot be used ({error})"
    cut = "" if is_raw(path) or _has_its_end(path) else "; its end is missing, so it is damaged or truncated"
    needed = f"Nsight Systems {writer} or newer" if writer else "a recent Nsight Systems"
    remedy = (
        f"install {needed}, or set {nsys.VARIABLE} to the path of its nsys; or export the report where it was "
        "recorded, with nsys export --type sqlite, and parse that"
    )
    raise ReportError(path, f"{_written(writer)}, and {problem}{cut}", remedy)


def _written(writer: str | None) -> str:
    return f"was written by {f'nsys {writer}' if writer else 'an nsys that it does not name'}"


def _writer(path: Path) -> str | None:
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


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))[:3]

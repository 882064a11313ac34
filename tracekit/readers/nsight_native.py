"""Reports in nsys's own formats, ``.nsys-rep``, ``.qdrep`` and ``.qdstrm``, exported with the nsys of this machine.

Exports are kept, so that a report is exported once: a folder each, below the user's cache folder. An export is there
whole or not at all, and never changed. The least recently used ones are removed when all together take more than
``LARGEST_BYTES``. If nothing can be kept, an export lives in a temporary folder while it is read.
"""

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from tracekit.errors import CaptureError, ReportError
from tracekit.files import reason_of
from tracekit.nsight import nsys
from tracekit.nsight.nsys import RAW_MAGIC, REPORT_END, REPORT_MAGIC, ExportFailed, Nsys, exported, is_raw
from tracekit.progress import Progress
from tracekit.readers.base import Stored, source_of
from tracekit.readers.nsight.report import recording_of, tables_at
from tracekit.recording.provenance import MissingData, Source
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
    report = _report(path)
    recording = None
    if (place := kept(report.key)) is not None:
        try:
            recording = report.recording(exported(place), progress)
        except (ReportError, OSError):  # damaged since
            forget(report.key)
    if recording is None:
        with report.new_export(progress) as export:
            recording = report.recording(export, progress)
    if report.writer:  # its tables hold the version that exported them
        recording = replace(recording, source=replace(recording.source, exporter=report.writer))
    return replace(recording, missing=(*recording.missing, *report.missing))


@contextmanager
def stored(path: Path, progress: Progress) -> Iterator[Stored]:
    """Where the tables of the report are while the block runs."""
    report = _report(path)
    place = kept(report.key)
    with report.new_export(progress) if place is None else nullcontext(exported(place)) as export:
        yield Stored(export, lambda: report.source, report.missing, report.writer)


class _Report(NamedTuple):
    """A report, which nsys wrote it if that is known, and the nsys that can export it."""

    path: Path
    writer: str | None
    tool: Nsys
    source: Source

    @property
    def key(self) -> str:
        """The name of its export."""
        return re.sub(r"[^\w.]+", "-", f"{self.source.sha256[:32]}-{self.tool.version}")

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

    @contextmanager
    def new_export(self, progress: Progress) -> Iterator[Path]:
        """The tables of the report, exported anew."""
        with made(self.key, lambda place: self._export(place, progress)) as place:
            yield exported(place)

    def recording(self, tables: Path, progress: Progress) -> Recording:
        """What its export holds."""
        try:
            return recording_of(tables_at(tables), lambda: self.source, progress)
        except ReportError as error:
            raise ReportError(self.path, f"its export by nsys cannot be read: {error.problem}", error.remedy) from None

    def _export(self, place: Path, progress: Progress) -> None:
        progress("exporting", 0.0)
        try:
            self.tool.export(self.path, place, lambda share: progress("exporting", share))
        except (OSError, ExportFailed) as error:
            if isinstance(error, ExportFailed) and shutil.disk_usage(place).free >= _FULL_BYTES:
                raise ReportError(self.path, *self._failure(str(error))) from None
            reason = reason_of(error) if isinstance(error, OSError) else str(error)
            where = cache_folder() if cache_folder() in place.parents else place.parent
            remedy = f"free some space in {where}, or set XDG_CACHE_HOME to a folder on another disk"
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
            return _Report(path, writer, tool, source_of(path, "nsight-native"))
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


#: All kept exports together.
LARGEST_BYTES = 10 << 30
#: An export that was used within this time may still be read by another process.
_IN_USE_S = 3600
_PARTIAL = ".partial-"
#: Lists the files of an export, next to them: a disk that fills up or a program that tidies up may take some of them.
_CONTENTS = "contents"


def cache_folder() -> Path:
    """Where exports are kept."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    # By the specification, a relative path is ignored.
    return (Path(home) if Path(home).is_absolute() else Path("~/.cache").expanduser()) / "tracekit" / "exports"


def kept(key: str) -> Path | None:
    """The folder of a kept export; None if there is none. One that is not whole is removed."""
    place = cache_folder() / key
    if not os.path.isdir(place):  # noqa: PTH112 - Path.is_dir raises where it may not look
        return None
    try:
        whole = (place / _CONTENTS).read_text("utf-8") == _contents(place)
    except (OSError, UnicodeError):
        whole = False
    if not whole:
        forget(key)
        return None
    with suppress(OSError):
        os.utime(place)  # used now
    return place


def forget(key: str) -> None:
    """Removes a kept export."""
    shutil.rmtree(cache_folder() / key, ignore_errors=True)


@contextmanager
def made(key: str, make: Callable[[Path], None]) -> Iterator[Path]:
    """The folder of a new export while the block runs; it is kept if that is possible.

    Equal exports have equal keys. ``make`` fills an empty folder; if it raises, nothing is left.
    """
    folder = cache_folder()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        keeps = os.access(folder, os.W_OK)
    except OSError:
        keeps = False
    with temp_dir(_PARTIAL, folder if keeps else None) as partial:
        make(partial)
        place = partial
        if keeps:
            with suppress(OSError):  # another process was faster, or the disk is full
                (partial / _CONTENTS).write_text(_contents(partial), "utf-8")
                place = partial.rename(folder / key)
        yield place
    if keeps:
        with suppress(OSError):
            _trim(folder)


def _contents(place: Path) -> str:
    files = sorted(path for path in place.rglob("*") if path.is_file() and path.name != _CONTENTS)
    return "".join(f"{path.stat().st_size} {path.relative_to(place)}\n" for path in files)


def _trim(folder: Path) -> None:
    """Removes the least recently used exports while all are too large together."""
    kept = [(place.stat().st_mtime, place) for place in folder.iterdir() if not place.name.startswith(_PARTIAL)]
    total = 0
    for used, place in sorted(kept, reverse=True):
        total += sum(path.stat().st_size for path in place.rglob("*"))
        if total > LARGEST_BYTES and time.time() - used > _IN_USE_S:
            shutil.rmtree(place, ignore_errors=True)

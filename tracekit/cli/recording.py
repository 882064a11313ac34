"""What commands that record share: torch must be there, and the report must have a place."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tracekit.errors import CaptureError, ReportError
from tracekit.files import hidden_prefix, reason_of, stops_held
from tracekit.progress import Progress, no_progress
from tracekit.storage.local_copies import temp_dir

#: Suffixes of what nsys itself writes next to the report.
_NATIVE = (".nsys-rep", ".qdrep", ".qdstrm")
#: All that a recording may leave.
_SUFFIXES = (".sqlite", *_NATIVE, ".json.gz")
_ELSEWHERE = "choose another place with -o"
INSTALL_TORCH = "pip install torch nvtx"


def unusable(name: str) -> tuple[str, str] | None:
    """Why a package cannot be imported, and what to do; None if it can be."""
    if importlib.util.find_spec(name) is None:
        return "not installed", INSTALL_TORCH
    try:
        importlib.import_module(name)
    except (ImportError, OSError) as error:
        return f"installed but cannot be imported ({' '.join(str(error).split())})", "reinstall it"
    return None


def require_torch() -> None:
    """Checks that torch can be imported. An exception amid torch's own start in C++ would abort this process."""
    with stops_held():
        problem = unusable("torch")
    if problem:
        raise CaptureError(f"torch is {problem[0]}; {problem[1]}")


def report_place(path: Path, *, force: bool) -> Path:
    """Where a report can be written; its suffix is ``.sqlite``. Checked before anything runs."""
    if path.name in {"", ".."}:
        raise CaptureError(f"{path}: is not a file name; {_ELSEWHERE}")
    if path.exists() and not path.is_file() and not path.is_dir():
        raise CaptureError(f"{path}: is a device, not a file; {_ELSEWHERE}")
    report = path if path.suffix == ".sqlite" else path.with_name(f"{path.name}.sqlite")
    for place in (report, *(report.with_suffix(suffix) for suffix in _NATIVE)):
        check_place(place, force=force)
    if not report.parent.is_dir():
        raise CaptureError(f"{report.parent}: is not a folder; create it or {_ELSEWHERE}")
    if not os.access(report.parent, os.W_OK):
        raise CaptureError(f"{report.parent}: is not writable; {_ELSEWHERE}")
    return report


@contextmanager
def growing(report: Path) -> Iterator[Growing]:
    """A hidden folder next to a report, in which its recording grows; what is complete takes its place at the end."""
    with temp_dir(hidden_prefix(report), report.absolute().parent) as folder:
        recording = Growing(report, folder)
        try:
            yield recording
        except BaseException as error:
            recording.take_place()
            if isinstance(error, CaptureError):
                error.args = tuple(recording.renamed(error.args))
            raise


class Growing:
    """A recording, and the places that its files will take."""

    def __init__(self, report: Path, folder: Path) -> None:
        #: Where the report belongs, as the user named it; another place if another recording has taken it meanwhile.
        self.report = report
        #: Where it is written. Absolute, because the target may change the working directory.
        self.partial = folder / report.name
        self._place = report.absolute()
        self._before = {suffix: _identity(self._place.with_suffix(suffix)) for suffix in _SUFFIXES}

    @stops_held()
    def take_place(self) -> None:
        """Moves what was recorded to its place, or to a free one next to it; what is there already stays."""
        stem, number = self._place.stem, 1
        made = [suffix for suffix in _SUFFIXES if self.partial.with_suffix(suffix).is_file()]
        for suffix in made:
            while not self._taken(suffix):
                number += 1
                self._place = self._place.with_stem(f"{stem}.{number}")
                self._before.clear()
        if made and _SUFFIXES[0] not in made and self._before.get(_SUFFIXES[0]):
            self._place.unlink(missing_ok=True)  # one of an earlier run would be mistaken for this run's
        self.report = self.report.with_name(self._place.name)

    def renamed(self, texts: Iterable[object]) -> Iterable[str]:
        """Texts that name the files where they are now."""
        before, now = (f"{path.with_suffix('')}." for path in (self.partial, self._place))
        return (str(text).replace(before, now) for text in texts)

    def _taken(self, suffix: str) -> bool:
        file, place = self.partial.with_suffix(suffix), self._place.with_suffix(suffix)
        before = self._before.get(suffix)
        if before is None:
            try:
                place.hardlink_to(file)
            except OSError:  # something is there, or the file system has no links
                pass
            else:
                file.unlink()
                return True
        if _identity(place) != before:
            return False
        file.replace(place)
        return True


def _identity(place: Path) -> tuple[int, int, int] | None:
    if not place.exists():
        return None
    about = place.stat()
    return about.st_ino, about.st_size, about.st_mtime_ns


def with_hierarchies(trace: Path | None, progress: Progress = no_progress) -> list[str]:
    """Writes the hierarchies of modules into a Chrome trace. Returns why they are not there, if so."""
    if trace is None or not trace.exists():
        return []
    from tracekit.pipeline.module_hierarchies import write_module_hierarchies

    try:
        write_module_hierarchies(trace, progress)
    except (ReportError, OSError) as error:
        problem = error.problem if isinstance(error, ReportError) else reason_of(error)
        return [f"{trace}: has no module hierarchies ({problem})"]
    return []


def check_place(place: Path, *, force: bool) -> None:
    """Checks that a file can be written."""
    if place.is_dir():
        raise CaptureError(f"{place}: already exists and is a folder; {_ELSEWHERE}")
    if place.exists() and not force:
        raise CaptureError(f"{place}: already exists; replace it with --force or {_ELSEWHERE}")

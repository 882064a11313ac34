"""Copies of reports at URLs, for SQLite and nsys know only files; and temporary folders that outlive no process.

The names of the folders show which process they belong to. One of a process of this machine that has ended goes at
once, one of another machine, which may share the disk, after it was unused for a day.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracekit.errors import ReportError
from tracekit.files import owned, stops_held, this_machine
from tracekit.progress import Progress
from tracekit.storage.locations import Location, reachable

if TYPE_CHECKING:
    from upath import UPath

#: The stage that progress names.
BRINGING = "bringing"
#: What is unchanged for so long is not in use any more.
_LEFT_ALONE_S = 86_400
_OWNER = re.compile(r"([0-9a-f]{8})-(\d+)-[0-9a-f]{8}")


@contextmanager
def local_copy(report: Location, progress: Progress, scratch: str | None = None) -> Iterator[Path]:
    """A path of this machine where the report can be read during the block; one at a URL is copied into ``scratch``.

    The copy has the report's name, and its folder the name of the report's folder, for ranks and names are read from
    them. Errors about it name the URL.
    """
    if isinstance(report, Path):
        yield report
        return
    with temp_dir("tracekit-report-", scratch) as folder:
        name = report.path.rstrip("/").rpartition("/")[2]
        if report.protocol.startswith("http"):
            name = name.partition("?")[0]
        copy = folder / (report.parent.name or "report") / name
        copy.parent.mkdir(exist_ok=True)
        with reachable(report, ReportError):
            _copy(report, copy, progress)
        try:
            yield copy
        except ReportError as error:
            if error.path != copy:
                raise
            raise ReportError(report, error.problem, error.remedy.replace(str(copy), str(report))) from None


def _copy(report: UPath, copy: Path, progress: Progress) -> None:
    from fsspec.callbacks import Callback  # noqa: PLC0415 - brought by extras

    def on_progress(size: int | None, value: int, **_: object) -> None:
        if size:
            progress(BRINGING, min(1.0, value / size))

    callback = Callback(hooks={"progress": on_progress})
    fs, path = report.fs, report.path
    about: dict[str, Any] = fs.info(path)
    if about["type"] == "directory":
        fs.get(path.rstrip("/"), f"{copy}/", recursive=True, callback=callback)
        return
    size = about.get("size")
    fs.get_file(path, str(copy), callback=callback)
    if size is not None and copy.stat().st_size != size:
        raise EOFError(f"{copy.stat().st_size} of {size} bytes came")


@contextmanager
def temp_dir(prefix: str = "tracekit-", parent: Path | str | None = None) -> Iterator[Path]:
    """An empty folder that is removed when the block ends, and by the next one like it if this process is killed."""
    above = Path(parent or tempfile.gettempdir())
    remove_stale(above, prefix)
    folder = above / f"{prefix}{owned()}"
    try:
        folder.mkdir(mode=0o700)
        yield folder
    finally:
        with stops_held():
            shutil.rmtree(folder, ignore_errors=True)


def remove_stale(above: Path, prefix: str) -> None:
    """Removes what killed processes left in a folder under names that begin so."""
    with suppress(OSError):
        for left in [path for path in above.iterdir() if path.name.startswith(prefix)]:
            owner = _OWNER.fullmatch(left.name.removeprefix(prefix))
            if owner is not None and _is_stale(left, owner[1], int(owner[2])):
                shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)


def _is_stale(folder: Path, machine: str, process: int) -> bool:
    if machine == this_machine():
        import psutil  # noqa: PLC0415 - rarely is there anything

        return not psutil.pid_exists(process)
    latest = folder.stat().st_mtime
    for path in folder.rglob("*"):
        with suppress(OSError):
            latest = max(latest, path.stat().st_mtime)
    return latest < time.time() - _LEFT_ALONE_S

"""Brings a report at a URL to this machine while it is read: SQLite and nsys know only files."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracekit.errors import ReportError
from tracekit.storage.failures import reachable
from tracekit.storage.left_behind import passing_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from upath import UPath

    from tracekit.progress import Progress
    from tracekit.storage.locations import Location

#: The stage that progress names.
BRINGING = "bringing"


@contextmanager
def brought(report: Location, progress: Progress, scratch: str | None = None) -> Iterator[Path]:
    """A path of this machine where the report can be read during the block; one at a URL is copied there.

    The copy has the report's name, and its folder the name of the report's folder, for ranks and names are read from
    them. It is removed at the end of the block, and errors about it name the URL.

    Args:
        report: The report.
        progress: Called with the share that is there.
        scratch: The folder that copies go into; by default that of temporary files.

    Raises:
        ReportError: If the report cannot be reached.
    """
    if isinstance(report, Path):
        yield report
        return
    with passing_folder("tracekit-report-", scratch) as folder:
        copy = folder / (report.parent.name or "report") / name_of(report)
        copy.parent.mkdir(exist_ok=True)
        with reachable(report, ReportError):
            _copy(report, copy, progress)
        try:
            yield copy
        except ReportError as error:
            if error.path != copy:
                raise
            raise ReportError(report, error.problem, error.remedy.replace(str(copy), str(report))) from None


def name_of(report: UPath) -> str:
    """The last part of a URL's path; what follows a question mark may be a key and is no name."""
    name: str = report.path.rstrip("/").rpartition("/")[2]
    return name.partition("?")[0] if report.protocol.startswith("http") else name


def _copy(report: Any, copy: Path, progress: Progress) -> None:  # noqa: ANN401 - a path of an optional library
    from fsspec.callbacks import Callback  # noqa: PLC0415 - brought by extras

    def tell(size: int | None, value: int, **_: object) -> None:
        if size:
            progress(BRINGING, min(1.0, value / size))

    told = Callback(hooks={"progress": tell})
    fs, path = report.fs, report.path
    about = fs.info(path)
    if about["type"] == "directory":
        fs.get(path.rstrip("/"), f"{copy}/", recursive=True, callback=told)
        return
    size = about.get("size")
    fs.get_file(path, str(copy), callback=told)
    if size is not None and copy.stat().st_size != size:
        raise EOFError(f"{copy.stat().st_size} of {size} bytes came")

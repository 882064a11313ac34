"""Opens what people name, a dataset or a report in its place, which is parsed first, as they hold it in notebooks.

Reading reports is loaded only for a report, and views when they are used, so that opening a dataset imports neither
pandas nor rich.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tracekit.dataset import opening
from tracekit.dataset.manifest import MANIFEST, read
from tracekit.dataset.opening import SUFFIX
from tracekit.errors import DatasetError
from tracekit.progress import Progress, no_progress
from tracekit.storage.locations import Given, Location, location

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

    from tracekit.views.inline import Page


class Dataset(opening.Dataset):
    """A dataset on disk, or the part of it that belongs to one module's subtree, which also answers questions.

    ``dataset.kernels()`` and the other tables give DataFrames, ``dataset.table("kernels")`` gives Arrow. In a dataset
    of several reports, the rows of each report follow one another, sorted within the report, with a column ``report``;
    ``modules`` is one table for all. If another parse replaces the dataset after it was opened, reading is refused.
    """

    def ask(self, question: str, *, path: str | None = None, by: str | None = None, **options: Any) -> pd.DataFrame:  # noqa: ANN401
        """The answer of a question as a DataFrame, with units in the names of its columns.

        Args:
            question: Its name; ``tracekit.questions()`` lists them.
            path: Only this module, or those of a pattern (``top.layers.*``), and those below; shares are of their time.
            by: ``rank``, ``report`` or ``host``: the figures of each of them, side by side.
            options: Options of the question, such as ``dtype="bfloat16"`` of ``roofline``.

        Raises:
            UsageError: If there is no such question, or it has no such option.
            DatasetError: If the dataset has no such module.
        """
        from tracekit.views import inline  # noqa: PLC0415 - takes pandas

        return inline.ask(self, question, path, by, options)

    def html(self, height: int = 720) -> Page:
        """The page that ``tracekit html`` writes, for a notebook to show in a frame of so many pixels."""
        from tracekit.views import inline  # noqa: PLC0415 - as above

        return inline.inline_page(self, height)

    def _repr_html_(self) -> str:
        from tracekit.views import inline  # noqa: PLC0415 - as above

        return inline.as_html(self)


class Found(NamedTuple):
    """The place of a dataset, and whether a report was parsed into it just now."""

    place: Location
    is_new: bool


def load(given: Given, *, progress: Progress = no_progress) -> Dataset:
    """Opens a dataset in a folder or at a URL, or the dataset of a report.

    Args:
        given: A dataset; or a report on this machine, as :func:`tracekit.parse` takes it. Its dataset is the one next
            to it, with the suffix ``.tracekit``. It is made if it does not exist, and again if the report has changed.
        progress: Called with each stage of parsing and the share of it that is done.

    Raises:
        DatasetError: If it is not a dataset, the dataset of another report is in the place of this one's, or the URL
            cannot be reached.
        ReportError: If it is not a dataset or a report that can be read.
        UsageError: If what is needed for URLs of this kind is not installed.
    """
    return Dataset(dataset_of(given, progress).place)


def dataset_of(given: Given, progress: Progress = no_progress) -> Found:
    """Where the dataset is that :func:`load` opens, after its report was parsed if need be."""
    place = location(given)
    if not isinstance(place, Path) or not place.exists() or place.suffix == SUFFIX or (place / MANIFEST).exists():
        return Found(place, is_new=False)
    return _of_report(place, progress)


def _of_report(report: Path, progress: Progress) -> Found:
    from tracekit.dataset.writing import default_folder  # noqa: PLC0415 - only for reports, as all below
    from tracekit.pipeline import parse  # noqa: PLC0415
    from tracekit.readers import holding_reports, is_report, reader_for  # noqa: PLC0415

    if report.is_dir() and not is_report(report):
        if several := holding_reports(report):
            raise several
        return Found(report, is_new=False)  # opening it will show what it lacks
    reader_for(report)  # a file that is no report gets an error about itself, not about a place next to it
    folder, command = default_folder(report), f"tracekit parse {shlex.quote(str(report))}"
    fields = _manifest_there(folder, command)
    if fields is not None and _is_unchanged(report, fields):
        return Found(folder, is_new=False)
    if fields is not None and (problem := _why_to_keep(report, fields)):
        raise DatasetError(folder, problem, f"{command} --force replaces it, -o DATASET takes another place")
    try:
        parse(report, folder, force=fields is not None, progress=progress)
    except DatasetError as error:
        if fields is None and _is_unchanged(report, _manifest_there(folder, command) or {}):
            return Found(folder, is_new=False)  # of a command that ran at the same time
        raise DatasetError(error.path, error.problem, f"{error.remedy}: {command} -o DATASET") from None
    return Found(folder, is_new=True)


def _manifest_there(folder: Path, command: str) -> Mapping[str, Any] | None:
    if not folder.exists() and not folder.is_symlink():
        return None
    try:
        return read(folder)
    except DatasetError as error:
        remedy = f"{command} --force replaces a dataset, -o DATASET takes another place"
        raise DatasetError(folder, error.problem, remedy) from None


def _is_unchanged(report: Path, fields: Mapping[str, Any]) -> bool:
    from tracekit.readers.base import sha256_of  # noqa: PLC0415

    source = fields.get("source", {})  # none in a dataset of several reports
    if report.is_file() and report.stat().st_size != source.get("size_bytes"):
        return False
    return bool(source.get("sha256") == sha256_of(report))


def _why_to_keep(report: Path, fields: Mapping[str, Any]) -> str | None:
    """Why a dataset is not replaced: only what was made of an earlier state of the report, without options, is."""
    from tracekit.markers.base import AUTO  # noqa: PLC0415

    place = report.absolute()
    if (fields.get("folder"), fields.get("source", {}).get("name")) != (place.parent.name, place.name):
        return f"is not the dataset of {report}"
    has_options = fields["hierarchy"]["asked"] != AUTO or fields.get("like") or fields.get("graph_captures")
    return f"was parsed with options from {report}, which has changed" if has_options else None

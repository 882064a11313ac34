"""From reports to a dataset: one report, or several side by side. Start reading here."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.dataset.manifest import MANIFEST
from tracekit.dataset.opening import load
from tracekit.dataset.publishing import published
from tracekit.dataset.writing import default_folder, writing
from tracekit.errors import DatasetError, ReportError, UsageError
from tracekit.markers.kinds import AUTO, HIERARCHIES
from tracekit.pipeline.adding import Added, add as add_reports
from tracekit.pipeline.one import Wishes, tables_of
from tracekit.pipeline.several import parse_several
from tracekit.progress import silent
from tracekit.readers import reader_for
from tracekit.storage.local_copies import brought
from tracekit.storage.locations import expanded, is_remote, location

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.dataset.opening import Dataset
    from tracekit.progress import Progress
    from tracekit.storage.locations import Given, Location


def parse(  # noqa: PLR0913 - each is a choice of the user's
    report: Given | Sequence[Given],
    out: Given | None = None,
    *,
    by: str = AUTO,
    graph_captures: Sequence[str | os.PathLike[str]] = (),
    force: bool = False,
    add: bool = False,
    progress: Progress = silent,
) -> Dataset:
    """Reads a report, or several, and writes one dataset.

    Args:
        report: A report of Nsight Systems (its own format, a SQLite export or a folder of tables), of nvprof or of
            torch.profiler, or several of one run, such as one per rank. Reports are read side by side and never
            changed. A report may be at a URL that fsspec knows, such as ``s3://runs/rank0.sqlite``, and a pattern
            such as ``rank*.sqlite`` stands for all that match it.
        out: Folder of the dataset, or a URL; for one report, by default its path with the suffix ``.tracekit``.
        by: What the hierarchy shall be keyed by: ``modules``, ``ranges`` (plain NVTX ranges) or ``operators``;
            ``auto`` takes modules if any is marked in the report, else plain ranges, else operators.
        graph_captures: Chrome traces in which the CUDA graphs of a report were captured, or folders of such, where the
            report itself was recorded later. Each joins the report of its process and rank.
        force: Whether an existing dataset may be replaced; with ``add``, a report of it whose file has changed.
        add: Whether the reports are added to the dataset ``out``, if there is one. A report that is in it already,
            unchanged, is skipped; the others of the dataset are not read again.
        progress: Called with each stage and the share of it that is done; with several reports, with each report.

    Returns:
        The finished dataset.

    Raises:
        ReportError: If the report cannot be read.
        ReportsError: If some of several reports cannot be read; the dataset then holds the others.
        DatasetError: If the dataset cannot be written.
        UsageError: If there is no report, one is given twice, ``out`` is missing with several or with ``add``, or
            ``by`` is none of these.
    """
    wishes = Wishes(by=by, graph_captures=tuple(map(Path, graph_captures)))
    return parse_new(report, out, wishes, force=force, add=add, progress=progress).dataset


def parse_new(
    report: Given | Sequence[Given], out: Given | None, wishes: Wishes, *, force: bool, add: bool, progress: Progress
) -> Added:
    """As :func:`parse`; also tells which reports were skipped."""
    if wishes.by not in HIERARCHIES:
        raise UsageError(f"a hierarchy is keyed by {', '.join(HIERARCHIES)}, not by {wishes.by!r}")
    one = isinstance(report, str | os.PathLike) or not hasattr(report, "__iter__")
    reports = expanded([report] if one else report, ReportError)  # type: ignore[arg-type]
    wishes = replace(wishes, required=len(reports) == 1)
    if out is None:
        if add:
            raise UsageError("reports are added to a dataset; name its folder with -o")
        if any(map(is_remote, reports)):
            raise UsageError("reports at URLs become a dataset where you want it; name it with -o")
        return _parsed(reports, None, wishes, force=force, progress=progress)
    place = location(out)
    if isinstance(place, Path):
        call = add_reports if add and place.exists() else _parsed
        return call(reports, place, wishes, force=force, progress=progress)
    if add:
        raise DatasetError(place, "is at a URL, where no reports can be added", "add them to a copy on this machine")
    with published(place, force=force, progress=progress) as folder:
        _parsed(reports, folder, wishes, force=False, progress=progress)
    return Added(load(place), [])


def _parsed(reports: Sequence[Location], out: Path | None, wishes: Wishes, *, force: bool, progress: Progress) -> Added:
    """One report, or several, as a new dataset on this machine."""
    if len(reports) != 1:
        return Added(parse_several(reports, out, wishes, force=force, progress=progress), [])
    with brought(reports[0], progress) as path:
        reader = reader_for(path)
        folder = out or default_folder(path)
        with writing(folder, force=force) as (partial, place):
            tables_of(path, reader, partial, progress, wishes)
    # As the caller named it, unless that path led through the folder which has just been replaced.
    return Added(load(folder if (folder / MANIFEST).exists() else place), [])

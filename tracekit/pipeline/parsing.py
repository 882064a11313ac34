"""From reports to a dataset: one report, or several side by side. Start reading here."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.dataset.manifest import MANIFEST
from tracekit.dataset.opening import load
from tracekit.dataset.publishing import is_there, published
from tracekit.dataset.sending import names_sent
from tracekit.dataset.writing import default_folder, writing
from tracekit.errors import ReportError, UsageError
from tracekit.markers.kinds import AUTO, HIERARCHIES
from tracekit.pipeline.any_size import tables_of_any_size
from tracekit.pipeline.one import Wishes
from tracekit.pipeline.run import Parsed, Run, Target
from tracekit.progress import silent
from tracekit.readers import reader_for
from tracekit.storage.local_copies import brought
from tracekit.storage.locations import expanded, is_remote, location

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import TypeIs

    from tracekit.dataset.opening import Dataset
    from tracekit.progress import Progress
    from tracekit.storage.locations import Given, Location


def parse(  # noqa: PLR0913 - what can be asked, by name
    report: Given | Sequence[Given],
    out: Given | None = None,
    *,
    by: str = AUTO,
    graph_captures: Sequence[str | os.PathLike[str]] = (),
    force: bool = False,
    add: bool = False,
    scheduler: str | None = None,
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
        scheduler: Address of the scheduler of a Dask cluster that shall read the reports, such as
            ``tcp://10.0.0.1:8786``, whose workers must see them at the same paths; ``here`` for this process alone. By
            default, several reports are read by processes of this machine.
        progress: Called with each stage and the share of it that is done; with several reports, with each report.

    Returns:
        The finished dataset.

    Raises:
        ReportError: If the report cannot be read.
        ReportsError: If some of several reports cannot be read; the dataset then holds the others.
        DatasetError: If the dataset cannot be written.
        TracekitError: If the cluster cannot be used.
        UsageError: If there is no report, one is given twice, ``out`` is missing with several or with ``add``, or
            ``by`` or ``scheduler`` is none of these.
    """
    wishes = Wishes(by=by, graph_captures=tuple(map(Path, graph_captures)))
    run = Run(force=force, add=add, scheduler=scheduler, progress=progress)
    return parse_new(report, out, wishes, run).dataset


def parse_new(report: Given | Sequence[Given], out: Given | None, wishes: Wishes, run: Run) -> Parsed:
    """As :func:`parse`; also tells which reports were skipped."""
    if wishes.by not in HIERARCHIES:
        raise UsageError(f"a hierarchy is keyed by {', '.join(HIERARCHIES)}, not by {wishes.by!r}")
    reports = expanded(report if _are_several(report) else [report], ReportError)
    wishes = replace(wishes, required=len(reports) == 1)
    if out is None:
        if run.add:
            raise UsageError("reports are added to a dataset; name its folder with -o")
        if any(map(is_remote, reports)):
            raise UsageError("reports at URLs become a dataset where you want it; name it with -o")
        return _parsed(reports, None, wishes, run)
    place = location(out)
    if isinstance(place, Path):
        parse_into = _added if run.add and place.exists() else _parsed
        return parse_into(reports, place, wishes, run)
    if run.add and is_there(place):
        return _added(reports, place, wishes, run)
    target = Target(place, set())
    with published(place, target.put, force=run.force, progress=run.progress) as folder:
        _parsed(reports, folder, wishes, replace(run, force=False, target=target))
    return Parsed(load(place), [])


def _are_several(report: Given | Sequence[Given]) -> TypeIs[Sequence[Given]]:
    return not isinstance(report, str | os.PathLike) and hasattr(report, "__iter__")


def _parsed(reports: Sequence[Location], out: Path | None, wishes: Wishes, run: Run) -> Parsed:
    """One report, or several, as a new dataset on this machine."""
    if len(reports) != 1:
        from tracekit.pipeline.several import parse_several  # noqa: PLC0415 - one report needs no engine

        return parse_several(reports, out, wishes, run)
    parse_one = _parsed_here if run.scheduler is None else _parsed_away
    return Parsed(parse_one(reports[0], out, wishes, run), [])


def _parsed_here(report: Location, out: Path | None, wishes: Wishes, run: Run) -> Dataset:
    """One report parsed in this process."""
    with brought(report, run.progress) as path:
        reader = reader_for(path)
        folder = out or default_folder(path)
        with writing(folder, force=run.force) as (partial, place):
            tables_of_any_size(path, reader, partial, run.progress, wishes)
    return _loaded(folder, place)


def _parsed_away(report: Location, out: Path | None, wishes: Wishes, run: Run) -> Dataset:
    """One report parsed by an engine.

    Raises:
        ReportError: If the report cannot be read.
    """
    from tracekit.pipeline.side_by_side import Wanted, parsed_side_by_side  # noqa: PLC0415 - rarely asked for

    folder = out or default_folder(Path(str(report)))
    with writing(folder, force=run.force) as (partial, place):
        destination = run.sent_to(None)
        wanted = Wanted(report.name, report, partial, wishes, destination)
        for _, error in parsed_side_by_side([wanted], run.scheduler, run.progress):
            if error is not None:
                raise error
            if run.target is not None and destination is not None:
                run.target.put.update(names_sent(partial, destination))
    return _loaded(folder, place)


def _loaded(folder: Path, place: Path) -> Dataset:
    """A new dataset as the caller named it, unless that path led through the folder which has just been replaced."""
    return load(folder if (folder / MANIFEST).exists() else place)


def _added(reports: Sequence[Location], folder: Location, wishes: Wishes, run: Run) -> Parsed:
    """Further reports in a dataset."""
    from tracekit.pipeline.adding import add  # noqa: PLC0415 - as above

    return add(reports, folder, wishes, run)

"""From reports to a dataset: one report, or several side by side. Start reading here."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from typing_extensions import TypeIs

from tracekit.dataset.opening import Dataset, load
from tracekit.dataset.writing import as_named, default_folder, published, writing
from tracekit.errors import ReportError, UsageError
from tracekit.markers.base import AUTO, HIERARCHIES, MODULES
from tracekit.pipeline.processes import write_tables
from tracekit.pipeline.stages import ParseOptions, Run
from tracekit.progress import Progress, no_progress
from tracekit.readers import reader_for
from tracekit.storage.local_copies import local_copy
from tracekit.storage.locations import Given, Location, expanded, is_remote, location
from tracekit.unmarked import reference


def parse(  # noqa: PLR0913 - what can be asked, by name
    report: Given | Sequence[Given],
    out: Given | None = None,
    *,
    rows: str = AUTO,
    graph_captures: Sequence[str | os.PathLike[str]] = (),
    like: Sequence[Given] = (),
    collectives: Sequence[str] = (),
    force: bool = False,
    scheduler: str | None = None,
    progress: Progress = no_progress,
) -> Dataset:
    """Reads a report, or several, and writes one dataset.

    Args:
        report: A report of Nsight Systems (its own format, a SQLite export or a folder of tables), of nvprof or of
            torch.profiler, or several of one run, such as one per rank. Reports are read side by side and never
            changed. A report may be at a URL that fsspec knows, such as ``s3://runs/rank0.sqlite``, and a pattern
            such as ``rank*.sqlite`` stands for all that match it.
        out: Folder of the dataset, or a URL; for one report, by default its path with the suffix ``.tracekit``.
        rows: What the hierarchy is made of: ``modules``, ``ranges`` (plain NVTX ranges) or ``operators``;
            ``auto`` takes modules if any is marked in the report, else plain ranges, else operators.
        graph_captures: Chrome traces in which the CUDA graphs of a report were captured, or folders of such, where the
            report itself was recorded later. Each joins the report of its process and rank.
        like: Datasets of marked runs of the same model: work without a module gets that of its certain counterpart
            there.
        collectives: Names of kernels that communicate, beside those of known libraries; ``*`` and ``?`` are wildcards.
        force: Whether an existing dataset may be replaced.
        scheduler: Address of the scheduler of a Dask cluster that shall read the reports, such as
            ``tcp://10.0.0.1:8786``, whose workers must see them at the same paths; ``here`` for this process only. By
            default, several reports are read by processes of this machine.
        progress: Called with each stage and the share of it that is done; with several reports, with each report.

    Returns:
        The finished dataset.

    Raises:
        ReportError: If the report cannot be read.
        ReportsError: If some of several reports cannot be read; the dataset then holds the others.
        DatasetError: If the dataset cannot be written.
        TracekitError: If the cluster cannot be used.
        UsageError: If there is no report, one is given twice, ``out`` is missing with several, or ``rows`` or
            ``scheduler`` is none of these.
    """
    if rows not in HIERARCHIES:
        raise UsageError(f"rows are {', '.join(HIERARCHIES)}, not {rows!r}")
    if like and rows not in {AUTO, MODULES}:
        raise UsageError(f"a marked run (like) gives modules, not {rows}: leave out one of the two")
    reports = expanded(report if _are_several(report) else [report], ReportError)
    options = ParseOptions(
        rows=MODULES if like else rows,
        graph_captures=tuple(map(Path, graph_captures)),
        required=len(reports) == 1,
        like=tuple(map(reference, like)),
        collectives=tuple(collectives),
    )
    run = Run(force=force, scheduler=scheduler, progress=progress)
    if out is None:
        if any(map(is_remote, reports)):
            raise UsageError("reports at URLs become a dataset where you want it; name it with -o")
        return _parsed(reports, None, options, run)
    place = location(out)
    if isinstance(place, Path):
        return _parsed(reports, place, options, run)
    with published(place, run.progress, force=run.force) as folder:
        _parsed(reports, folder, options, replace(run, force=False))
    return load(place)


def _are_several(report: Given | Sequence[Given]) -> TypeIs[Sequence[Given]]:
    return not isinstance(report, str | os.PathLike) and hasattr(report, "__iter__")


def _parsed(reports: Sequence[Location], out: Path | None, options: ParseOptions, run: Run) -> Dataset:
    if len(reports) != 1 or run.scheduler is not None:
        from tracekit.pipeline.several import parse_several  # noqa: PLC0415 - one report needs no engine

        return parse_several(reports, out, options, run)
    with local_copy(reports[0], run.progress) as path:
        reader = reader_for(path)
        folder = out or default_folder(path)
        with writing(folder, force=run.force) as (partial, place):
            write_tables(path, reader, partial, run.progress, options, None)
    return load(as_named(folder, place))

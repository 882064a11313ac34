"""From reports to a dataset: one report, or several side by side. Start reading here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.dataset.manifest import MANIFEST
from tracekit.dataset.opening import load
from tracekit.dataset.writing import default_folder, writing
from tracekit.errors import UsageError
from tracekit.markers.kinds import AUTO, HIERARCHIES
from tracekit.pipeline.one import Wishes, tables_of
from tracekit.progress import silent
from tracekit.readers import reader_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.dataset.opening import Dataset
    from tracekit.progress import Progress


def parse(  # noqa: PLR0913 - what can be asked, by name
    report: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str] | None = None,
    *,
    by: str = AUTO,
    graph_captures: Sequence[str | os.PathLike[str]] = (),
    force: bool = False,
    scheduler: str | None = None,
    progress: Progress = silent,
) -> Dataset:
    """Reads a report, or several, and writes one dataset.

    Args:
        report: A report of Nsight Systems (its own format, a SQLite export or a folder of tables), of nvprof or of
            torch.profiler, or several of one run, such as one per rank. Reports are read side by side and never
            changed.
        out: Folder of the dataset; for one report, by default its path with the suffix ``.tracekit``.
        by: What the hierarchy shall be keyed by: ``modules``, ``ranges`` (plain NVTX ranges) or ``operators``;
            ``auto`` takes modules if any is marked in the report, else plain ranges, else operators.
        graph_captures: Chrome traces in which the CUDA graphs of a report were captured, or folders of such, where the
            report itself was recorded later. Each joins the report of its process and rank.
        force: Whether an existing dataset may be replaced.
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
        UsageError: If there is no report, one is given twice, ``out`` is missing with several, or ``by`` or
            ``scheduler`` is none of these.
    """
    if by not in HIERARCHIES:
        raise UsageError(f"a hierarchy is keyed by {', '.join(HIERARCHIES)}, not by {by!r}")
    paths = [Path(report)] if isinstance(report, str | os.PathLike) else [*map(Path, report)]
    wishes = Wishes(by=by, graph_captures=tuple(map(Path, graph_captures)), required=len(paths) == 1)
    if len(paths) != 1:
        from tracekit.pipeline.several import parse_several  # noqa: PLC0415 - one report needs no engines

        return parse_several(paths, out, wishes, force=force, scheduler=scheduler, progress=progress)
    [path] = paths
    reader = reader_for(path) if scheduler is None else None
    folder = Path(out) if out is not None else default_folder(path)
    with writing(folder, force=force) as (partial, place):
        if reader is not None:
            tables_of(path, reader, partial, progress, wishes)
        else:
            _parse_away(path, partial, wishes, scheduler, progress)
    # As the caller named it, unless that path led through the folder which has just been replaced.
    return load(folder if (folder / MANIFEST).exists() else place)


def _parse_away(report: Path, folder: Path, wishes: Wishes, scheduler: str | None, progress: Progress) -> None:
    """Lets a cluster parse one report.

    Raises:
        ReportError: If the report cannot be read.
    """
    from tracekit.pipeline.side_by_side import Wanted, parsed_side_by_side  # noqa: PLC0415 - see above

    wanted = Wanted(report.name, report, folder, wishes)
    for _, error in parsed_side_by_side([wanted], scheduler, progress):
        if error is not None:
            raise error

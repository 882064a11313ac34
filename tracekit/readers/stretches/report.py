"""Cuts an SQLite export of Nsight Systems into stretches, in two passes over its large tables."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from tracekit.readers.nsight.report import of_nsight, requests_of_report
from tracekit.readers.nsight.work import WORK_TABLES
from tracekit.readers.rows.credible import FARTHEST_NS, LAST_NS
from tracekit.readers.sqlite.bulk import BulkReader
from tracekit.readers.sqlite.file import SqliteFile
from tracekit.readers.sqlite.pages import NotPlain
from tracekit.readers.sqlite.pieces import pieces
from tracekit.readers.stretches.cuts import chosen
from tracekit.readers.stretches.dealing import Dealing, Files
from tracekit.readers.stretches.source import StretchSource
from tracekit.readers.stretches.survey import NotCuttable, Survey, has
from tracekit.readers.stretches.texts import Fixed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    import pyarrow as pa

    from tracekit.arrays.types import Flags
    from tracekit.readers.requests import Request
    from tracekit.readers.stretches.dealing import Times

#: Tables of which a stretch would need the rows of all others.
_WHOLE = {
    "graph_events": "records of CUDA graphs",
    "node_events": "records of the nodes of CUDA graphs",
    "graph": "CUDA graphs traced as a whole",
    "operators": "operators of the embedded recorder",
}
#: Work rows of each table are numbered from a multiple of this.
_TABLE = 1 << 40


@contextmanager
def stretches_of(
    path: Path, folder: Path, ask: Callable[[list[str]], Flags], most: int, progress: Callable[[float], None]
) -> Iterator[list[StretchSource]]:
    """The stretches of a report; their rows are in the folder, which the caller removes.

    Args:
        path: The report.
        folder: Where their rows are written.
        ask: Which of some texts are those of ranges in which it must not be cut; raises ``NotCuttable`` if there is
            one that makes stretches depend on each other.
        most: About so many ranges and API calls shall be in a stretch.
        progress: Called with the share that is done.

    Raises:
        NotCuttable: If the report must be worked on as a whole.
    """
    file = SqliteFile(path)
    if not of_nsight(file.tables):
        raise NotCuttable("another format than Nsight's")
    if file.lacks:
        raise NotCuttable("changes in a log of SQLite's")
    requests = requests_of_report()
    whole = BulkReader(file)
    strings = whole.read({"strings": requests.pop("strings")}, lambda _: None)["strings"]
    try:
        survey = _surveyed(file, requests, Fixed(strings, ask), lambda share: progress(0.5 * share))
        cuts = chosen(survey.processes, most)
        if cuts.stretches == 1:
            raise NotCuttable("no place at which to cut")
        with Files(folder) as files:
            dealing = Dealing(cuts, files)
            _deal(file, requests, dealing, lambda share: progress(0.5 + 0.5 * share))
    except NotPlain:
        raise NotCuttable("values that only SQLite itself can read") from None
    _check_times(dealing.times)
    yield [StretchSource(whole, strings, folder, cuts, number) for number in range(cuts.stretches)]


def _surveyed(
    file: SqliteFile, requests: Mapping[str, Request], fixed: Fixed, progress: Callable[[float], None]
) -> Survey:
    survey = Survey(fixed)
    for rows in pieces(file, requests["nvtx"], lambda share: progress(share / 2)):
        survey.add_ranges(rows)
    for rows in pieces(file, requests["runtime"], lambda share: progress(0.5 + share / 2)):
        survey.add_calls(rows)
    return survey


def _deal(
    file: SqliteFile, requests: Mapping[str, Request], dealing: Dealing, progress: Callable[[float], None]
) -> None:
    for name, what in _WHOLE.items():
        if any(rows.num_rows for rows in pieces(file, requests[name], lambda _: None)):
            raise NotCuttable(what)
    for rows in pieces(file, requests["nvtx"], lambda share: progress(share / 3)):
        dealing.ranges(rows)
    for rows in pieces(file, requests["runtime"], lambda share: progress((1 + share) / 3)):
        _check(rows, ("start", "end"))
        dealing.calls(rows)
    for table, name in enumerate(WORK_TABLES):
        row = table * _TABLE
        for rows in pieces(file, requests[name], lambda share: progress((2 + share) / 3)):
            _check(rows, ("start", "end"))
            _check_graphs(rows)
            dealing.work(name, rows, row)
            row += rows.num_rows


def _check(rows: pa.Table, columns: tuple[str, ...]) -> None:
    if any(rows.column(column).null_count for column in columns):
        raise NotCuttable("rows without a time")


def _check_graphs(rows: pa.Table) -> None:
    """Replayed work needs what was recorded when its graph was captured."""
    named = "graphNodeId" in rows.column_names and rows.column("graphNodeId").null_count < rows.num_rows
    if named and not bool((has(rows, "graphNodeId", 0) | np.asarray(rows.column("graphNodeId").is_null())).all()):
        raise NotCuttable("work replayed from CUDA graphs")


def _check_times(times: Times) -> None:
    """Which times are absurd, only a look at all rows tells."""
    if times.last - times.first > FARTHEST_NS or max(map(abs, times)) >= LAST_NS:
        raise NotCuttable("times that are months or years apart")

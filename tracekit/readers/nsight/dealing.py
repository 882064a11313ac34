"""Deals the rows of a large report to its processes, so that each can be processed separately, in little memory.

Pieces of the tables are decoded by as many tasks as one likes. Each writes an Arrow file that has a record batch for
each process, in the order of the rows; whoever works on a process maps its batches. What does not depend on the
process, such as the texts, is in one batch for all. Small tables stay in the report.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tracekit.arrays.types import Ints
from tracekit.nsight import tables as nsight
from tracekit.readers.nsight.losses import HeldEvents, lacking, missing_data, reported_losses
from tracekit.readers.nsight.report import requests_of_report, tables_at
from tracekit.readers.nsight.waiting import WAITING_TABLES
from tracekit.readers.rows import are_plausible, bounds_of
from tracekit.readers.source import ENCODED, Request
from tracekit.recording.provenance import MissingData

#: Processes with fewer rows are worked on together with others.
LEAST_ROWS = 200_000
#: A report of more processes, most of which have next to nothing, is read as a whole.
MOST_PROCESSES = 1_024
#: The second largest process has at least this share of what the sample of a report shows.
_LEAST_SHARE = 1 / 16
#: So many pages or row groups of each piece are a sample of it.
_SAMPLED = 32
#: Tables that belong to no process, and those that name processes which may have nothing else.
_SHARED = "strings"
_ASIDE = (_SHARED, *WAITING_TABLES)
#: Reports of the embedded recorder have one process, and figures of their own.
_OF_RECORDER = {nsight.RECORDER.name, nsight.OPERATORS.name}


class DealtFile(NamedTuple):
    """A file of rows of one table.

    Attributes:
        processes: The process of each of its record batches: a ``globalPid``, 0 for rows that name none.
        rows: How many rows are in each.
        place: The first and the last place of the rows in their table.
        beyond: Number of values that were too large for their column and became null.
        bounds: The earliest and the latest times.
    """

    file: Path
    processes: tuple[int, ...]
    rows: tuple[int, ...]
    place: tuple[int, int]
    beyond: int
    bounds: tuple[int, ...]


def has_several_processes(tables: Path) -> bool:
    """Whether at least two processes have much of the work, as a sample of it shows."""
    source = tables_at(tables)
    held = [request for request in _by_work() if request.table.name in source.tables]
    if not held or not _OF_RECORDER.isdisjoint(source.tables):
        return False
    key = _key(held[0])
    request = Request(held[0].table, {key: ENCODED})
    counts: dict[int, int] = {}
    for which in source.pieces(request) or ():
        piece = source.piece(request, which[:: max(1, len(which) // _SAMPLED)])
        if piece is None:
            return False
        _, processes, rows = _by_process(piece.rows, key)
        for process, number in zip(processes, rows, strict=True):
            counts[process] = counts.get(process, 0) + number
    return len(counts) > 1 and sorted(counts.values())[-2] >= _LEAST_SHARE * sum(counts.values())


def _by_work() -> list[Request]:
    requests = requests_of_report()
    return [requests[name] for name in ("kernel", "runtime", "nvtx")]


def _key(request: Request) -> str:
    return "globalTid" if "globalTid" in request.columns else "globalPid"


def readings(tables: Path) -> list[tuple[str, Any]]:
    """The pieces of all large tables: our name of the table, and which piece; None is the whole table."""
    source = tables_at(tables)
    return [
        (name, which)
        for name, request in requests_of_report().items()
        if request.table.name in source.tables
        for which in source.pieces(request) or [None]
    ]


def deal(tables: Path, reading: tuple[str, Any], file: Path, share: Callable[[float], None]) -> DealtFile | None:
    """Deals one piece into a file; nothing if its table can only be read whole."""
    name, which = reading
    request, source = requests_of_report()[name], tables_at(tables)
    if which is None:
        rows, place, beyond = source.read({name: request}, share)[name], (0, -1), source.beyond
    else:
        piece = source.piece(request, which)
        if piece is None:
            return None
        rows, place, beyond = piece
    rows = rows.unify_dictionaries().combine_chunks()
    bounds = (*bounds_of(rows),)
    order, processes, numbers = _by_process(rows, "" if name == _SHARED else _key(request))
    rows = rows if order is None else rows.take(pa.array(order))
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
        ends = np.cumsum([0, *numbers]).tolist()
        for start, end in pairwise(ends):
            writer.write_table(rows.slice(start, end - start))
    return DealtFile(file, tuple(processes), tuple(numbers), place, beyond, bounds)


def _by_process(rows: pa.Table, key: str) -> tuple[Ints | None, list[int], list[int]]:
    if not rows.num_rows:
        return None, [], []
    if key not in rows.column_names:
        return None, [0], [rows.num_rows]
    column = rows.column(key).unify_dictionaries().combine_chunks()
    values = np.append(np.asarray(column.dictionary, dtype=np.int64) & nsight.PROCESS_MASK, 0)
    processes, code = np.unique(values, return_inverse=True)
    of_row = code.astype(np.uint16 if processes.size <= 1 << 16 else np.int64)[
        np.asarray(column.indices.fill_null(values.size - 1))
    ]
    numbers = np.bincount(of_row, minlength=processes.size)
    used = np.flatnonzero(numbers)
    order = np.argsort(of_row, kind="stable") if used.size > 1 else None
    return order, processes[used].tolist(), numbers[used].tolist()


class Dealt(NamedTuple):
    """A report whose rows are dealt: where its small tables are, and the files of each large one in their order."""

    tables: Path
    files: Mapping[str, Sequence[DealtFile]]

    @property
    def processes(self) -> list[int]:
        """All processes in order."""
        return sorted({process for _, file in self._dealt() for process in file.processes})

    @property
    def stays_whole(self) -> bool:
        """Whether its processes depend on each other: machines share their ids, or times must be compared."""
        pids = [process >> nsight.THREAD_BITS & nsight.ID_MASK for process in self.processes]
        bounds = [bound for _, file in self._dealt() for bound in file.bounds]
        return len(pids) > MOST_PROCESSES or len({*pids}) < len(pids) or not are_plausible(bounds)

    @property
    def rows(self) -> dict[int, int]:
        """How many rows each process has."""
        rows = dict.fromkeys(self.processes, 0)
        for _, file in self._dealt():
            for process, number in zip(file.processes, file.rows, strict=True):
                rows[process] += number
        return rows

    @property
    def parts(self) -> list[frozenset[int]]:
        """The processes in their order, small ones together."""
        parts: list[set[int]] = []
        filled = LEAST_ROWS
        for process, number in self.rows.items():
            if filled >= LEAST_ROWS:
                parts.append(set())
                filled = 0
            parts[-1].add(process)
            filled += number
        return [*map(frozenset, parts)]

    @property
    def working(self) -> frozenset[int]:
        """The processes that used a GPU."""
        work = [file for name, file in self._dealt() if _key(requests_of_report()[name]) == "globalPid"]
        return frozenset(process for file in work for process in file.processes if process)

    def _dealt(self) -> Iterable[tuple[str, DealtFile]]:
        return ((name, file) for name, files in self.files.items() if name not in _ASIDE for file in files)

    def missing(self, held: HeldEvents) -> tuple[MissingData, ...]:
        """What the whole report lacks."""
        source = tables_at(self.tables)
        return (*missing_data(source, held), *lacking(reported_losses(source, self.processes)))


class DealtTables:
    """The tables of some processes; those that are not large are the report's."""

    def __init__(self, report: Path, dealt: Dealt, part: frozenset[int]) -> None:
        """Opens them.

        Args:
            report: What errors name.
            dealt: The report.
            part: Its processes.
        """
        source = tables_at(dealt.tables)
        self.path = report
        self.tables = source.tables
        self.values = source.values
        self.pieces, self.piece = source.pieces, source.piece
        # What became null is not known by process: it counts where the first one is.
        first = bool(dealt.processes) and dealt.processes[0] in part
        self.beyond = sum(file.beyond for files in dealt.files.values() for file in files) if first else 0
        self._files, self._part = dealt.files, part

    def read(self, requests: Mapping[str, Request], progress: Callable[[float], None]) -> dict[str, pa.Table]:
        """Maps the rows of large tables; one without rows has no columns."""
        tables = {}
        for at, name in enumerate(requests, 1):
            tables[name] = self._table(name)
            progress(at / len(requests))
        return tables

    def _table(self, name: str) -> pa.Table:
        part = {0} if name == _SHARED else self._part
        tables = []
        for dealt in self._files.get(name, ()):
            if part.isdisjoint(dealt.processes):
                continue
            batches = pa.ipc.open_file(pa.memory_map(str(dealt.file)))
            chosen = [batches.get_batch(at) for at, process in enumerate(dealt.processes) if process in part]
            tables.append(pa.Table.from_batches(chosen))
        return pa.table({}) if not tables else pa.concat_tables(tables, promote_options="default").unify_dictionaries()

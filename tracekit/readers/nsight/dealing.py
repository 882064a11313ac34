"""Deals the rows of a large report to its processes, so that each can be processed separately, in little memory.

Pieces of the tables are decoded by as many tasks as one likes. Each writes an Arrow file that has a record batch for
each process, in the order of the rows; whoever works on a process maps its batches. What does not depend on the
process, such as the texts, is in one batch for all. Small tables stay in the report.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tracekit.arrays.types import Ints
from tracekit.nsight import tables as nsight
from tracekit.readers.nsight import waiting
from tracekit.readers.nsight.losses import HeldEvents, lacking, missing_data, reported_losses
from tracekit.readers.nsight.report import requests_of_report, tables_at
from tracekit.readers.rows import are_plausible, bounds_of, encoded
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
_ASIDE = (_SHARED, *waiting.TABLES)
#: Reports of the embedded recorder have one process, and figures of their own.
_OF_RECORDER = {nsight.RECORDER.name, nsight.OPERATORS.name}


class DealtFile(NamedTuple):
    """A file of rows of one table."""

    file: Path
    #: How many rows each process has, in a record batch: a ``globalPid``, 0 for rows that name none.
    rows: Mapping[int, int]
    place: tuple[int, int]  # the first and the last place of the rows in their table
    bounds: tuple[int, ...]  # the earliest and the latest times


def has_several_processes(tables: Path) -> bool:
    """Whether at least two processes have much of the work, as a sample of it shows."""
    source, requests = tables_at(tables), requests_of_report()
    held = [requests[name] for name in ("kernel", "runtime", "nvtx") if requests[name].table.name in source.tables]
    if not held or not _OF_RECORDER.isdisjoint(source.tables):
        return False
    key = _key(held[0])
    request = Request(held[0].table, {key: ENCODED})
    counts = Counter[int]()
    for which in source.pieces(request) or ():
        piece = source.piece(request, which[:: max(1, len(which) // _SAMPLED)])
        if piece is None:
            return False
        counts.update(_by_process(piece.rows, key)[1])
    return len(counts) > 1 and sorted(counts.values())[-2] >= _LEAST_SHARE * counts.total()


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
        rows, place = source.read({name: request}, share)[name], (0, -1)
    else:
        piece = source.piece(request, which)
        if piece is None:
            return None
        rows, place = piece
    rows = rows.unify_dictionaries().combine_chunks()
    order, numbers = _by_process(rows, "" if name == _SHARED else _key(request))
    rows = rows if order is None else rows.take(pa.array(order))
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
        start = 0
        for number in numbers.values():
            writer.write_table(rows.slice(start, number))
            start += number
    return DealtFile(file, numbers, place, (*bounds_of(rows),))


def _by_process(rows: pa.Table, key: str) -> tuple[Ints | None, dict[int, int]]:
    """The order of rows by process, None if they have it, and how many each process has."""
    if not rows.num_rows:
        return None, {}
    if key not in rows.column_names:
        return None, {0: rows.num_rows}
    ids, row = encoded(rows.column(key).unify_dictionaries())
    values = np.append(np.asarray(ids, dtype=np.int64) & nsight.PROCESS_MASK, 0)
    processes, code = np.unique(values, return_inverse=True)
    code = code.astype(np.uint16 if processes.size <= 1 << 16 else np.int64)  # which sorts fast
    of_row = code[row]
    numbers = np.bincount(of_row, minlength=processes.size)
    used = np.flatnonzero(numbers)
    order = np.argsort(of_row, kind="stable") if used.size > 1 else None
    return order, dict(zip(processes[used].tolist(), numbers[used].tolist(), strict=True))


class Dealt(NamedTuple):
    """A report whose rows are dealt: where its small tables are, and the files of each large one in their order."""

    tables: Path
    files: Mapping[str, Sequence[DealtFile]]

    @property
    def stays_whole(self) -> bool:
        """Whether its processes depend on each other: machines share their ids, or times must be compared."""
        pids = [process >> nsight.THREAD_BITS & nsight.ID_MASK for process in self.rows]
        bounds = [bound for _, file in self._dealt() for bound in file.bounds]
        return len(pids) > MOST_PROCESSES or len({*pids}) < len(pids) or not are_plausible(bounds)

    @property
    def rows(self) -> dict[int, int]:
        """How many rows each process has, in the order of the processes."""
        rows = Counter[int]()
        for _, file in self._dealt():
            rows.update(file.rows)
        return dict(sorted(rows.items()))

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
        return frozenset(process for file in work for process in file.rows if process)

    def _dealt(self) -> Iterable[tuple[str, DealtFile]]:
        return ((name, file) for name, files in self.files.items() if name not in _ASIDE for file in files)

    def missing(self, held: HeldEvents) -> tuple[MissingData, ...]:
        """What the whole report lacks."""
        source = tables_at(self.tables)
        return (*missing_data(source, held), *lacking(reported_losses(source, self.rows)))


class DealtTables:
    """The tables of some processes; those that are not large are the report's."""

    def __init__(self, report: Path, dealt: Dealt, part: frozenset[int]) -> None:
        """Opens the tables of the processes of a part; errors name ``report``."""
        source = tables_at(dealt.tables)
        self.path, self.tables, self.values = report, source.tables, source.values
        self.pieces, self.piece = source.pieces, source.piece
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
            if chosen := [batch for batch, process in enumerate(dealt.rows) if process in part]:
                batches = pa.ipc.open_file(pa.memory_map(str(dealt.file)))
                tables.append(pa.Table.from_batches([*map(batches.get_batch, chosen)]))
        return pa.table({}) if not tables else pa.concat_tables(tables, promote_options="default").unify_dictionaries()

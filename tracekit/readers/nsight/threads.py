"""Threads and processes of a report: 64-bit ids become rows of small tables; ranks as MPI recorded them."""

import re
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from tracekit.arrays.types import Ints, Rows
from tracekit.nsight import tables as nsight
from tracekit.readers.ranks import Claim
from tracekit.readers.rows import occurring, rows_of
from tracekit.readers.source import TableSource, typed
from tracekit.recording.tables import Threads


class GlobalIds:
    """The distinct ``globalTid`` and ``globalPid`` of a report, sorted, and their rows."""

    def __init__(self, tids: Ints, pids: Ints) -> None:
        self.tids = tids
        self.pids = pids

    def threads(self, column: pa.ChunkedArray) -> Ints:
        """Row of the thread for every ``globalTid``; null counts as thread 0 of process 0."""
        rows = rows_of(column, self.tids)
        return np.where(rows < 0, np.int32(np.searchsorted(self.tids, 0)), rows) if (rows < 0).any() else rows

    def known_threads(self, column: pa.ChunkedArray) -> Ints:
        """Row of the thread for every ``globalTid`` or ``endGlobalTid``; -1 for null, or if nothing else names it."""
        return rows_of(column, self.tids)

    def process_of(self, column: pa.ChunkedArray) -> Rows:
        """Row of the process for every ``globalTid``."""
        of_thread = np.searchsorted(self.pids, self.tids & nsight.PROCESS_MASK)
        return np.asarray(of_thread[self.threads(column)])

    def processes(self, column: pa.ChunkedArray) -> Ints:
        """Row of the process for every ``globalPid``; -1 for null."""
        return rows_of(column, self.pids, mask=nsight.PROCESS_MASK)


def global_threads(tables: dict[str, pa.Table]) -> tuple[Threads, GlobalIds]:
    """The threads and processes of all tables of a report."""
    tids = _distinct(tables, "globalTid", "endGlobalTid")
    if any("globalTid" in table.column_names and table.column("globalTid").null_count for table in tables.values()):
        tids = np.union1d(tids, [0])
    pids = np.unique(np.concatenate((tids, _distinct(tables, "globalPid"))) & nsight.PROCESS_MASK)
    threads = Threads(
        pid=(tids >> nsight.THREAD_BITS) & nsight.ID_MASK,
        tid=tids & nsight.ID_MASK,
        process=np.searchsorted(pids, tids & nsight.PROCESS_MASK),
        process_pid=(pids >> nsight.THREAD_BITS) & nsight.ID_MASK,
    )
    return threads, GlobalIds(tids, pids)


def _distinct(tables: dict[str, pa.Table], *names: str) -> Ints:
    columns = [table.column(name) for table in tables.values() for name in names if name in table.column_names]
    return np.unique(np.concatenate([np.empty(0, np.int64), *map(occurring, columns)]))


#: The name that profilers give to threads of MPI programs.
_MPI_THREAD = re.compile(r"MPI Rank (\d{1,6})")
_LARGEST = 2**31 - 1


def ranks_by_mpi(report: TableSource, named: list[tuple[int, str]], ids: GlobalIds) -> Iterator[Claim]:
    """The ranks that MPI gave to processes: in a table of newer exports, and in names of threads."""
    for tid, rank in typed(report, nsight.MPI_RANKS, "globalTid", "rank"):
        process = int(np.searchsorted(ids.pids, tid & nsight.PROCESS_MASK))
        known = process < ids.pids.size and int(ids.pids[process]) == tid & nsight.PROCESS_MASK
        if known and 0 <= rank <= _LARGEST:
            yield process, rank
    for process, text in named:
        if match := _MPI_THREAD.fullmatch(text):
            yield process, int(match[1])

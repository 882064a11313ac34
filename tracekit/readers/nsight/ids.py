"""Nsight's 64-bit ids as rows of small tables: threads and processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracekit.nsight import tables as nsight
from tracekit.readers.rows.encoded import occurring, rows_of
from tracekit.recording.tables import Threads

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from tracekit.arrays.types import Ints, Rows


class GlobalIds:
    """The distinct ``globalTid`` and ``globalPid`` of a report, sorted, and their rows."""

    def __init__(self, tids: Ints, pids: Ints) -> None:
        self.tids = tids
        self.pids = pids

    def threads(self, column: pa.ChunkedArray) -> Ints:
        """Row of the thread for every ``globalTid``; null counts as thread 0 of process 0."""
        rows = rows_of(column, self.tids)
        return np.where(rows < 0, np.int32(np.searchsorted(self.tids, 0)), rows) if (rows < 0).any() else rows

    def end_threads(self, column: pa.ChunkedArray) -> Ints:
        """Row of the thread for every ``endGlobalTid``; -1 for null."""
        return rows_of(column, self.tids)

    def process_of(self, column: pa.ChunkedArray) -> Rows:
        """Row of the process for every ``globalTid``."""
        of_thread = np.searchsorted(self.pids, self.tids & nsight.PROCESS_MASK)
        rows: Rows = of_thread[self.threads(column)]
        return rows

    def processes(self, column: pa.ChunkedArray) -> Ints:
        """Row of the process for every ``globalPid``; -1 for null."""
        return rows_of(column, self.pids, mask=nsight.PROCESS_MASK)


def global_threads(tables: dict[str, pa.Table]) -> tuple[Threads, GlobalIds]:
    """The threads and processes of all tables of a report."""
    tids = _distinct(tables, ("globalTid", "endGlobalTid"))
    if any("globalTid" in table.column_names and table.column("globalTid").null_count for table in tables.values()):
        tids = np.union1d(tids, [0])
    pids = np.unique(np.concatenate((tids, _distinct(tables, ("globalPid",)))) & nsight.PROCESS_MASK)
    threads = Threads(
        pid=(tids >> nsight.THREAD_BITS) & nsight.ID_MASK,
        tid=tids & nsight.ID_MASK,
        process=np.searchsorted(pids, tids & nsight.PROCESS_MASK),
        process_pid=(pids >> nsight.THREAD_BITS) & nsight.ID_MASK,
    )
    return threads, GlobalIds(tids, pids)


def _distinct(tables: dict[str, pa.Table], columns: Iterable[str]) -> Ints:
    values = [
        occurring(table.column(column))
        for table in tables.values()
        for column in columns
        if column in table.column_names
    ]
    return np.unique(np.concatenate(values)) if values else np.empty(0, dtype=np.int64)

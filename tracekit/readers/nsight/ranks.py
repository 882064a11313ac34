"""Ranks of processes as Nsight records them for MPI programs: in a table of newer exports, and as names of threads."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from tracekit.nsight import tables as nsight
from tracekit.readers.rows.encoded import sorted_strings, texts_at
from tracekit.readers.source import typed

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from tracekit.readers.nsight.ids import GlobalIds
    from tracekit.readers.rows.ranks import Claim
    from tracekit.readers.source import TableSource

#: The name that profilers give to threads of MPI programs.
_MPI_THREAD = re.compile(r"MPI Rank (\d{1,6})")
_LARGEST = 2**31 - 1


def named_threads(events: pa.Table, strings: pa.Table, ids: GlobalIds) -> list[tuple[int, str]]:
    """The names that NVTX gave to threads: row of the process and name."""
    if "eventType" not in events.column_names:
        return []
    rows = events.filter(pc.equal(events.column("eventType"), nsight.THREAD_NAMED))
    if not rows.num_rows:
        return []
    inline = rows.column("text").to_pylist() if "text" in rows.column_names else []
    known, values = sorted_strings(strings)
    by_id = rows.column("textId").to_pylist() if "textId" in rows.column_names else []
    names = []
    for at, process in enumerate(ids.process_of(rows.column("globalTid")).tolist()):
        text = inline[at] if inline else None
        if text is None and by_id and by_id[at] is not None:
            row = int(np.searchsorted(known, by_id[at]))
            exists = row < known.size and int(known[row]) == by_id[at]
            text = texts_at(values, np.array([row]))[0] if exists else None
        if text is not None:
            names.append((process, text))
    return names


def ranks_by_mpi(report: TableSource, named: list[tuple[int, str]], ids: GlobalIds) -> Iterator[Claim]:
    """The ranks that MPI gave to processes.

    Args:
        report: The report.
        named: Threads with names.
        ids: Its processes.
    """
    yield from _of_table(report, ids)
    yield from _of_threads(named)


def _of_table(report: TableSource, ids: GlobalIds) -> Iterator[Claim]:
    """The table of ranks in newer exports of MPI programs."""
    rows = typed(report, nsight.MPI_RANKS, "globalTid", "rank")
    for tid, rank in rows:
        process = int(np.searchsorted(ids.pids, tid & nsight.PROCESS_MASK))
        known = process < ids.pids.size and int(ids.pids[process]) == tid & nsight.PROCESS_MASK
        if known and 0 <= rank <= _LARGEST:
            yield process, rank


def _of_threads(named: list[tuple[int, str]]) -> Iterator[Claim]:
    for process, text in named:
        if match := _MPI_THREAD.fullmatch(text):
            yield process, int(match[1])

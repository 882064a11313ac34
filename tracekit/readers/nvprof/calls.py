"""Calls of CUDA's runtime and of its driver, in one table of launches; nvprof has numbers for their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tracekit.arrays.columns import in_order, integers, nullable
from tracekit.arrays.intervals import nesting_order, one_axis
from tracekit.causes.reports import FAILED_CALL, NO_CORRELATION_ID
from tracekit.readers.nvprof import driver_calls, runtime_calls, tables as nvprof
from tracekit.readers.nvprof.threads import call_keys, thread_rows
from tracekit.readers.requests import Request
from tracekit.readers.rows.times import start_and_end
from tracekit.recording.tables import LAUNCHES, names_starting

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints
    from tracekit.nsight.stored import StoredTable
    from tracekit.readers.rows.encoded import Names
    from tracekit.recording.tally import Tally

#: The tables with the names of their calls.
CALL_TABLES: dict[str, tuple[StoredTable, tuple[str, ...]]] = {
    "runtime": (nvprof.RUNTIME, runtime_calls.NAMES),
    "driver": (nvprof.DRIVER, driver_calls.NAMES),
}
_COLUMNS = ("cbid", "start", "end", "processId", "threadId", "correlationId", "returnValue")
#: Return values that are no failure: success, and "not ready", the answer of queries, which was 34 before CUDA 10.1.
_NO_FAILURE = (0, 34, 600)
#: They end a graph capture even if they return an error.
_ENDS_EITHER_WAY = ("cudaStreamEndCapture", "cuStreamEndCapture")


def call_requests() -> dict[str, Request]:
    """What to read of the tables of calls."""
    return {name: Request(table, dict.fromkeys(_COLUMNS, pa.int64())) for name, (table, _) in CALL_TABLES.items()}


def launches_table(tables: dict[str, pa.Table], known: Ints, names: Names, tally: Tally) -> tuple[pa.Table, pa.Table]:
    """API calls that may have launched work.

    Args:
        tables: Distinct rows of the tables of calls, which are taken out of the dict.
        known: Keys of the report's threads.
        names: Where names are kept.
        tally: Where losses are counted.

    Returns:
        The calls, and those that failed and so launched nothing.
    """
    parts = [_calls(name, tables.pop(name), known, names, tally) for name in CALL_TABLES]
    launches = pa.concat_tables([part for part, _ in parts]).combine_chunks()
    failed = np.concatenate([part for _, part in parts])
    thread, times = integers(launches, "thread"), [integers(launches, name) for name in ("start_ns", "end_ns")]
    order = nesting_order(*one_axis([thread, thread], times))
    launches, failed = in_order(launches, order), failed[order]
    if not failed.any():
        return launches, LAUNCHES.empty()
    tally.add("launches", FAILED_CALL, int(failed.sum()))
    return launches.filter(pa.array(~failed)), launches.filter(pa.array(failed))


def _calls(name: str, calls: pa.Table, known: Ints, names: Names, tally: Tally) -> tuple[pa.Table, Flags]:
    """Calls of one table, and which of them failed."""
    if not calls.num_rows:
        return LAUNCHES.empty(), np.zeros(0, dtype=bool)
    if unlinked := calls.column("correlationId").null_count:
        calls = calls.filter(calls.column("correlationId").is_valid())
        tally.add("launches", NO_CORRELATION_ID, unlinked)
    table, call_names = CALL_TABLES[name]
    start, end = start_and_end(calls, table.name, "launches", tally)
    called = _name_rows(calls, call_names, names)
    launches = LAUNCHES.table(
        {
            "start_ns": start,
            "end_ns": end,
            "thread": thread_rows(call_keys(calls), known),
            "correlation_id": calls.column("correlationId"),
            "name": nullable(called, pa.int32()),
            "kernel": None,
        }
    )
    return launches, _failed(calls, called, names)


def _name_rows(calls: pa.Table, call_names: tuple[str, ...], names: Names) -> Ints:
    """Row of each call's name; -1 for a call that is newer than all names."""
    if "cbid" not in calls.column_names:
        return np.full(calls.num_rows, -1)
    number = integers(calls, "cbid", null=0)
    number = np.where((number > 0) & (number <= len(call_names)), number, 0)
    row = np.full(len(call_names) + 1, -1, dtype=np.int32)
    for used in np.flatnonzero(np.bincount(number)).tolist():
        row[used] = names.row(call_names[used - 1]) if used else -1
    return np.asarray(row[number])


def _failed(calls: pa.Table, name: Ints, names: Names) -> Flags:
    if "returnValue" not in calls.column_names:
        return np.zeros(calls.num_rows, dtype=bool)
    failed = ~np.isin(integers(calls, "returnValue", null=0), _NO_FAILURE)
    return failed & ~np.isin(name, names_starting(names.used, _ENDS_EITHER_WAY))

"""Which process device work belongs to, which nvprof does not record, and names of processes and threads.

A file is usually of one process. In one of several, work belongs to the only process that made an API call of its
correlation id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tracekit.arrays.columns import integers, nullable
from tracekit.arrays.lookups import lookup, positions
from tracekit.causes.reports import PROCESS_UNKNOWN
from tracekit.readers.nvprof import tables as nvprof
from tracekit.readers.nvprof.threads import object_keys, pids_of
from tracekit.readers.requests import ENCODED, ENCODED_BLOB, Request

if TYPE_CHECKING:
    from tracekit.arrays.types import Ints
    from tracekit.recording.tables import Threads
    from tracekit.recording.tally import Tally


def name_requests() -> dict[str, Request]:
    """What to read of the names of processes and threads."""
    columns = {"objectKind": pa.int64(), "objectId": ENCODED_BLOB, "name": ENCODED}
    return {"names": Request(nvprof.NAMES, columns)}


def with_processes(work: pa.Table, calls: tuple[pa.Table, ...], threads: Threads, tally: Tally) -> pa.Table:
    """The work with the processes it belongs to; work of which that is not known is counted.

    Args:
        work: Device work.
        calls: All API calls, also those that failed.
        threads: The report's threads and processes.
        tally: Where losses are counted.
    """
    thread = np.concatenate([integers(table, "thread") for table in calls])
    caller = threads.process[thread]
    callers = np.unique(caller) if caller.size else np.arange(threads.process_pid.size)
    if not callers.size:
        return work
    process = np.full(work.num_rows, callers[0])
    if callers.size > 1:
        called = np.concatenate([integers(table, "correlation_id") for table in calls])
        process = _only_caller(work, called, caller)
    recorded = integers(work, "process")
    process = np.where(recorded >= 0, recorded, process)
    tally.add("kernels", PROCESS_UNKNOWN, int((process < 0).sum()))
    return work.set_column(work.column_names.index("process"), "process", nullable(process, pa.int32()))


def _only_caller(work: pa.Table, called: Ints, caller: Ints) -> Ints:
    """For each piece of work the process that made calls of its correlation id; -1 if none or several did."""
    order = np.lexsort((caller, called))
    called, caller = called[order], caller[order]
    known, first = np.unique(called, return_index=True)
    last = np.append(first, called.size)[1:] - 1
    only = np.where(caller[first] == caller[last], caller[first], -1)
    at = positions(integers(work, "correlation_id"), known)
    at[np.asarray(work.column("correlation_id").is_null())] = -1
    return lookup(only, at)


def named_objects(rows: pa.Table, strings: dict[int, str]) -> tuple[dict[int, str], dict[int, str]]:
    """Names of processes by process id, and names of threads by their keys."""
    if not rows.num_rows or not {"objectKind", "objectId", "name"} <= set(rows.column_names):
        return {}, {}
    keys, kinds = object_keys(rows).tolist(), integers(rows, "objectKind").tolist()
    names = [strings.get(number, "") for number in rows.column("name").to_pylist()]
    named = [entry for entry in zip(kinds, keys, names, strict=True) if entry[2]]
    processes = {key >> 32: _program(name) for kind, key, name in named if kind == nvprof.PROCESS}
    return processes, {key: name for kind, key, name in named if kind == nvprof.THREAD}


def _program(command: str) -> str:
    """The program of a command without its folders and arguments, which may be private."""
    words = command.split()
    return words[0].replace("\\", "/").rsplit("/", 1)[-1] if words else command


def named_pids(rows: pa.Table) -> Ints:
    """Threads 0 of the processes that have names."""
    if not rows.num_rows or not {"objectKind", "objectId"} <= set(rows.column_names):
        return np.empty(0, np.int64)
    of_process = integers(rows, "objectKind") == nvprof.PROCESS
    keys: Ints = object_keys(rows)[of_process]
    return pids_of(keys) << 32

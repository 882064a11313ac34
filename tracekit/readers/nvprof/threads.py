"""Processes and threads of nvprof's rows, as rows of small tables.

CUPTI keeps 32 bits of a thread's id: unsigned in the objects of markers, signed in API calls. The same 32 bits are the
same thread; its id in our tables is the signed number. What belongs to a process and to no thread of it is on its
thread 0.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tracekit.arrays.columns import integers
from tracekit.arrays.lookups import positions
from tracekit.readers.nvprof import tables as nvprof
from tracekit.recording.tables import Threads

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracekit.arrays.types import Ints

_ID_BITS, _ID_MASK = 32, 0xFFFF_FFFF
_PID_MASK = 0x7FFF_FFFF
_OBJECT = struct.Struct("<II")


def thread_keys(pid: Ints, tid: Ints) -> Ints:
    """One number for each thread of each process."""
    keys: Ints = (pid.astype(np.int64) & _PID_MASK) << _ID_BITS | (tid.astype(np.int64) & _ID_MASK)
    return keys


def call_keys(calls: pa.Table) -> Ints:
    """The threads of API calls."""
    return thread_keys(*(_column(calls, name) for name in ("processId", "threadId")))


def object_keys(rows: pa.Table) -> Ints:
    """The threads of rows about objects: the first 8 bytes are ids of process and thread, the others mean nothing."""
    if "objectId" not in rows.column_names:
        return np.zeros(rows.num_rows, dtype=np.int64)
    array = rows.column("objectId").combine_chunks()
    ids = [_OBJECT.unpack((raw or b"")[: _OBJECT.size].ljust(_OBJECT.size, b"\0")) for raw in _bytes(array.dictionary)]
    pid, tid = np.array([*ids, (0, 0)], dtype=np.int64).T
    row = np.asarray(array.indices.fill_null(-1))
    kind = _column(rows, "objectKind", nvprof.THREAD)
    of_process = np.isin(kind, (nvprof.PROCESS, nvprof.THREAD))
    return thread_keys(np.where(of_process, pid[row], 0), np.where(kind == nvprof.THREAD, tid[row], 0))


def pids_of(keys: Ints) -> Ints:
    """Their process ids."""
    return keys >> _ID_BITS


def threads_of(keys: Iterable[Ints]) -> tuple[Threads, Ints]:
    """The threads of a report, and their distinct keys in order.

    Args:
        keys: Threads of rows, and threads 0 of processes that did nothing.
    """
    distinct = np.unique(np.concatenate([np.empty(0, np.int64), *map(_distinct, keys)]))
    pids = np.unique(pids_of(distinct))
    threads = Threads(
        pid=pids_of(distinct),
        tid=(distinct & _ID_MASK).astype(np.uint32).view(np.int32).astype(np.int64),
        process=np.searchsorted(pids, pids_of(distinct)),
        process_pid=pids,
    )
    return threads, distinct


def thread_rows(keys: Ints, known: Ints) -> Ints:
    """The row of each thread."""
    encoded = pa.array(keys).dictionary_encode()
    rows: Ints = positions(np.asarray(encoded.dictionary), known)[np.asarray(encoded.indices)].astype(np.int32)
    return rows


def _distinct(keys: Ints) -> Ints:
    return np.asarray(pa.array(keys).unique())


def _bytes(values: pa.Array) -> list[bytes | None]:
    blobs: list[bytes | None] = values.to_pylist()
    return blobs


def _column(rows: pa.Table, name: str, missing: int = 0) -> Ints:
    if name not in rows.column_names:
        return np.full(rows.num_rows, missing, dtype=np.int64)
    return integers(rows, name, null=missing)

"""The tables of nvprof's SQLite files that tracekit uses, as CUPTI's activity records have them, and their rows.

A file has all tables of its version, most of them empty, and some of these columns. Names are ids of strings, of which
0 is none. ``ESSENTIAL`` names the columns without which a table is useless. CUPTI keeps 32 bits of a thread's id:
unsigned in the objects of markers, signed in API calls. The same 32 bits are the same thread; its id in our tables is
the signed number. What belongs to a process and to no thread of it is on its thread 0.
"""

import struct
from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from tracekit.arrays.codes import positions
from tracekit.arrays.types import Ints
from tracekit.nsight.tables import stored
from tracekit.readers.rows import encoded, integers_or_null
from tracekit.recording.tables import Threads

_PREFIX = "CUPTI_ACTIVITY_KIND_"
_PLACE = "start end deviceId contextId streamId correlationId"
_KERNEL_COLUMNS = (
    f"{_PLACE} name gridX gridY gridZ blockX blockY blockZ "
    "registersPerThread staticSharedMemory dynamicSharedMemory graphNodeId graphId"
)
_COPY_COLUMNS = f"{_PLACE} bytes copyKind srcKind dstKind graphNodeId graphId"
_CALL_COLUMNS = "cbid start end processId threadId correlationId returnValue"

STRINGS = stored("StringTable", "_id_", texts="value")
VERSION = stored("Version", "version")
MARKER = stored(_PREFIX + "MARKER", "flags timestamp id objectKind name domain", blobs="objectId")
RUNTIME = stored(_PREFIX + "RUNTIME", _CALL_COLUMNS)
DRIVER = stored(_PREFIX + "DRIVER", _CALL_COLUMNS)
KERNEL = stored(_PREFIX + "KERNEL", _KERNEL_COLUMNS)
CONCURRENT_KERNEL = stored(_PREFIX + "CONCURRENT_KERNEL", _KERNEL_COLUMNS)
#: Kernels that kernels launched.
CDP_KERNEL = stored(_PREFIX + "CDP_KERNEL", _KERNEL_COLUMNS)
MEMCPY = stored(_PREFIX + "MEMCPY", _COPY_COLUMNS)
#: Copies between two GPUs.
MEMCPY2 = stored(_PREFIX + "MEMCPY2", _COPY_COLUMNS)
MEMSET = stored(_PREFIX + "MEMSET", f"{_PLACE} bytes graphNodeId graphId")
DEVICE = stored(
    _PREFIX + "DEVICE",
    "id name computeCapabilityMajor computeCapabilityMinor numMultiprocessors globalMemorySize globalMemoryBandwidth "
    "coreClockRate",
)
NAMES = stored(_PREFIX + "NAME", "objectKind name", blobs="objectId")

_LINKED = ("start", "end", "correlationId")
ESSENTIAL: dict[str, tuple[str, ...]] = {
    STRINGS.name: ("_id_", "value"),
    MARKER.name: ("flags", "timestamp", "id", "name"),
    **{table.name: _LINKED for table in (RUNTIME, DRIVER, MEMCPY, MEMCPY2, MEMSET)},
    **{table.name: (*_LINKED, "name") for table in (KERNEL, CONCURRENT_KERNEL, CDP_KERNEL)},
}

#: Kinds of objects (CUpti_ActivityObjectKind).
PROCESS, THREAD = 1, 2
#: The kind of memory that is pageable (CUpti_ActivityMemoryKind).
PAGEABLE = 1
#: Flags of markers (CUpti_ActivityFlag); the others are of synchronisation objects that users define.
INSTANT, BEGIN, END = 1, 2, 4

_ID_BITS, _ID_MASK = 32, 0xFFFF_FFFF
_PID_MASK = 0x7FFF_FFFF
_OBJECT = struct.Struct("<II")


def thread_keys(pid: Ints, tid: Ints) -> Ints:
    """One number for each thread of each process."""
    return np.asarray((pid.astype(np.int64) & _PID_MASK) << _ID_BITS | (tid.astype(np.int64) & _ID_MASK))


def call_keys(calls: pa.Table) -> Ints:
    """The threads of API calls."""
    return thread_keys(integers_or_null(calls, "processId", 0), integers_or_null(calls, "threadId", 0))


def object_keys(rows: pa.Table) -> Ints:
    """The threads of rows about objects: the first 8 bytes are ids of process and thread, the others mean nothing."""
    if "objectId" not in rows.column_names:
        return np.zeros(rows.num_rows, dtype=np.int64)
    objects, row = encoded(rows.column("objectId"))
    ids = [_OBJECT.unpack((raw or b"")[: _OBJECT.size].ljust(_OBJECT.size, b"\0")) for raw in objects.to_pylist()]
    pid, tid = np.array([*ids, (0, 0)], dtype=np.int64).T
    kind = integers_or_null(rows, "objectKind", THREAD)
    of_process = np.isin(kind, (PROCESS, THREAD))
    return thread_keys(np.where(of_process, pid[row], 0), np.where(kind == THREAD, tid[row], 0))


def threads_of(keys: Iterable[Ints]) -> tuple[Threads, Ints]:
    """The threads of a report, and their distinct keys in order."""
    distinct = np.unique(np.concatenate([np.empty(0, np.int64), *(np.asarray(pa.array(key).unique()) for key in keys)]))
    pid, tid = distinct >> _ID_BITS, (distinct & _ID_MASK).astype(np.uint32).view(np.int32).astype(np.int64)
    pids = np.unique(pid)
    return Threads(pid=pid, tid=tid, process=np.searchsorted(pids, pid), process_pid=pids), distinct


def thread_rows(keys: Ints, known: Ints) -> Ints:
    """The row of each thread."""
    encoded = pa.array(keys).dictionary_encode()
    return np.asarray(positions(np.asarray(encoded.dictionary), known)[np.asarray(encoded.indices)], np.int32)

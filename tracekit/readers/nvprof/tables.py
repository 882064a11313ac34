"""The tables of nvprof's SQLite files that tracekit uses, as CUPTI's activity records have them.

A file has all tables of its version, most of them empty, and some of these columns. Names are ids of strings, of which
0 is none. ``ESSENTIAL`` names the columns without which a table is useless.
"""

from __future__ import annotations

from tracekit.nsight.stored import stored

_PREFIX = "CUPTI_ACTIVITY_KIND_"
_PLACE = "start end deviceId contextId streamId correlationId runtimeCorrelationId"
_KERNEL_COLUMNS = (
    f"{_PLACE} gridId name gridX gridY gridZ blockX blockY blockZ "
    "registersPerThread staticSharedMemory dynamicSharedMemory graphNodeId graphId"
)
_COPY_COLUMNS = f"{_PLACE} bytes copyKind graphNodeId graphId"
_CALL_COLUMNS = "cbid start end processId threadId correlationId returnValue"

STRINGS = stored("StringTable", "_id_", texts="value")
VERSION = stored("Version", "version")
MARKER = stored(_PREFIX + "MARKER", "flags timestamp id objectKind name domain", blobs="objectId")
MARKER_DATA = stored(_PREFIX + "MARKER_DATA", "id payloadKind", blobs="payload")
RUNTIME = stored(_PREFIX + "RUNTIME", _CALL_COLUMNS)
DRIVER = stored(_PREFIX + "DRIVER", _CALL_COLUMNS)
KERNEL = stored(_PREFIX + "KERNEL", _KERNEL_COLUMNS)
CONCURRENT_KERNEL = stored(_PREFIX + "CONCURRENT_KERNEL", _KERNEL_COLUMNS)
#: Kernels that kernels launched.
CDP_KERNEL = stored(_PREFIX + "CDP_KERNEL", f"{_KERNEL_COLUMNS} parentGridId")
MEMCPY = stored(_PREFIX + "MEMCPY", _COPY_COLUMNS)
#: Copies between two GPUs.
MEMCPY2 = stored(_PREFIX + "MEMCPY2", _COPY_COLUMNS)
MEMSET = stored(_PREFIX + "MEMSET", f"{_PLACE} value bytes graphNodeId graphId")
GRAPH_TRACE = stored(_PREFIX + "GRAPH_TRACE", "start end deviceId contextId streamId correlationId graphId")
UNIFIED_MEMORY = stored(
    _PREFIX + "UNIFIED_MEMORY_COUNTER", "start end counterKind value address srcId dstId streamId processId"
)
DEVICE = stored(
    _PREFIX + "DEVICE",
    "id name computeCapabilityMajor computeCapabilityMinor numMultiprocessors globalMemorySize globalMemoryBandwidth "
    "coreClockRate",
)
NAMES = stored(_PREFIX + "NAME", "objectKind name", blobs="objectId")

_SPAN = ("start", "end")
ESSENTIAL: dict[str, tuple[str, ...]] = {
    STRINGS.name: ("_id_", "value"),
    MARKER.name: ("flags", "timestamp", "id", "name"),
    RUNTIME.name: (*_SPAN, "correlationId"),
    DRIVER.name: (*_SPAN, "correlationId"),
    KERNEL.name: (*_SPAN, "correlationId", "name"),
    CONCURRENT_KERNEL.name: (*_SPAN, "correlationId", "name"),
    CDP_KERNEL.name: (*_SPAN, "correlationId", "name"),
    GRAPH_TRACE.name: (*_SPAN, "correlationId"),
    MEMCPY.name: (*_SPAN, "correlationId"),
    MEMCPY2.name: (*_SPAN, "correlationId"),
    MEMSET.name: (*_SPAN, "correlationId"),
}

#: Kinds of objects (CUpti_ActivityObjectKind).
PROCESS, THREAD = 1, 2
#: Flags of markers (CUpti_ActivityFlag); the others are of synchronisation objects that users define.
INSTANT, BEGIN, END = 1, 2, 4
#: Counters of unified memory that are transfers (CUpti_ActivityUnifiedMemoryCounterKind) → row of COPY_KINDS.
TRANSFERS = {1: 11, 2: 12, 8: 13}
TO_HOST = 2
#: Kinds of payloads (CUpti_MetricValueKind).
DOUBLE, UINT64, INT64 = 0, 1, 4

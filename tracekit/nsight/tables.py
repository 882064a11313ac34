"""The tables of Nsight Systems' SQLite export that are read or written, each declared once, and names of kernels."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class StoredTable:
    """A declared table, with the types of all columns that a file may have: ``int``, ``str``, ``float``, ``bytes``."""

    name: str
    columns: Mapping[str, type]


def stored(name: str, integers: str, texts: str = "", floats: str = "", blobs: str = "") -> StoredTable:
    """A table by the names of its columns, blanks between them."""
    of_type = {int: integers, str: texts, float: floats, bytes: blobs}
    return StoredTable(name, {column: type_ for type_, names in of_type.items() for column in names.split()})


STRINGS = stored("StringIds", "id", "value")
NVTX = stored(
    "NVTX_EVENTS",
    "start end eventType rangeId category color globalTid endGlobalTid textId domainId "
    "uint64Value int64Value uint32Value int32Value jsonTextId",
    texts="text jsonText",
    floats="doubleValue floatValue",
)
RUNTIME = stored(
    "CUPTI_ACTIVITY_KIND_RUNTIME", "start end eventClass globalTid correlationId nameId returnValue callchainId"
)
KERNEL = stored(
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "start end deviceId contextId greenContextId streamId correlationId globalPid demangledName shortName "
    "mangledName registersPerThread gridX gridY gridZ blockX blockY blockZ staticSharedMemory dynamicSharedMemory "
    "graphNodeId graphId",
)
MEMCPY = stored(
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "start end deviceId contextId greenContextId streamId correlationId globalPid bytes copyKind srcKind dstKind "
    "graphNodeId",
)
MEMSET = stored(
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "start end deviceId contextId greenContextId streamId correlationId globalPid value bytes memKind graphNodeId",
)
GRAPH_TRACE = stored(
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
    "start end deviceId contextId streamId correlationId globalPid graphId graphExecId",
)
_STREAM_CALL = "deviceId contextId streamId correlationId globalPid eventId eventSyncId"
SYNCHRONIZATION = stored("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", _STREAM_CALL)
CUDA_EVENT = stored("CUPTI_ACTIVITY_KIND_CUDA_EVENT", _STREAM_CALL)
MEMORY_USAGE = stored(
    "CUDA_GPU_MEMORY_USAGE_EVENTS", "start globalPid deviceId address bytes memKind memoryOperationType"
)
GPU_METRICS = stored("GPU_METRICS", "timestamp typeId metricId value")
GPU_METRIC_NAMES = stored("TARGET_INFO_GPU_METRICS", "typeId sourceId metricId", "typeName metricName")
CUDA_DEVICE = stored("TARGET_INFO_CUDA_DEVICE", "gpuId cudaId pid")
OS_RUNTIME = stored("OSRT_API", "start end globalTid nameId")
OVERHEAD = stored("CUPTI_ACTIVITY_KIND_OVERHEAD", "start end globalTid nameId")
MPI_RANKS = stored("MPI_RANKS", "globalTid rank")
#: Creation of graphs, or of their nodes in files up to schema 3.7.2; only the columns show which.
GRAPH_EVENTS = stored(
    "CUDA_GRAPH_EVENTS",
    "start end eventClass globalTid nameId graphNodeId originalGraphNodeId graphId originalGraphId graphExecId",
)
GRAPH_NODE_EVENTS = stored(
    "CUDA_GRAPH_NODE_EVENTS", "start end eventClass globalTid nameId graphNodeId originalGraphNodeId"
)
PROCESSES = stored("PROCESSES", "globalPid pid", "name")
THREADS = stored("ThreadNames", "nameId priority globalTid")
DIAGNOSTICS = stored("DIAGNOSTIC_EVENT", "timestamp timestampType source severity globalPid", "text")
GPU = stored("TARGET_INFO_GPU", "id smCount totalMemory memoryBandwidth clockRate computeMajor computeMinor", "name")
SESSION = stored("TARGET_INFO_SESSION_START_TIME", "utcEpochNs", "utcTime localTime")
SYSTEM = stored("TARGET_INFO_SYSTEM_ENV", "", "name value")
COPY_KIND = stored("ENUM_CUDA_MEMCPY_OPER", "id", "name label")
MEMORY_KIND = stored("ENUM_CUDA_MEM_KIND", "id", "name label")
EXPORT = stored("META_DATA_EXPORT", "", "name value")
EXPORT_BEFORE_3_4 = stored("EXPORT_META_DATA", "", "name value")

#: Tables of tracekit's own in reports of the embedded recorder: operators that ran on the CPU of a machine without a
#: GPU, and the recorder's own counts.
OPERATORS = stored("TRACEKIT_CPU_OPS", "start end globalTid nameId")
RECORDER = stored("TRACEKIT_RECORDER", "value", "name")

#: All of them by name.
TABLES = {table.name: table for table in tuple(vars().values()) if isinstance(table, StoredTable)}

_EVERY_WORK = ("start", "end", "correlationId", "globalPid")
#: Columns without which the rows of a table cannot be used.
ESSENTIAL: dict[str, tuple[str, ...]] = {
    STRINGS.name: ("id", "value"),
    NVTX.name: ("start", "end", "eventType", "globalTid"),
    RUNTIME.name: ("start", "end", "globalTid", "correlationId"),
    KERNEL.name: _EVERY_WORK,
    MEMCPY.name: _EVERY_WORK,
    MEMSET.name: _EVERY_WORK,
    GRAPH_TRACE.name: _EVERY_WORK,
    OPERATORS.name: ("start", "end", "globalTid"),
}

#: NVTX event types (ENUM_NSYS_EVENT_TYPE; the same numbers in every version, the enum table only from 3.0.0 on).
PUSH_POP_RANGES = (59, 70)
START_END_RANGES = (60, 71)
MARKS = (34, 65)
#: A separate push, pop, start or end of a range.
RAW_EVENTS = (35, 36, 37, 38, 66, 67, 68, 69)
THREAD_NAMED = 39
DOMAIN_CREATED = 75

#: Rows of the runtime table that repeat another call's correlation id to carry its CUDA backtrace.
BACKTRACE_CLASS = 67

#: Events of CUDA graphs: a graph was instantiated, created or cloned; a node of an instance got new parameters.
GRAPH_INSTANTIATED, GRAPH_CREATED, GRAPH_CLONED = 94, 95, 96
NODE_CHANGED = 111

#: Kinds of memory (ENUM_CUDA_MEM_KIND), and the stream of calls that have none.
PAGEABLE, ON_DEVICE, NO_STREAM = 0, 2, 2**32 - 1
#: What is done with memory (ENUM_CUDA_DEV_MEM_EVENT_OPER).
HANDED_OUT, TAKEN_BACK = 0, 1

#: ``globalTid`` holds the thread in bits 0-23, the process in 24-47, machine ids above; ``globalPid`` is the same
#: with the thread's bits 0.
THREAD_BITS = 24
ID_MASK = (1 << THREAD_BITS) - 1
PROCESS_MASK = ~ID_MASK


def short_name(name: str) -> str:
    """A kernel's name without return type, namespaces, template arguments and parameters, as Nsight shortens it.

    >>> short_name("void at::native::(anonymous namespace)::sum<4, at::Op<int> >(int, at::Op<int>)")
    'sum'
    """
    plain = name.replace("(anonymous namespace)", "")
    kept: list[str] = []
    angles = parentheses = 0
    for letter in plain:
        if letter in "()":
            if not angles:
                break
            parentheses += 1 if letter == "(" else -1
        elif letter in "<>" and not parentheses:
            angles += 1 if letter == "<" else -1
        elif not angles:
            kept.append(letter)
    words = "".join(kept).split("::")[-1].split()
    return words[-1] if words and not angles else name

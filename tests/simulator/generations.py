"""The tables of five generations of the Nsight Systems export, as far as a reader of launches and ranges needs them.

Columns and their order are those of ``nsight-sqlite.md`` (B2 to B9): what was added when. ``2020.3`` has no version of
its own and says none. Types are SQLite's; a ``!`` stands for NOT NULL.
"""

from typing import NamedTuple

UNVERSIONED = "2020.3"
GENERATIONS = (UNVERSIONED, "2.9.1", "3.7.2", "3.16.1", "3.25.0")

Columns = dict[str, str]

NVTX = "NVTX_EVENTS"
RUNTIME, KERNEL, MEMCPY, MEMSET, GRAPH_TRACE = (
    f"CUPTI_ACTIVITY_KIND_{name}" for name in ("RUNTIME", "KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")
)
GRAPH_EVENTS = "CUDA_GRAPH_EVENTS"  # nodes up to 3.7.2, graphs from 3.13.2 on
GRAPH_NODE_EVENTS = "CUDA_GRAPH_NODE_EVENTS"
STRINGS, THREAD_NAMES, PROCESSES, DIAGNOSTICS = "StringIds", "ThreadNames", "PROCESSES", "DIAGNOSTIC_EVENT"

_CREATION = "start!, end!, eventClass!, globalTid, nameId!"
PRODUCTS = {"2.9.1": "2022.2.1.31-5fe97ab", "3.7.2": "2023.4.4.54-234433681190v0"}
PRODUCTS |= {"3.16.1": "2024.6.2.225", "3.25.0": "2026.2.1.210"}


class Generation(NamedTuple):
    """One schema version: its tables, and which of them hold its version, nodes of graphs and graphs, if any."""

    version: str
    tables: dict[str, Columns]
    version_table: str | None
    node_table: str
    graph_table: str | None


def generation(version: str) -> Generation:
    """The tables that an exporter of schema ``version`` writes."""
    age = GENERATIONS.index(version)
    tables = {
        STRINGS: _columns("id INTEGER PRIMARY KEY, value TEXT!"),
        NVTX: _nvtx(age),
        RUNTIME: _columns("start!, end!, eventClass!, globalTid, correlationId, nameId!, returnValue!, callchainId"),
        KERNEL: _kernel(age),
        MEMCPY: _memcpy(age),
        MEMSET: _columns(f"{_where(age)}, value!, bytes!, graphNodeId, memKind"),
        THREAD_NAMES: _columns("nameId!, priority, globalTid"),
    }
    if age >= GENERATIONS.index("2.9.1"):
        tables[PROCESSES] = _columns("globalPid, pid, name TEXT")
    nodes = _columns(f"{_CREATION}, graphNodeId!, originalGraphNodeId")
    of_graphs: tuple[str, str | None] = (GRAPH_EVENTS, None)
    if age >= GENERATIONS.index("3.16.1"):
        of_graphs = GRAPH_NODE_EVENTS, GRAPH_EVENTS
        tables[GRAPH_TRACE] = _columns(f"{_where(age)}, graphId!, graphExecId!")
        tables[GRAPH_NODE_EVENTS] = nodes
        tables[DIAGNOSTICS] = _columns("timestamp!, timestampType!, source!, severity!, text TEXT!, globalPid")
        tables[GRAPH_EVENTS] = _columns(f"{_CREATION}, graphId!, originalGraphId, graphExecId")
    else:
        tables[GRAPH_EVENTS] = nodes
    version_table = {UNVERSIONED: None, "2.9.1": "EXPORT_META_DATA"}.get(version, "META_DATA_EXPORT")
    return Generation(version, tables, version_table, *of_graphs)


def _columns(listed: str) -> Columns:
    columns = {}
    for piece in listed.split(", "):
        name, _, kind = piece.partition(" ")
        required = " NOT NULL" if piece.endswith("!") else ""
        columns[name.rstrip("!")] = (kind.rstrip("!") or "INTEGER") + required
    return columns


def _where(age: int) -> str:
    green = "greenContextId, " if age >= GENERATIONS.index("3.7.2") else ""
    return f"start!, end!, deviceId!, contextId!, {green}streamId!, correlationId, globalPid"


def _nvtx(age: int) -> Columns:
    binary = ", binaryData TEXT" if age >= GENERATIONS.index("3.16.1") else ""
    return _columns(
        "start!, end, eventType!, rangeId, category, color, text TEXT, globalTid, endGlobalTid, textId, domainId, "
        "uint64Value, int64Value, doubleValue REAL, uint32Value, int32Value, floatValue REAL, jsonTextId, "
        f"jsonText TEXT{binary}"
    )


def _kernel(age: int) -> Columns:
    mangled, limit = ("mangledName, ", ", sharedMemoryLimitConfig") if age >= GENERATIONS.index("2.9.1") else ("", "")
    newest = (
        ", qmdBulkReleaseDone, qmdPreexitDone, qmdLastCtaDone, graphId, clusterX, clusterY, clusterZ, "
        "clusterSchedulingPolicy, maxPotentialClusterSize, maxActiveClusters, sharedMemoryRequestedPercentage, "
        "tensorSizeMinusOneElements TEXT!"
    )
    newest = newest if age >= GENERATIONS.index("3.25.0") else ""
    return _columns(
        f"{_where(age)}, demangledName!, shortName!, {mangled}launchType, cacheConfig, registersPerThread!, gridX!, "
        "gridY!, gridZ!, blockX!, blockY!, blockZ!, staticSharedMemory!, dynamicSharedMemory!, "
        "localMemoryPerThread!, localMemoryTotal!, gridId!, sharedMemoryExecuted, graphNodeId" + limit + newest
    )


def _memcpy(age: int) -> Columns:
    address = ", virtualAddress" if age >= GENERATIONS.index("2.9.1") else ""
    batched = ", copyCount" if age >= GENERATIONS.index("3.25.0") else ""
    return _columns(
        f"{_where(age)}, bytes!, copyKind!, deprecatedSrcId, srcKind, dstKind, srcDeviceId, srcContextId, "
        f"dstDeviceId, dstContextId, migrationCause, graphNodeId{address}{batched}"
    )

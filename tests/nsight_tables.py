"""The tables of five generations of the Nsight Systems export, as far as a reader of launches and ranges needs them.

Columns and their order are those of ``nsight-sqlite.md`` (B2 to B9): what was added when. ``2020.3`` has no version of
its own and says none. Types are SQLite's; a ``!`` stands for NOT NULL.
"""

import sqlite3
from collections.abc import Iterable
from typing import Any, NamedTuple

UNVERSIONED = "2020.3"
GENERATIONS = (UNVERSIONED, "2.9.1", "3.7.2", "3.16.1", "3.25.0")

Columns = dict[str, str]
Row = dict[str, Any]

NVTX = "NVTX_EVENTS"
RUNTIME, KERNEL, MEMCPY, MEMSET, GRAPH_TRACE = (
    f"CUPTI_ACTIVITY_KIND_{name}" for name in ("RUNTIME", "KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")
)
GRAPH_EVENTS = "CUDA_GRAPH_EVENTS"  # nodes up to 3.7.2, graphs from 3.13.2 on
GRAPH_NODE_EVENTS = "CUDA_GRAPH_NODE_EVENTS"
STRINGS, THREAD_NAMES, PROCESSES, DIAGNOSTICS = "StringIds", "ThreadNames", "PROCESSES", "DIAGNOSTIC_EVENT"
VERSION = "META_DATA_EXPORT"

_CREATION = "start!, end!, eventClass!, globalTid, nameId!"
PRODUCTS = {"2.9.1": "2022.2.1.31-5fe97ab", "3.7.2": "2023.4.4.54-234433681190v0"}
PRODUCTS |= {"3.16.1": "2024.6.2.225", "3.25.0": "2026.2.1.210"}


def version_rows(version: str) -> list[Row]:
    """What a report says of its version."""
    product = {"EXPORT_PRODUCT_NAME": "NVIDIA Nsight Systems", "EXPORT_PRODUCT_VERSION": PRODUCTS[version]}
    facts = product | {"EXPORT_SCHEMA_VERSION": version}
    return [{"name": name, "value": value} for name, value in facts.items()]


class Generation(NamedTuple):
    """One schema version: its tables, and which of them hold its version, nodes of graphs and graphs, if any."""

    version: str
    tables: dict[str, Columns]
    version_table: str | None
    node_table: str
    graph_table: str | None


def insert(db: sqlite3.Connection, table: str, columns: Columns, rows: Iterable[Row]) -> None:
    """Creates a table and fills it; what a row leaves out is null, or 0 or no text where that may not be."""
    declared = ", ".join(f'"{name}" {kind}' for name, kind in columns.items())
    db.execute(f"CREATE TABLE {table} ({declared})")
    places = ", ".join("?" * len(columns))
    fillers = {"INTEGER NOT NULL": 0, "TEXT NOT NULL": ""}
    filled = ([row.get(name, fillers.get(kind)) for name, kind in columns.items()] for row in rows)
    db.executemany(f"INSERT INTO {table} VALUES ({places})", filled)  # noqa: S608


def generation(version: str) -> Generation:
    """The tables that an exporter of schema ``version`` writes."""
    age = GENERATIONS.index(version)
    tables = {
        STRINGS: columns("id INTEGER PRIMARY KEY, value TEXT!"),
        NVTX: _nvtx(age),
        RUNTIME: columns("start!, end!, eventClass!, globalTid, correlationId, nameId!, returnValue!, callchainId"),
        KERNEL: _kernel(age),
        MEMCPY: _memcpy(age),
        MEMSET: columns(f"{_where(age)}, value!, bytes!, graphNodeId, memKind"),
        THREAD_NAMES: columns("nameId!, priority, globalTid"),
    }
    if age >= GENERATIONS.index("2.9.1"):
        tables[PROCESSES] = columns("globalPid, pid, name TEXT")
    nodes = columns(f"{_CREATION}, graphNodeId!, originalGraphNodeId")
    of_graphs: tuple[str, str | None] = (GRAPH_EVENTS, None)
    if age >= GENERATIONS.index("3.16.1"):
        of_graphs = GRAPH_NODE_EVENTS, GRAPH_EVENTS
        tables[GRAPH_TRACE] = columns(f"{_where(age)}, graphId!, graphExecId!")
        tables[GRAPH_NODE_EVENTS] = nodes
        tables[DIAGNOSTICS] = columns("timestamp!, timestampType!, source!, severity!, text TEXT!, globalPid")
        tables[GRAPH_EVENTS] = columns(f"{_CREATION}, graphId!, originalGraphId, graphExecId")
    else:
        tables[GRAPH_EVENTS] = nodes
    version_table = {UNVERSIONED: None, "2.9.1": "EXPORT_META_DATA"}.get(version, VERSION)
    return Generation(version, tables, version_table, *of_graphs)


def columns(listed: str) -> Columns:
    """Columns by name; each is a number but where its type is told."""
    declared = {}
    for piece in listed.split(", "):
        name, _, kind = piece.partition(" ")
        required = " NOT NULL" if piece.endswith("!") else ""
        declared[name.rstrip("!")] = (kind.rstrip("!") or "INTEGER") + required
    return declared


def _where(age: int) -> str:
    green = "greenContextId, " if age >= GENERATIONS.index("3.7.2") else ""
    return f"start!, end!, deviceId!, contextId!, {green}streamId!, correlationId, globalPid"


def _nvtx(age: int) -> Columns:
    binary = ", binaryData TEXT" if age >= GENERATIONS.index("3.16.1") else ""
    return columns(
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
    return columns(
        f"{_where(age)}, demangledName!, shortName!, {mangled}launchType, cacheConfig, registersPerThread!, gridX!, "
        "gridY!, gridZ!, blockX!, blockY!, blockZ!, staticSharedMemory!, dynamicSharedMemory!, "
        "localMemoryPerThread!, localMemoryTotal!, gridId!, sharedMemoryExecuted, graphNodeId" + limit + newest
    )


def _memcpy(age: int) -> Columns:
    address = ", virtualAddress" if age >= GENERATIONS.index("2.9.1") else ""
    batched = ", copyCount" if age >= GENERATIONS.index("3.25.0") else ""
    return columns(
        f"{_where(age)}, bytes!, copyKind!, deprecatedSrcId, srcKind, dstKind, srcDeviceId, srcContextId, "
        f"dstDeviceId, dstContextId, migrationCause, graphNodeId{address}{batched}"
    )

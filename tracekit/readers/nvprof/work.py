"""Device work: kernels, copies, memsets, graphs traced as a whole, and migrations of unified memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.arrays.columns import integers, nullable
from tracekit.arrays.lookups import lookup, positions
from tracekit.causes.reports import OTHER_EVENT
from tracekit.readers.nvprof import tables as nvprof
from tracekit.readers.nvprof.names import full_name, kernel_name
from tracekit.readers.requests import ENCODED, Request
from tracekit.readers.rows.times import start_and_end
from tracekit.recording.tables import COPY_KINDS, GRAPH, KERNEL, MEMCPY, MEMSET, WORK

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.arrays.types import Ints
    from tracekit.nsight.stored import StoredTable
    from tracekit.readers.rows.encoded import Names
    from tracekit.recording.tally import Tally


class _Source(NamedTuple):
    """A table of device work.

    Attributes:
        table: The table.
        kind: What its rows are.
        columns: nvprof's column → ours.
        more: Other columns that are read.
    """

    table: StoredTable
    kind: int
    columns: dict[str, str]
    more: tuple[str, ...] = ()


_PLACE = {"deviceId": "device", "contextId": "context", "streamId": "stream", "correlationId": "correlation_id"}
_GRAPH = {"graphNodeId": "graph_node_id", "graphId": "graph_id"}
_KERNEL = {
    "gridX": "grid_x",
    "gridY": "grid_y",
    "gridZ": "grid_z",
    "blockX": "block_x",
    "blockY": "block_y",
    "blockZ": "block_z",
    "registersPerThread": "registers",
    "staticSharedMemory": "static_smem_bytes",
    "dynamicSharedMemory": "dynamic_smem_bytes",
}
#: In files of CUDA 5 the correlation id is that of the driver's call, and this one that of the runtime's around it.
_BY_RUNTIME = "runtimeCorrelationId"
_COPY = _PLACE | {"bytes": "bytes", "copyKind": "copy_kind"} | _GRAPH
_SOURCES = {
    "kernel": _Source(nvprof.KERNEL, KERNEL, _PLACE | _KERNEL | _GRAPH, ("gridId",)),
    "concurrent_kernel": _Source(nvprof.CONCURRENT_KERNEL, KERNEL, _PLACE | _KERNEL | _GRAPH, ("gridId",)),
    "cdp_kernel": _Source(nvprof.CDP_KERNEL, KERNEL, _PLACE | _KERNEL, ("gridId", "parentGridId")),
    "memcpy": _Source(nvprof.MEMCPY, MEMCPY, _COPY),
    "memcpy2": _Source(nvprof.MEMCPY2, MEMCPY, _COPY),
    "memset": _Source(nvprof.MEMSET, MEMSET, _PLACE | {"bytes": "bytes"} | _GRAPH, ("value",)),
    "graph": _Source(nvprof.GRAPH_TRACE, GRAPH, _PLACE | {"graphId": "graph_id"}),
    "unified": _Source(
        nvprof.UNIFIED_MEMORY,
        MEMCPY,
        {"value": "bytes"},
        ("counterKind", "srcId", "dstId", "processId", "address"),
    ),
}
_TYPES: Mapping[str, pa.DataType] = {column.name: column.type for column in WORK.columns}
WORK_TABLES = tuple(_SOURCES)
#: Kernels launch kernels at most this deep (cudaLimitDevRuntimeSyncDepth).
_DEEPEST = 24


def work_requests() -> dict[str, Request]:
    """What to read of the tables of device work."""
    requests = {}
    for name, source in _SOURCES.items():
        columns = {"start": pa.int64(), "end": pa.int64(), "name": ENCODED}
        columns |= {theirs: _TYPES[ours] for theirs, ours in source.columns.items()}
        columns |= dict.fromkeys((*source.more, _BY_RUNTIME), pa.int64())
        requests[name] = Request(
            source.table, {name: columns[name] for name in columns if name in source.table.columns}
        )
    return requests


def transfers(counters: pa.Table, tally: Tally) -> pa.Table:
    """The rows of unified memory's counters that are migrations; others, and those of older files, have no span."""
    timed = {"start", "end", "counterKind"} <= set(counters.column_names)
    moved = np.isin(integers(counters, "counterKind"), list(nvprof.TRANSFERS)) if timed else np.zeros(counters.num_rows)
    tally.add("events", OTHER_EVENT, int((moved == 0).sum()))
    return counters.filter(pa.array(moved)) if timed else pa.table({})


def linked_to_runtime(rows: pa.Table) -> pa.Table:
    """The rows linked to calls of the runtime, where these have ids of their own."""
    if not rows.num_rows or _BY_RUNTIME not in rows.column_names:
        return rows
    outer = rows.column(_BY_RUNTIME).fill_null(0)
    linked = pc.if_else(pc.greater(outer, 0), outer, rows.column("correlationId"))
    return rows.set_column(rows.column_names.index("correlationId"), "correlationId", linked)


def started_by_parents(tables: dict[str, pa.Table]) -> pa.Table:
    """Kernels that kernels launched, each linked to the API call that launched the first of them."""
    children = tables["cdp_kernel"]
    needed = {"deviceId", "gridId", "parentGridId"}
    if not children.num_rows or not needed <= set(children.column_names):
        return children
    hosts = [
        tables[name] for name in ("kernel", "concurrent_kernel") if needed - {"parentGridId"} <= _names(tables[name])
    ]
    grids = [_grids(host, "gridId") for host in (*hosts, children)]
    known, first, count = np.unique(np.concatenate(grids), return_index=True, return_counts=True)
    of_host = np.concatenate([np.empty(0, np.int64), *(integers(host, "correlationId") for host in hosts)])
    # Which call began a kernel is not known where none of the host did, or where ids of grids come again.
    correlation = np.append(of_host, np.full(children.num_rows, -1))
    child, parent = positions(grids[-1], known), positions(_grids(children, "parentGridId"), known)
    of_grid = np.where(count == 1, correlation[first], -1)
    for _ in range(_DEEPEST):
        of_grid[child] = np.where(of_grid[child] < 0, lookup(of_grid, parent), of_grid[child])
    at = children.column_names.index("correlationId")
    return children.set_column(at, "correlationId", nullable(of_grid[child], pa.int64()))


def _grids(rows: pa.Table, column: str) -> Ints:
    """A number for each grid of each GPU."""
    grid = integers(rows, column)
    return integers(rows, "deviceId").astype(np.int64) << 48 ^ grid


def _names(rows: pa.Table) -> set[str]:
    return set(rows.column_names)


class Spelling(NamedTuple):
    """The strings of the report, and where names are kept."""

    symbols: Names
    names: Names


def work_table(tables: dict[str, pa.Table], spelling: Spelling, pids: Ints, tally: Tally) -> pa.Table:
    """All pieces of device work; only of migrations their process is recorded.

    Args:
        tables: Distinct rows, which are taken out of the dict.
        spelling: Strings and names.
        pids: Process ids, in order.
        tally: Where losses are counted.
    """
    parts = []
    for name in WORK_TABLES:
        rows = tables.pop(name)
        if rows.num_rows:
            parts.append(_work_of(_SOURCES[name], rows, spelling, pids, tally))
    return pa.concat_tables(parts).combine_chunks() if parts else WORK.empty()


def _work_of(source: _Source, rows: pa.Table, spelling: Spelling, pids: Ints, tally: Tally) -> pa.Table:
    start, end = start_and_end(rows, source.table.name, "kernels", tally)
    columns: dict[str, object] = {column.name: pa.nulls(rows.num_rows, column.type) for column in WORK.columns}
    columns |= {"kind": np.full(rows.num_rows, source.kind, dtype=np.int8), "start_ns": start, "end_ns": end}
    columns |= {ours: rows.column(theirs) for theirs, ours in source.columns.items() if theirs in rows.column_names}
    if source.table is nvprof.UNIFIED_MEMORY:
        columns |= _migration(rows, pids)
    if source.kind == MEMCPY:
        columns["copy_kind"] = _known_kinds(columns["copy_kind"])
    for column in _GRAPH.values():
        # Work outside of graphs has 0.
        columns[column] = pc.if_else(pc.equal(columns[column], 0), pa.scalar(None, pa.int64()), columns[column])
    return WORK.table(columns | _name_columns(source, rows, columns, spelling))


def _migration(rows: pa.Table, pids: Ints) -> dict[str, object]:
    """Direction, GPU and process of a migration."""
    counter = integers(rows, "counterKind")
    kind = np.select([counter == number for number in nvprof.TRANSFERS], list(nvprof.TRANSFERS.values()))
    source, target, pid = (_ids(rows, name) for name in ("srcId", "dstId", "processId"))
    device = np.where(counter == nvprof.TO_HOST, source, target)
    return {
        "copy_kind": pa.array(kind, pa.int32()),
        "device": nullable(device, pa.int32()),
        "process": nullable(positions(pid, pids), pa.int32()),
    }


def _ids(rows: pa.Table, name: str) -> Ints:
    return integers(rows, name) if name in rows.column_names else np.full(rows.num_rows, -1)


def _known_kinds(kinds: object) -> pa.Array:
    """Directions of copies; an undefined code counts as Unknown."""
    code = integers(pa.table({"kind": kinds}), "kind", null=0)
    return pa.array(np.where((code >= 0) & (code < len(COPY_KINDS)), code, 0).astype(np.int32))


def _name_columns(
    source: _Source, rows: pa.Table, columns: Mapping[str, object], spelling: Spelling
) -> dict[str, object]:
    symbols, names = spelling
    if "name" in rows.column_names:
        symbol = symbols.rows(rows.column("name"))
        used = symbols.used
        short, full = (
            lookup(np.array([names.row(spelled(text)) for text in used], dtype=np.int64), symbol)
            for spelled in (kernel_name, full_name)
        )
    elif source.kind == MEMCPY:
        labels = [names.row(f"[CUDA memcpy {label}]") for label in COPY_KINDS]
        short = full = np.array(labels, dtype=np.int64)[np.asarray(columns["copy_kind"])]
    else:
        label = {MEMSET: "[CUDA memset]", GRAPH: "[CUDA graph]"}[source.kind]
        short = full = np.full(rows.num_rows, names.row(label))
    return {"name": nullable(short, pa.int32()), "full_name": nullable(full, pa.int32())}

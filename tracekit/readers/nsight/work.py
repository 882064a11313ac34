"""API calls and device work of a report."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.arrays.columns import in_order, integers, nullable
from tracekit.arrays.intervals import nesting_order, one_axis
from tracekit.causes.reports import FAILED_CALL, NO_CORRELATION_ID
from tracekit.nsight import tables as nsight
from tracekit.readers.requests import ENCODED, Request
from tracekit.readers.rows.times import start_and_end
from tracekit.recording.tables import (
    COPY_KINDS,
    GRAPH,
    KERNEL,
    LAUNCHES,
    MEMCPY,
    MEMSET,
    WORK,
    names_starting,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.arrays.types import Flags, Ints
    from tracekit.nsight.stored import StoredTable
    from tracekit.readers.nsight.ids import GlobalIds
    from tracekit.readers.rows.encoded import Names
    from tracekit.recording.tally import Tally

#: Nsight's column → ours, for what every table of device work has.
_COMMON = {
    "deviceId": "device",
    "contextId": "context",
    "streamId": "stream",
    "correlationId": "correlation_id",
}
_KERNEL_ONLY = {
    "gridX": "grid_x",
    "gridY": "grid_y",
    "gridZ": "grid_z",
    "blockX": "block_x",
    "blockY": "block_y",
    "blockZ": "block_z",
    "registersPerThread": "registers",
    "staticSharedMemory": "static_smem_bytes",
    "dynamicSharedMemory": "dynamic_smem_bytes",
    "graphId": "graph_id",
    "graphNodeId": "graph_node_id",
}
WORK_TABLES: dict[str, tuple[StoredTable, int, dict[str, str]]] = {
    "kernel": (nsight.KERNEL, KERNEL, _KERNEL_ONLY),
    "memcpy": (
        nsight.MEMCPY,
        MEMCPY,
        {"bytes": "bytes", "copyKind": "copy_kind", "graphNodeId": "graph_node_id"},
    ),
    "memset": (nsight.MEMSET, MEMSET, {"bytes": "bytes", "graphNodeId": "graph_node_id"}),
    "graph": (nsight.GRAPH_TRACE, GRAPH, {"graphId": "graph_id", "graphExecId": "graph_exec_id"}),
}
_TYPES: Mapping[str, pa.DataType] = {column.name: column.type for column in WORK.columns}
_ABI_VERSION = re.compile(r"_v\d+$")
#: Return values that are no failure: success, and "not ready", the answer of queries.
_NO_FAILURE = (0, 600)
#: They end a graph capture even if they return an error.
_ENDS_EITHER_WAY = ("cudaStreamEndCapture", "cuStreamEndCapture")


def work_requests() -> dict[str, Request]:
    """What to read of the tables of device work."""
    requests = {}
    for name, (table, _, own) in WORK_TABLES.items():
        columns = {"start": pa.int64(), "end": pa.int64(), "globalPid": ENCODED}
        columns |= {theirs: _TYPES[ours] for theirs, ours in (_COMMON | own).items()}
        columns |= {column: ENCODED for column in ("shortName", "demangledName") if column in table.columns}
        requests[name] = Request(table, columns)
    return requests


def launches_table(calls: pa.Table, ids: GlobalIds, names: Names, tally: Tally) -> tuple[pa.Table, pa.Table]:
    """API calls that may have launched work.

    Returns:
        The calls, and those that failed and so launched nothing.
    """
    calls = _linked_calls(calls, tally)
    if not calls.num_rows:
        return LAUNCHES.empty(), LAUNCHES.empty()
    start, end = start_and_end(calls, nsight.RUNTIME.name, "launches", tally)
    thread, name = ids.threads(calls.column("globalTid")), _call_names(calls, names)
    launches = LAUNCHES.table(
        {
            "start_ns": start,
            "end_ns": end,
            "thread": thread.astype(np.int32),
            "correlation_id": calls.column("correlationId"),
            "name": nullable(name, pa.int32()),
            "kernel": None,
        }
    )
    order = nesting_order(*one_axis([thread, thread], [start, end]))
    launches, failed = in_order(launches, order), _failed(calls, name, names)[order]
    if not failed.any():
        return launches, LAUNCHES.empty()
    tally.add("launches", FAILED_CALL, int(failed.sum()))
    return launches.filter(pa.array(~failed)), launches.filter(pa.array(failed))


def _linked_calls(calls: pa.Table, tally: Tally) -> pa.Table:
    """The calls without rows that repeat one to carry its backtrace, and without those that no work can refer to."""
    if not calls.num_rows:
        return calls
    if "eventClass" in calls.column_names:
        backtrace = pc.equal(calls.column("eventClass"), nsight.BACKTRACE_CLASS).fill_null(False)  # noqa: FBT003
        if pc.any(backtrace).as_py():
            calls = calls.filter(pc.invert(backtrace))
    if unlinked := calls.column("correlationId").null_count:
        calls = calls.filter(calls.column("correlationId").is_valid())
        tally.add("launches", NO_CORRELATION_ID, unlinked)
    return calls


def _call_names(calls: pa.Table, names: Names) -> Ints:
    if "nameId" not in calls.column_names:
        return np.full(calls.num_rows, -1)
    return names.rows(calls.column("nameId"), spelled=_without_abi)


def _failed(calls: pa.Table, name: Ints, names: Names) -> Flags:
    """Which calls returned an error; none if the report does not record return values."""
    if "returnValue" not in calls.column_names:
        return np.zeros(calls.num_rows, dtype=bool)
    failed = ~np.isin(integers(calls, "returnValue", null=0), _NO_FAILURE)
    return failed & ~np.isin(name, names_starting(names.used, _ENDS_EITHER_WAY))


def _without_abi(name: str) -> str:
    """``cudaLaunchKernel_v7000`` is the runtime's ``cudaLaunchKernel``."""
    return _ABI_VERSION.sub("", name)


def work_table(tables: dict[str, pa.Table], ids: GlobalIds, names: Names, tally: Tally) -> pa.Table:
    """All pieces of device work."""
    parts = []
    for name in WORK_TABLES:
        rows = tables.pop(name)
        if rows.num_rows:
            parts.append(_work_of(name, rows, ids, names, tally))
    return pa.concat_tables(parts).combine_chunks() if parts else WORK.empty()


def _work_of(name: str, rows: pa.Table, ids: GlobalIds, names: Names, tally: Tally) -> pa.Table:
    _, kind, own = WORK_TABLES[name]
    start, end = start_and_end(rows, WORK_TABLES[name][0].name, "kernels", tally)
    columns: dict[str, object] = dict.fromkeys(column.name for column in WORK.columns)
    columns["kind"] = np.full(rows.num_rows, kind, dtype=np.int8)
    columns |= {"start_ns": start, "end_ns": end}
    columns["process"] = nullable(ids.processes(rows.column("globalPid")), pa.int32())
    present = {theirs: ours for theirs, ours in (_COMMON | own).items() if theirs in rows.column_names}
    columns |= {ours: rows.column(theirs) for theirs, ours in present.items()}
    columns |= _name_columns(name, rows, names)
    if "copy_kind" in present.values():
        columns["copy_kind"] = _known_kinds(rows).astype(np.int32)
    if "graph_node_id" in present.values():
        # Some writers put 0 for work outside graphs.
        node = columns["graph_node_id"]
        columns["graph_node_id"] = pc.if_else(pc.equal(node, 0), pa.scalar(None, pa.int64()), node)
    return WORK.table(columns)


def _name_columns(kind: str, rows: pa.Table, names: Names) -> dict[str, object]:
    short = names.rows(rows.column("shortName")) if "shortName" in rows.column_names else None
    full = names.rows(rows.column("demangledName")) if "demangledName" in rows.column_names else None
    if kind == "memcpy":
        short = _copy_names(rows, names)
    elif short is None and full is None:
        label = {"memset": "[CUDA memset]", "graph": "[CUDA graph]"}.get(kind)
        short = None if label is None else np.full(rows.num_rows, names.row(label))
    short = full if short is None else short
    full = short if full is None else full
    if short is None or full is None:
        return {}
    return {"name": nullable(short, pa.int32()), "full_name": nullable(full, pa.int32())}


def _copy_names(rows: pa.Table, names: Names) -> Ints:
    if "copyKind" not in rows.column_names:
        return np.full(rows.num_rows, names.row("[CUDA memcpy]"))
    kinds = _known_kinds(rows)
    labels = [names.row(f"[CUDA memcpy {label}]") for label in COPY_KINDS]
    return np.asarray(labels, dtype=np.int64)[kinds]


def _known_kinds(rows: pa.Table) -> Ints:
    """Directions of copies; an undefined code counts as Unknown."""
    kinds = integers(rows, "copyKind", null=0)
    return np.where((kinds >= 0) & (kinds < len(COPY_KINDS)), kinds, 0)

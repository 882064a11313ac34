"""API calls, device work and CUDA graphs of a report.

``CUDA_GRAPH_EVENTS`` holds nodes in files up to schema 3.7.2 and graphs in later ones, where ``CUDA_GRAPH_NODE_EVENTS``
holds the nodes. So not the name decides but the columns: a row that names a node is about a node.
"""

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.arrays.columns import integers, numbers
from tracekit.arrays.types import Flags, Ints
from tracekit.causes import NO_CORRELATION_ID
from tracekit.nsight import tables as nsight
from tracekit.nsight.tables import StoredTable
from tracekit.readers.nsight.threads import GlobalIds
from tracekit.readers.rows import KERNEL_COLUMNS, WORK_COLUMNS, Names, start_and_end, without_failed
from tracekit.readers.source import ENCODED, Request
from tracekit.recording.provenance import LossCounters
from tracekit.recording.tables import (
    GRAPH,
    GRAPH_CLONED,
    GRAPH_CREATED,
    GRAPH_INSTANTIATED,
    KERNEL,
    MEMCPY,
    MEMSET,
    NO_TIME,
    GraphNodes,
    Graphs,
    Launches,
    Work,
)
from tracekit.recording.values import COPY_KINDS

#: Nsight's column → ours.
_KERNEL_ONLY = KERNEL_COLUMNS | {"graphId": "graph_id", "graphNodeId": "graph_node_id"}
WORK_TABLES: dict[str, tuple[StoredTable, int, dict[str, str]]] = {
    "kernel": (nsight.KERNEL, KERNEL, _KERNEL_ONLY),
    "memcpy": (nsight.MEMCPY, MEMCPY, {"bytes": "bytes", "copyKind": "copy_kind", "graphNodeId": "graph_node_id"}),
    "memset": (nsight.MEMSET, MEMSET, {"bytes": "bytes", "graphNodeId": "graph_node_id"}),
    "graph": (nsight.GRAPH_TRACE, GRAPH, {"graphId": "graph_id", "graphExecId": "graph_exec_id"}),
}
_MEMORY_KINDS = ("srcKind", "dstKind")
_ABI_VERSION = re.compile(r"_v\d+$")


def work_requests() -> dict[str, Request]:
    """What to read of the tables of device work."""
    requests = {}
    for name, (table, _, own) in WORK_TABLES.items():
        columns = {"start": pa.int64(), "end": pa.int64(), "globalPid": ENCODED}
        columns |= {theirs: pa.from_numpy_dtype(Work.dtype(ours)) for theirs, ours in (WORK_COLUMNS | own).items()}
        columns |= dict.fromkeys(_MEMORY_KINDS if name == "memcpy" else (), pa.int32())
        columns |= {column: ENCODED for column in ("shortName", "demangledName") if column in table.columns}
        requests[name] = Request(table, columns)
    return requests


def launches_table(calls: pa.Table, ids: GlobalIds, names: Names, counters: LossCounters) -> tuple[Launches, Launches]:
    """API calls that may have launched work, and those that failed and so launched nothing."""
    calls = _linked_calls(calls, counters)
    if not calls.num_rows:
        return Launches.empty(), Launches.empty()
    start, end = start_and_end(calls, nsight.RUNTIME.name, "launches", counters)
    thread, name = ids.threads(calls.column("globalTid")), names.rows(calls, "nameId", spelled=_without_abi)
    correlation_id = integers(calls, "correlationId")
    launches = Launches.of(start_ns=start, end_ns=end, thread=thread, correlation_id=correlation_id, name=name)
    has_codes = "returnValue" in calls.column_names
    returned = integers(calls, "returnValue", null=0) if has_codes else np.zeros(calls.num_rows, np.int64)
    return without_failed(launches, returned, names.used, counters)


def _linked_calls(calls: pa.Table, counters: LossCounters) -> pa.Table:
    """The calls without rows that repeat one to carry its backtrace, and without those that no work can refer to."""
    if not calls.num_rows:
        return calls
    if "eventClass" in calls.column_names:
        backtrace = pc.equal(calls.column("eventClass"), nsight.BACKTRACE_CLASS).fill_null(False)  # noqa: FBT003
        if pc.any(backtrace).as_py():
            calls = calls.filter(pc.invert(backtrace))
    if unlinked := calls.column("correlationId").null_count:
        calls = calls.filter(calls.column("correlationId").is_valid())
        counters.add("launches", NO_CORRELATION_ID, unlinked)
    return calls


def _without_abi(name: str) -> str:
    return _ABI_VERSION.sub("", name)


def work_table(tables: dict[str, pa.Table], ids: GlobalIds, names: Names, counters: LossCounters) -> Work:
    """All pieces of device work."""
    return Work.concat(
        [_work_of(name, rows, ids, names, counters) for name in WORK_TABLES if (rows := tables.pop(name)).num_rows]
    )


def _work_of(name: str, rows: pa.Table, ids: GlobalIds, names: Names, counters: LossCounters) -> Work:
    _, kind, own = WORK_TABLES[name]
    start, end = start_and_end(rows, WORK_TABLES[name][0].name, "kernels", counters)
    columns = {"kind": np.full(rows.num_rows, kind, dtype=np.int8), "start_ns": start, "end_ns": end}
    columns["process"] = ids.processes(rows.column("globalPid"))
    present = {theirs: ours for theirs, ours in (WORK_COLUMNS | own).items() if theirs in rows.column_names}
    columns |= {ours: numbers(rows, theirs) for theirs, ours in present.items()}
    columns |= _name_columns(name, rows, names)
    if "copy_kind" in columns:
        columns["copy_kind"] = _known_kinds(rows)
    if ends := [numbers(rows, end) == nsight.PAGEABLE for end in _MEMORY_KINDS if end in rows.column_names]:
        columns["pageable"] = np.any(ends, axis=0)
    if "graph_node_id" in columns:
        # Some writers put 0 for work outside graphs.
        node = columns["graph_node_id"]
        columns["graph_node_id"] = np.where(node == 0, -1, node) if node.strides != (0,) else node
    return Work.of(**columns)


def _name_columns(kind: str, rows: pa.Table, names: Names) -> dict[str, Ints]:
    columns = ("shortName", "demangledName")
    short, full = (names.rows(rows, column) if column in rows.column_names else None for column in columns)
    if kind == "memcpy":
        short = _copy_names(rows, names)
    elif short is None and full is None:
        label = {"memset": "[CUDA memset]", "graph": "[CUDA graph]"}.get(kind)
        short = None if label is None else np.full(rows.num_rows, names.row(label))
    short = full if short is None else short
    full = short if full is None else full
    return {} if short is None or full is None else {"name": short, "full_name": full}


def _copy_names(rows: pa.Table, names: Names) -> Ints:
    if "copyKind" not in rows.column_names:
        return np.full(rows.num_rows, names.row("[CUDA memcpy]"))
    kinds = _known_kinds(rows)
    labels = [names.row(f"[CUDA memcpy {label}]") for label in COPY_KINDS]
    return np.asarray(labels, dtype=np.int64)[kinds]


def _known_kinds(rows: pa.Table) -> Ints:
    kinds = integers(rows, "copyKind", null=0)
    return np.where((kinds >= 0) & (kinds < len(COPY_KINDS)), kinds, 0)


GRAPH_TABLES = {"graph_events": nsight.GRAPH_EVENTS, "node_events": nsight.GRAPH_NODE_EVENTS}
_IDS = ("graphNodeId", "originalGraphNodeId", "graphId", "originalGraphId", "graphExecId")
#: Nsight's class of event → ours.
_EVENTS = {
    nsight.GRAPH_CREATED: GRAPH_CREATED,
    nsight.GRAPH_CLONED: GRAPH_CLONED,
    nsight.GRAPH_INSTANTIATED: GRAPH_INSTANTIATED,
}


def graph_requests() -> dict[str, Request]:
    """What to read of both tables."""
    columns = {"start": pa.int64(), "eventClass": pa.int32(), "globalTid": ENCODED}
    columns |= dict.fromkeys(_IDS, pa.int64())
    return {name: Request(table, columns) for name, table in GRAPH_TABLES.items()}


def graph_tables(tables: dict[str, pa.Table], ids: GlobalIds) -> tuple[GraphNodes, Graphs]:
    """Records of nodes and of graphs."""
    nodes: list[GraphNodes] = []
    graphs: list[Graphs] = []
    for name in GRAPH_TABLES:
        rows = tables.pop(name)
        if not rows.num_rows or "globalTid" not in rows.column_names:
            continue
        of_node = _column(rows, "graphNodeId") != -1
        nodes.append(_nodes(_chosen(rows, of_node), ids))
        graphs.append(_graphs(_chosen(rows, ~of_node), ids))
    return GraphNodes.concat(nodes), Graphs.concat(graphs)


def _chosen(rows: pa.Table, which: Flags) -> pa.Table:
    return rows if bool(which.all()) else rows.filter(pa.array(which))


def _nodes(rows: pa.Table, ids: GlobalIds) -> GraphNodes:
    if "eventClass" in rows.column_names:
        rows = _chosen(rows, integers(rows, "eventClass") != nsight.NODE_CHANGED)
    return GraphNodes.of(
        start_ns=_column(rows, "start", NO_TIME),
        thread=ids.threads(rows.column("globalTid")),
        node_id=_column(rows, "graphNodeId"),
        original_node_id=_column(rows, "originalGraphNodeId"),
    )


def _graphs(rows: pa.Table, ids: GlobalIds) -> Graphs:
    if "eventClass" not in rows.column_names:
        return Graphs.empty()
    rows = rows.filter(pa.array(np.isin(integers(rows, "eventClass"), list(_EVENTS))))
    event = integers(rows, "eventClass")
    return Graphs.of(
        event=np.select([event == theirs for theirs in _EVENTS], list(_EVENTS.values())),
        start_ns=_column(rows, "start", NO_TIME),
        thread=ids.threads(rows.column("globalTid")),
        graph_id=_column(rows, "graphId"),
        original_graph_id=_column(rows, "originalGraphId"),
        exec_id=_column(rows, "graphExecId"),
    )


def _column(rows: pa.Table, name: str, null: int = -1) -> Ints:
    return integers(rows, name, null) if name in rows.column_names else np.full(rows.num_rows, null, np.int64)

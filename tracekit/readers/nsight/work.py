"""API calls, device work and CUDA graphs of a report.

``CUDA_GRAPH_EVENTS`` holds nodes in files up to schema 3.7.2 and graphs in later ones, where ``CUDA_GRAPH_NODE_EVENTS``
holds the nodes. So not the name decides but the columns: a row that names a node is about a node.
"""

import re

import numpy as np
import pyarrow as pa

from tracekit.arrays.columns import integers
from tracekit.arrays.types import Flags
from tracekit.nsight import tables as nsight
from tracekit.nsight.tables import StoredTable
from tracekit.readers import cupti
from tracekit.readers.nsight.threads import GlobalIds
from tracekit.readers.rows import Names, integers_or_null, start_and_end
from tracekit.readers.source import ENCODED, Request
from tracekit.recording import tables as ours
from tracekit.recording.provenance import LossCounters
from tracekit.recording.tables import NO_TIME, GraphNodes, Graphs, Launches, Work

#: Nsight's column → ours.
_NODE = {"graphNodeId": "graph_node_id"}
WORK_TABLES: dict[str, tuple[StoredTable, int, dict[str, str]]] = {
    "kernel": (nsight.KERNEL, ours.KERNEL, _NODE | cupti.KERNEL_COLUMNS | {"graphId": "graph_id"}),
    "memcpy": (nsight.MEMCPY, ours.MEMCPY, _NODE | {"bytes": "bytes", "copyKind": "copy_kind"}),
    "memset": (nsight.MEMSET, ours.MEMSET, _NODE | {"bytes": "bytes"}),
    "graph": (nsight.GRAPH_TRACE, ours.GRAPH, {"graphId": "graph_id", "graphExecId": "graph_exec_id"}),
}
_ABI_VERSION = re.compile(r"_v\d+$")


_RUNTIME_COLUMNS = {"start": pa.int64(), "end": pa.int64(), "eventClass": pa.int32(), "globalTid": ENCODED}
_RUNTIME_COLUMNS |= {"correlationId": pa.int64(), "nameId": ENCODED, "returnValue": pa.int64()}
_GRAPH_TABLES = {"graph_events": nsight.GRAPH_EVENTS, "node_events": nsight.GRAPH_NODE_EVENTS}
_IDS = ("graphNodeId", "originalGraphNodeId", "graphId", "originalGraphId", "graphExecId")
_GRAPH_COLUMNS = {"start": pa.int64(), "eventClass": pa.int32(), "globalTid": ENCODED} | dict.fromkeys(_IDS, pa.int64())
#: Nsight's class of event → ours.
_EVENTS = {
    nsight.GRAPH_CREATED: ours.GRAPH_CREATED,
    nsight.GRAPH_CLONED: ours.GRAPH_CLONED,
    nsight.GRAPH_INSTANTIATED: ours.GRAPH_INSTANTIATED,
}


def requests() -> dict[str, Request]:
    """What to read of these tables."""
    return {
        "runtime": Request(nsight.RUNTIME, _RUNTIME_COLUMNS, rare=("returnValue",)),
        **{name: cupti.work_request(table, columns) for name, (table, _, columns) in WORK_TABLES.items()},
        **{name: Request(table, _GRAPH_COLUMNS) for name, table in _GRAPH_TABLES.items()},
    }


def launches_table(calls: pa.Table, ids: GlobalIds, names: Names, counters: LossCounters) -> tuple[Launches, Launches]:
    """API calls that may have launched work, and those that failed and so launched nothing."""
    if not calls.num_rows:
        return Launches.empty(), Launches.empty()
    # A row of this class repeats another one to carry its backtrace.
    repeats = integers_or_null(calls, "eventClass") == nsight.BACKTRACE_CLASS
    calls = cupti.linked(_filtered(calls, ~repeats), counters)
    start, end = start_and_end(calls, nsight.RUNTIME.name, "launches", counters)
    launches = Launches.of(
        start_ns=start,
        end_ns=end,
        thread=ids.threads(calls.column("globalTid")),
        correlation_id=integers(calls, "correlationId"),
        name=names.rows(calls, "nameId", spelled=lambda name: _ABI_VERSION.sub("", name)),
    )
    return cupti.without_failed(launches, integers_or_null(calls, "returnValue", 0), names.used, counters)


def work_table(tables: dict[str, pa.Table], ids: GlobalIds, names: Names, counters: LossCounters) -> Work:
    """All pieces of device work; takes their tables out of the dict."""
    return Work.concat(
        [_work_of(name, rows, ids, names, counters) for name in WORK_TABLES if (rows := tables.pop(name)).num_rows]
    )


def _work_of(name: str, rows: pa.Table, ids: GlobalIds, names: Names, counters: LossCounters) -> Work:
    columns = cupti.work_columns(rows, *WORK_TABLES[name], nsight.PAGEABLE, counters)
    columns["process"] = ids.processes(rows.column("globalPid"))
    if name != "kernel":
        columns["name"] = columns["full_name"] = cupti.labels(columns, names)
    elif named := [column for column in ("shortName", "demangledName") if column in rows.column_names]:
        columns |= {"name": names.rows(rows, named[0]), "full_name": names.rows(rows, named[-1])}
    return Work.of(**columns)


def graph_tables(tables: dict[str, pa.Table], ids: GlobalIds) -> tuple[GraphNodes, Graphs]:
    """Records of nodes and of graphs."""
    nodes: list[GraphNodes] = []
    graphs: list[Graphs] = []
    for name in _GRAPH_TABLES:
        rows = tables.pop(name)
        if not rows.num_rows or "globalTid" not in rows.column_names:
            continue
        of_node = integers_or_null(rows, "graphNodeId") != -1
        nodes.append(_nodes(_filtered(rows, of_node), ids))
        graphs.append(_graphs(_filtered(rows, ~of_node), ids))
    return GraphNodes.concat(nodes), Graphs.concat(graphs)


def _filtered(rows: pa.Table, keep: Flags) -> pa.Table:
    return rows if bool(keep.all()) else rows.filter(pa.array(keep))


def _nodes(rows: pa.Table, ids: GlobalIds) -> GraphNodes:
    rows = _filtered(rows, integers_or_null(rows, "eventClass") != nsight.NODE_CHANGED)
    return GraphNodes.of(
        start_ns=integers_or_null(rows, "start", NO_TIME),
        thread=ids.threads(rows.column("globalTid")),
        node_id=integers_or_null(rows, "graphNodeId"),
        original_node_id=integers_or_null(rows, "originalGraphNodeId"),
    )


def _graphs(rows: pa.Table, ids: GlobalIds) -> Graphs:
    rows = _filtered(rows, np.isin(integers_or_null(rows, "eventClass"), list(_EVENTS)))
    event = integers_or_null(rows, "eventClass")
    return Graphs.of(
        event=np.select([event == theirs for theirs in _EVENTS], list(_EVENTS.values())),
        start_ns=integers_or_null(rows, "start", NO_TIME),
        thread=ids.threads(rows.column("globalTid")),
        graph_id=integers_or_null(rows, "graphId"),
        original_graph_id=integers_or_null(rows, "originalGraphId"),
        exec_id=integers_or_null(rows, "graphExecId"),
    )

"""Creation of CUDA graphs and of their nodes.

``CUDA_GRAPH_EVENTS`` holds nodes in files up to schema 3.7.2 and graphs in later ones, where
``CUDA_GRAPH_NODE_EVENTS`` holds the nodes. So not the name decides but the columns:
a row that names a node is about a node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tracekit.arrays.columns import integers
from tracekit.nsight import tables as nsight
from tracekit.readers.requests import ENCODED, Request
from tracekit.recording.tables import (
    GRAPH_CLONED,
    GRAPH_CREATED,
    GRAPH_INSTANTIATED,
    GRAPH_NODES,
    GRAPHS,
)

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags
    from tracekit.readers.nsight.ids import GlobalIds

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


def graph_tables(tables: dict[str, pa.Table], ids: GlobalIds) -> tuple[pa.Table, pa.Table]:
    """Nodes and graphs.

    Returns:
        The tables ``GRAPH_NODES`` and ``GRAPHS``.
    """
    nodes, graphs = [GRAPH_NODES.empty()], [GRAPHS.empty()]
    for name in GRAPH_TABLES:
        rows = tables.pop(name)
        if not rows.num_rows or "globalTid" not in rows.column_names:
            continue
        of_node = _of_node(rows)
        nodes.append(_nodes(rows.filter(pa.array(of_node)), ids))
        graphs.append(_graphs(rows.filter(pa.array(~of_node)), ids))
    return pa.concat_tables(nodes).combine_chunks(), pa.concat_tables(graphs).combine_chunks()


def _of_node(rows: pa.Table) -> Flags:
    return np.asarray(_column(rows, "graphNodeId").is_valid())


def _nodes(rows: pa.Table, ids: GlobalIds) -> pa.Table:
    """Rows about nodes, without those that change an existing node."""
    if "eventClass" in rows.column_names:
        rows = rows.filter(pa.array(integers(rows, "eventClass") != nsight.NODE_CHANGED))
    return GRAPH_NODES.table(
        {
            "start_ns": _column(rows, "start"),
            "thread": ids.threads(rows.column("globalTid")).astype(np.int32),
            "node_id": _column(rows, "graphNodeId"),
            "original_node_id": _column(rows, "originalGraphNodeId"),
        }
    )


def _graphs(rows: pa.Table, ids: GlobalIds) -> pa.Table:
    """Rows about the creation of graphs, of the kinds that are understood."""
    if "eventClass" not in rows.column_names:
        return GRAPHS.empty()
    rows = rows.filter(pa.array(np.isin(integers(rows, "eventClass"), list(_EVENTS))))
    event = integers(rows, "eventClass")
    return GRAPHS.table(
        {
            "event": np.select([event == theirs for theirs in _EVENTS], list(_EVENTS.values())),
            "start_ns": _column(rows, "start"),
            "thread": ids.threads(rows.column("globalTid")).astype(np.int32),
            "graph_id": _column(rows, "graphId"),
            "original_graph_id": _column(rows, "originalGraphId"),
            "exec_id": _column(rows, "graphExecId"),
        }
    )


def _column(rows: pa.Table, name: str) -> pa.ChunkedArray:
    """A column; all null if the file does not have it."""
    if name in rows.column_names:
        return rows.column(name)
    return pa.chunked_array([pa.nulls(rows.num_rows, pa.int64())])

"""Work of an export: what ran on devices, and operators where nothing did."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.arrays.columns import integers
from tracekit.recording.operators import no_operators, operators_as_work
from tracekit.recording.tables import COPY_KINDS, CPU_OP, GRAPH_NODES, WORK, WORK_KINDS

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints
    from tracekit.readers.exported.threads import Tracks
    from tracekit.recording.operators import Operators

_SAME = (
    *("device", "context", "stream", "bytes", "registers", "static_smem_bytes", "dynamic_smem_bytes"),
    *("graph_id", "graph_exec_id", "graph_node_id"),
    *(f"{size}_{axis}" for size in ("grid", "block") for axis in "xyz"),
)


class Texts:
    """Texts of a recording, each once."""

    def __init__(self) -> None:
        self._row: dict[str, int] = {}

    @property
    def texts(self) -> list[str]:
        """The texts by row."""
        return list(self._row)

    def rows(self, column: pa.ChunkedArray) -> pa.Array:
        """The rows of a column's texts."""
        encoded = column.combine_chunks()
        words = encoded.dictionary.to_pylist()
        rows = [self._row.setdefault(word, len(self._row)) for word in words]
        return pa.array(rows, pa.int32()).take(encoded.indices)


def is_operator(events: pa.Table) -> Flags:
    """Which work is operators."""
    return np.asarray(pc.equal(events.column("kind").cast(pa.string()).fill_null(""), WORK_KINDS[CPU_OP]), dtype=bool)


def in_order_of_ids(events: pa.Table) -> pa.Table:
    """Work as a recording has it: what ran on devices before operators, by their ids."""
    return events.take(pa.array(np.lexsort((integers(events, "kernel_id"), is_operator(events)))))


def work_table(events: pa.Table, tracks: Tracks, names: Texts) -> pa.Table:
    """The table ``WORK`` of what ran on devices."""
    events = events.filter(pa.array(~is_operator(events)))
    process = tracks.processes_of(events)
    columns: dict[str, object] = {name: _cast(events.column(name), name) for name in _SAME}
    columns |= {"start_ns": events.column("start"), "end_ns": events.column("end")}
    columns |= {"kind": _kinds(events), "process": pa.array(process, pa.int32(), mask=process < 0)}
    columns |= {"correlation_id": events.column("correlation"), "copy_kind": _copy_kinds(events)}
    columns |= {"name": names.rows(events.column("name")), "full_name": names.rows(events.column("full_name"))}
    return WORK.table(columns)


def operators_of(events: pa.Table, tracks: Tracks, names: Texts) -> Operators:
    """Operators as work."""
    events = events.filter(pa.array(is_operator(events)))
    if not events.num_rows:
        return no_operators()
    thread = tracks.threads_of(events)
    name = np.asarray(names.rows(events.column("name")).fill_null(-1))
    start, end = integers(events, "start"), integers(events, "end")
    return operators_as_work(start, end, thread, tracks.threads.process[thread], name)


def graph_nodes(events: pa.Table, tracks: Tracks) -> pa.Table:
    """The table ``GRAPH_NODES``: which nodes are copies of which, as far as the nodes did work."""
    process = tracks.processes_of(events)
    node, original = integers(events, "graph_node_id"), integers(events, "original_graph_node_id")
    known = np.asarray(events.column("original_graph_node_id").is_valid()) & (process >= 0)
    rows = np.stack((process[known], node[known], original[known]))
    copies = np.unique(rows[:, rows[1] != rows[2]], axis=1)
    owner, made = np.unique(rows[[0, 2]], axis=1)
    # Some thread of the process: which one made the nodes is not known.
    thread = np.searchsorted(tracks.threads.process, np.concatenate((owner, copies[0])))
    columns = {
        "start_ns": pa.nulls(thread.size, pa.int64()),
        "thread": thread,
        "node_id": np.concatenate((made, copies[1])),
        "original_node_id": pa.concat_arrays([pa.nulls(made.size, pa.int64()), pa.array(copies[2])]),
    }
    return GRAPH_NODES.table(columns)


def _cast(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    return column.cast(WORK.schema().field(name).type)


def _kinds(events: pa.Table) -> Ints:
    encoded = events.column("kind").combine_chunks()
    numbers = [WORK_KINDS.index(word) if word in WORK_KINDS else 0 for word in encoded.dictionary.to_pylist()]
    kinds: Ints = np.array([*numbers, 0], dtype=np.int8)[np.asarray(encoded.indices.fill_null(-1))]
    return kinds


def _copy_kinds(events: pa.Table) -> pa.Array:
    encoded = events.column("copy_kind").combine_chunks()
    words = encoded.dictionary.to_pylist()
    numbers = [COPY_KINDS.index(word) if word in COPY_KINDS else None for word in words]
    return pa.array(numbers, pa.int32()).take(encoded.indices)

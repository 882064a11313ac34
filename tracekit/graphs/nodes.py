"""Nodes of CUDA graphs and their descent: a replayed node is a copy of a copy … of the captured one.

Ids of nodes are unique within one process. A copy has two records, one without and one with the node that it was copied
from; a node of an instance may lack the latter. A descent that leads in a circle or to two nodes is not believed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.arrays.columns import integers
from tracekit.arrays.groups import counts
from tracekit.arrays.intervals import one_axis

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.recording.tables import Recording


@dataclass(frozen=True, slots=True)
class Lineage:
    """Nodes that are recorded or were replayed, sorted by (process, id), and their descent.

    Attributes:
        process: Row of processes of every node.
        node_id: Id of the node.
        root: Row of the node at the top of its descent, possibly itself; -1 where the descent is not believed.
        recorded: Whether the making of the node is recorded.
        copied: Whether it is recorded as a copy of another node.
        of_record: For every row of the recording's graph nodes the row of its node.
        of_work: For every piece of work the row of the node it ran from, or -1.
    """

    process: Rows
    node_id: Ints
    root: Rows
    recorded: Flags
    copied: Flags
    of_record: Rows
    of_work: Rows

    @property
    def replayed(self) -> Flags:
        """Which nodes did work."""
        return counts(self.of_work, self.root.size) > 0

    @property
    def original(self) -> Rows:
        """For every node the row of the recorded node at the top of its descent, or -1."""
        original: Rows = np.where(np.append(self.recorded, False)[self.root], self.root, -1)
        return original


def lineage_of(recording: Recording, unnumbered: Rows | None = None) -> Lineage:
    """Finds the descent of every node.

    Args:
        recording: The recording.
        unnumbered: Rows of replayed work that names no node: each piece has a node of its own.
    """
    records = recording.graph_nodes
    process = recording.threads.process[integers(records, "thread")]
    node, original = integers(records, "node_id"), integers(records, "original_node_id")
    is_copy = np.asarray(records.column("original_node_id").is_valid()) & (original != node)
    run = _nodes_of_work(recording, unnumbered)
    processes = np.concatenate((process, process[is_copy], run.process))
    ids = np.concatenate((node, original[is_copy], run.node_id))
    _, first, row = np.unique(one_axis([processes], [ids])[0], return_index=True, return_inverse=True)
    of_record, above, of_run = np.split(row.astype(np.int32), np.cumsum((node.size, int(is_copy.sum()))))
    recorded, copied = np.zeros(first.size, dtype=bool), np.zeros(first.size, dtype=bool)
    recorded[of_record] = True
    copied[of_record[is_copy]] = True
    return Lineage(
        process=processes[first].astype(np.int32),
        node_id=ids[first],
        root=_roots(first.size, of_record[is_copy], above),
        recorded=recorded,
        copied=copied,
        of_record=of_record,
        of_work=np.append(of_run, np.int32(-1))[run.of_work],
    )


class _NodesOfWork(NamedTuple):
    """Nodes that did work.

    Attributes:
        process: Row of processes of every such node.
        node_id: Id of the node.
        of_work: For every piece of work the row of its node among these, or -1.
    """

    process: Rows
    node_id: Ints
    of_work: Rows


def _nodes_of_work(recording: Recording, unnumbered: Rows | None) -> _NodesOfWork:
    work = recording.work
    process = integers(work, "process")
    column = work.column("graph_node_id")
    if unnumbered is not None and unnumbered.size:
        ids, known = integers(work, "graph_node_id").copy(), np.asarray(column.is_valid()).copy()
        # No profiler gives negative ids to nodes.
        ids[unnumbered], known[unnumbered] = -1 - np.arange(unnumbered.size), True
        column = pa.chunked_array([pa.array(ids, mask=~known)])
    rows = np.flatnonzero(np.asarray(column.is_valid()) & (process >= 0))
    of_work = np.full(process.size, -1, dtype=np.int32)
    if not rows.size:
        return _NodesOfWork(np.empty(0, np.int32), np.empty(0, np.int64), of_work)
    encoded = pc.dictionary_encode(column).combine_chunks()
    ids = np.asarray(encoded.dictionary, dtype=np.int64)
    code = process[rows] * np.int64(ids.size) + np.asarray(encoded.indices.fill_null(0))[rows]
    if int(recording.threads.process_pid.size) * ids.size <= rows.size:
        present = np.zeros(recording.threads.process_pid.size * ids.size, dtype=bool)
        present[code] = True
        distinct, position = np.flatnonzero(present), (np.cumsum(present) - 1)[code]
    else:
        distinct, position = np.unique(code, return_inverse=True)
    of_work[rows] = position
    return _NodesOfWork((distinct // ids.size).astype(np.int32), ids[distinct % ids.size], of_work)


def _roots(number: int, copy: Rows, above: Rows) -> Rows:
    """For every node the row of the node at the top of its descent, or -1.

    Args:
        number: How many nodes there are.
        copy: Nodes that are recorded as copies; several times if several records say so.
        above: The node that each of these was copied from.
    """
    lowest, highest = np.arange(number, dtype=np.int32), np.arange(number, dtype=np.int32)
    lowest[copy], highest[copy] = number, -1
    np.minimum.at(lowest, copy, above)
    np.maximum.at(highest, copy, above)
    top = highest
    # Pointer doubling: after k rounds a node points 2^k steps up, or at the top.
    for _ in range(number.bit_length()):
        higher = top[top]
        if np.array_equal(higher, top):
            break
        top = higher
    disputed = lowest != highest
    lost = (highest[top] != top) | _leads_to(disputed, highest)
    return np.where(lost, -1, top).astype(np.int32)


def _leads_to(marked: Flags, above: Rows) -> Flags:
    """Which nodes are marked, or have a marked node above them."""
    if not marked.any():
        return marked
    reached, step = marked.copy(), above
    for _ in range(above.size.bit_length()):
        reached = reached | reached[step]
        step = step[step]
    return reached

"""Nodes of CUDA graphs and where they descend from: a replayed node is a copy of a copy … of the one captured.

Ids of nodes count within one process. A copy has two records, one without and one with the node that it was copied
from; a node of an instance may have none with. What leads in a circle, or to two places, descends from nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from tracekit.arrays.columns import integers
from tracekit.arrays.intervals import one_axis

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.recording.tables import Recording


@dataclass(frozen=True, slots=True)
class Lineage:
    """The nodes that are recorded or were replayed, sorted by (process, id), and their descent.

    Attributes:
        process: Row of processes of every node.
        node_id: Its id.
        root: Row of the node that it descends from, be it itself; -1 where that cannot be told.
        recorded: Whether its making is recorded.
        copied: Whether it is recorded as another node's copy.
        of_record: Row of the node of every row of the recording's graph nodes.
        of_work: Row of the node that each piece of work ran from, or -1.
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
        return np.bincount(self.of_work + 1, minlength=self.root.size + 1)[1:] > 0

    @property
    def original(self) -> Rows:
        """Row of the recorded node that each one descends from, or -1."""
        found: Rows = np.where(np.append(self.recorded, False)[self.root], self.root, -1)
        return found


def lineage_of(recording: Recording) -> Lineage:
    """Finds the descent of every node."""
    records = recording.graph_nodes
    process = recording.threads.process[integers(records, "thread")]
    node, said = integers(records, "node_id"), integers(records, "original_node_id")
    is_copy = np.asarray(records.column("original_node_id").is_valid()) & (said != node)
    run_process, run_node, of_work = _nodes_of_work(recording)
    processes = np.concatenate((process, process[is_copy], run_process))
    ids = np.concatenate((node, said[is_copy], run_node))
    _, first, row = np.unique(one_axis([processes], [ids])[0], return_index=True, return_inverse=True)
    of_record, above, of_run = np.split(row.astype(np.int32), np.cumsum((node.size, int(is_copy.sum()))))
    recorded, copied = np.zeros(first.size, dtype=bool), np.zeros(first.size, dtype=bool)
    recorded[of_record] = True
    copied[of_record[is_copy]] = True
    return Lineage(
        processes[first].astype(np.int32),
        ids[first],
        _roots(first.size, of_record[is_copy], above),
        recorded,
        copied,
        of_record,
        np.append(of_run, np.int32(-1))[of_work],
    )


def _nodes_of_work(recording: Recording) -> tuple[Rows, Ints, Rows]:
    """Process and id of the nodes that did work, and for every piece of work its row in them, or -1."""
    work = recording.work
    process = integers(work, "process")
    column = work.column("graph_node_id")
    rows = np.flatnonzero(np.asarray(column.is_valid()) & (process >= 0))
    of_work = np.full(process.size, -1, dtype=np.int32)
    if not rows.size:
        return np.empty(0, np.int32), np.empty(0, np.int64), of_work
    encoded = pc.dictionary_encode(column).combine_chunks()
    ids = np.asarray(encoded.dictionary, dtype=np.int64)
    code = process[rows] * np.int64(ids.size) + np.asarray(encoded.indices.fill_null(0))[rows]
    if int(recording.threads.process_pid.size) * ids.size <= rows.size:
        there = np.zeros(recording.threads.process_pid.size * ids.size, dtype=bool)
        there[code] = True
        distinct, which = np.flatnonzero(there), (np.cumsum(there) - 1)[code]
    else:
        distinct, which = np.unique(code, return_inverse=True)
    of_work[rows] = which
    return (distinct // ids.size).astype(np.int32), ids[distinct % ids.size], of_work


def _roots(number: int, copy: Rows, above: Rows) -> Rows:
    """For every node the one at the top of its descent, or -1."""
    itself = np.arange(number, dtype=np.int32)
    lowest, highest = itself.copy(), itself.copy()
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
    """Which nodes are marked, or have a marked one above them."""
    if not marked.any():
        return marked
    found, step = marked.copy(), above
    for _ in range(above.size.bit_length()):
        found = found | found[step]
        step = step[step]
    return found

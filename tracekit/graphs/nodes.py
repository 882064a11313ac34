"""Nodes of CUDA graphs and their clone chains: a replayed node is a clone of a clone … of the captured one.

Ids of nodes are unique within one process. A clone has two records, one without and one with the node that it was
cloned from (CUPTI: ``originalGraphNodeId``); a node of an instance may lack the latter. A chain that leads in a circle
or to two nodes is not believed.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.arrays.groups import counts
from tracekit.arrays.intervals import one_axis
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.recording.tables import Recording


@dataclass(frozen=True, slots=True)
class CloneChains:
    """Nodes that are recorded or were replayed, sorted by (process, id), and their clone chains.

    Attributes:
        root: Row of the node at the top of its chain, possibly itself; -1 where the chain is not believed.
        of_record: For every row of the recording's graph nodes the row of its node.
        of_work: For every kernel the row of the node it ran from, or -1.
    """

    process: Rows
    node_id: Ints
    root: Rows
    recorded: Flags
    cloned: Flags
    of_record: Rows
    of_work: Rows

    @property
    def replayed(self) -> Flags:
        """Which nodes did work."""
        return counts(self.of_work, self.root.size) > 0

    @property
    def original(self) -> Rows:
        """For every node the row of the recorded node at the top of its clone chain, or -1."""
        original: Rows = np.where(np.append(self.recorded, False)[self.root], self.root, -1)
        return original


def clone_chains(recording: Recording, unnumbered: Rows | None = None) -> CloneChains:
    """Finds the clone chain of every node; each ``unnumbered`` kernel, which names no node, has one of its own."""
    records = recording.graph_nodes
    process = recording.threads.process[records.thread]
    node, original = records.node_id, records.original_node_id
    is_clone = (original != -1) & (original != node)
    run = _nodes_of_work(recording, unnumbered)
    processes = np.concatenate((process, process[is_clone], run.process))
    ids = np.concatenate((node, original[is_clone], run.node_id))
    _, first, row = np.unique(one_axis([processes], [ids])[0], return_index=True, return_inverse=True)
    of_record, above, of_run = np.split(row.astype(np.int32), np.cumsum((node.size, int(is_clone.sum()))))
    recorded, cloned = np.zeros(first.size, dtype=bool), np.zeros(first.size, dtype=bool)
    recorded[of_record] = True
    cloned[of_record[is_clone]] = True
    return CloneChains(
        process=processes[first].astype(np.int32),
        node_id=ids[first],
        root=_roots(first.size, of_record[is_clone], above),
        recorded=recorded,
        cloned=cloned,
        of_record=of_record,
        of_work=np.append(of_run, np.int32(-1))[run.of_work],
    )


class _NodesOfWork(NamedTuple):
    """Distinct nodes that did work, and for every kernel the row of its node among these, or -1."""

    process: Rows
    node_id: Ints
    of_work: Rows


def _nodes_of_work(recording: Recording, unnumbered: Rows | None) -> _NodesOfWork:
    process, node = recording.work.process, recording.work.graph_node_id
    if unnumbered is not None and unnumbered.size:
        # No profiler gives negative ids to nodes.
        node = node.copy()
        node[unnumbered] = -2 - np.arange(unnumbered.size)
    rows = np.flatnonzero((node != -1) & (process >= 0))
    of_work = np.full(process.size, -1, dtype=np.int32)
    if not rows.size:
        return _NodesOfWork(np.empty(0, np.int32), np.empty(0, np.int64), of_work)
    encoded = pc.dictionary_encode(pa.array(node[rows]))
    ids = np.asarray(encoded.dictionary, dtype=np.int64)
    code = process[rows] * np.int64(ids.size) + np.asarray(encoded.indices)
    if int(recording.threads.process_pid.size) * ids.size <= rows.size:
        present = np.zeros(recording.threads.process_pid.size * ids.size, dtype=bool)
        present[code] = True
        distinct, position = np.flatnonzero(present), (np.cumsum(present) - 1)[code]
    else:
        distinct, position = np.unique(code, return_inverse=True)
    of_work[rows] = position
    return _NodesOfWork((distinct // ids.size).astype(np.int32), ids[distinct % ids.size], of_work)


def _roots(number: int, clone: Rows, above: Rows) -> Rows:
    """For every node the row of the node at the top of its clone chain, or -1.

    Each of ``clone`` is recorded as cloned from that ``above`` it; several times if several records do so.
    """
    lowest, highest = np.arange(number, dtype=np.int32), np.arange(number, dtype=np.int32)
    lowest[clone], highest[clone] = number, -1
    np.minimum.at(lowest, clone, above)
    np.maximum.at(highest, clone, above)
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
    if not marked.any():
        return marked
    reached, step = marked.copy(), above
    for _ in range(above.size.bit_length()):
        reached = reached | reached[step]
        step = step[step]
    return reached

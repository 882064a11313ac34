"""On which thread the forward pass made each node of autograd.

A node tells a number of that thread (``Fwd thread id``), which is none of the ids that the trace has for threads.
Flows lead from operators to the nodes that these made, so those of one number show its thread. A number without flows
is of a thread that was not recorded, or of an unknown one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracekit.arrays.groups import agreed, grouped
from tracekit.arrays.lookups import positions
from tracekit.recording.tables import NOT_RECORDED

if TYPE_CHECKING:
    from tracekit.arrays.types import Ints, Rows
    from tracekit.readers.kineto.gathering import Columns


def forward_threads(operators: Columns, flows: Columns, process: Rows) -> Ints:
    """For every operator the row of threads that made it; -1 if it is no node, or the trace does not tell.

    Where one number is all that a process has, and no flow, the trace tells no more than the sequence numbers do.

    Args:
        operators: The operators.
        flows: The ends of flows from the forward to the backward pass.
        process: Row of processes of every thread.
    """
    made_on = np.full(operators["start"].size, -1, dtype=np.int64)
    nodes = np.flatnonzero(operators["forward_thread"] > 0)
    if not nodes.size:
        return made_on
    of_process = process[operators["thread"][nodes]]
    numbers = grouped((of_process, operators["forward_thread"][nodes]))
    start_thread, end_thread, end_ns = _flows(flows)
    # A flow ends in the event of a node that begins at that time: the one inside its evaluation.
    places = grouped((np.append(operators["thread"][nodes], end_thread), np.append(operators["start"][nodes], end_ns)))
    node_place, flow_place = places.group[: nodes.size], places.group[nodes.size :]
    flow_number = agreed(node_place, numbers.group, places.first.size)[flow_place]
    known = (flow_number >= 0) & (process[start_thread] == process[end_thread])
    thread = agreed(np.where(known, flow_number, -1), start_thread, numbers.first.size, NOT_RECORDED)
    several = np.bincount(of_process[numbers.first])[of_process[numbers.first]] > 1
    thread[~several & (thread == NOT_RECORDED)] = -1
    made_on[nodes] = thread[numbers.group]
    return made_on


def _flows(flows: Columns) -> tuple[Rows, Rows, Ints]:
    """Of the flows with one beginning: threads of both ends, and when each end is."""
    thread, begins = flows["thread"], flows["begins"].astype(bool)
    ids, first, times = np.unique(flows["id"][begins], return_index=True, return_counts=True)
    start_thread = thread[begins][first[times == 1]]
    at = positions(flows["id"][~begins], ids[times == 1])
    found = at >= 0
    return start_thread[at[found]], thread[~begins][found], flows["start"][~begins][found]

"""Looks up the call that was open when a node of a CUDA graph was captured; shared by the methods for graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracekit.arrays.intervals import innermost

if TYPE_CHECKING:
    from tracekit.arrays.types import Ints
    from tracekit.trace.evidence import Evidence


def call_at_graph_capture(evidence: Evidence, work: Ints, *, by_order: bool) -> Ints:
    """The innermost call around the launch that became the node of each piece of work, or -1.

    Args:
        evidence: What is known about the recording.
        work: Rows of work.
        by_order: Whether to use nodes placed by the order of launches; otherwise those placed by their descent.
    """
    origins, calls = evidence.origins, evidence.calls
    nodes = np.flatnonzero(origins.known & (origins.by_order == by_order))
    call = np.full(origins.start.size + 1, -1, dtype=np.int64)
    call[nodes] = innermost(calls.start, calls.end, calls.parent, origins.start[nodes], origins.end[nodes])
    return call[evidence.lineage.of_work[work]]

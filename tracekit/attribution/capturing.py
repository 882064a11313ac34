"""The call that was open when a node of a CUDA graph was captured, however that is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracekit.arrays.intervals import innermost

if TYPE_CHECKING:
    from tracekit.arrays.types import Ints
    from tracekit.trace.evidence import Evidence


def call_at_capture(evidence: Evidence, work: Ints, *, by_order: bool) -> Ints:
    """The innermost call around the launch that became the node of each piece of work, or -1.

    Args:
        evidence: The trace.
        work: Rows of work.
        by_order: Whether of nodes whose place the order of launches tells, or their descent.
    """
    origins, calls = evidence.origins, evidence.calls
    told = np.flatnonzero(origins.known & (origins.by_order == by_order))
    call = np.full(origins.start.size + 1, -1, dtype=np.int64)
    call[told] = innermost(calls.start, calls.end, calls.parent, origins.start[told], origins.end[told])
    return call[evidence.lineage.of_work[work]]

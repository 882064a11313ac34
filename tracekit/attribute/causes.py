"""Why work that no method could give to a module has none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracekit import coverage
from tracekit.attribute.replay import is_whole_graph

if TYPE_CHECKING:
    from tracekit.arrays import Flags, Ints
    from tracekit.trace import Evidence


def causes_of(evidence: Evidence, call: Ints) -> Ints:
    """Position in ``coverage.CAUSES`` of the cause that holds for each piece of work, were it to have no module.

    Args:
        evidence: The trace.
        call: The call that was found for each piece, be its module known or not; -1 for none.
    """
    launched = evidence.launched
    cases: list[tuple[Flags, coverage.Cause]] = [
        (call >= 0, coverage.MODULE_UNREADABLE),
        (is_whole_graph(evidence.recording), coverage.GRAPH_NOT_EXPANDED),
        (evidence.captured_somewhere, coverage.OUTSIDE_MODULES),
        (launched.replayed, coverage.GRAPH_UNMAPPED),
        (launched.ambiguous, coverage.AMBIGUOUS_LAUNCH),
        (launched.launch < 0, coverage.NO_LAUNCH),
    ]
    positions = [coverage.CAUSES.index(cause) for _, cause in cases]
    otherwise = coverage.CAUSES.index(coverage.OUTSIDE_MODULES)
    return np.asarray(
        np.select([holds for holds, _ in cases], positions, otherwise), dtype=np.int64
    )

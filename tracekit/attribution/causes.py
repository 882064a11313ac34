"""Why work that no method could give to a module has none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracekit import causes as coverage
from tracekit.arrays.columns import integers
from tracekit.recording.tables import COPY_KINDS, MEMCPY
from tracekit.trace.replay import is_whole_graph

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints
    from tracekit.trace.evidence import Evidence

#: Copies that CUPTI says moved pages of managed memory.
_UNIFIED = [kind for kind, label in enumerate(COPY_KINDS) if label.startswith("Unified")]


def causes_of(evidence: Evidence, call: Ints) -> Ints:
    """Position in ``coverage.CAUSES`` of the cause that holds for each piece of work, were it to have no module.

    Args:
        evidence: The trace.
        call: The call that was found for each piece, be its module known or not; -1 for none.
    """
    launched = evidence.launched
    cases: list[tuple[Flags, coverage.Cause]] = [
        (is_whole_graph(evidence.recording), coverage.GRAPH_NOT_EXPANDED),
        (evidence.captured_somewhere, coverage.OUTSIDE_MODULES),
        (launched.replayed, coverage.GRAPH_UNMAPPED),
        (_is_migration(evidence), coverage.MANAGED_MEMORY),
        (launched.ambiguous, coverage.AMBIGUOUS_LAUNCH),
        (launched.impossible, coverage.IMPOSSIBLE_LAUNCH),
        (launched.launch < 0, coverage.NO_LAUNCH),
    ]
    positions = [coverage.CAUSES.index(cause) for _, cause in cases]
    otherwise = coverage.CAUSES.index(coverage.OUTSIDE_MODULES)
    found = np.select([holds for holds, _ in cases], positions, otherwise)
    return np.where(call >= 0, np.append(evidence.calls.cause, -1)[call], found).astype(np.int64)


def _is_migration(evidence: Evidence) -> Flags:
    """Which copies moved managed memory: those without an id, and those of that kind that no call started."""
    work = evidence.recording.work
    nameless = integers(work, "correlation_id", null=0) == 0
    unified = np.isin(integers(work, "copy_kind"), _UNIFIED) & (evidence.launched.launch < 0)
    return np.asarray((integers(work, "kind") == MEMCPY) & (nameless | unified))

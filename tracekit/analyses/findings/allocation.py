"""Memory of the device is allocated and freed in every step, which blocks the host and may block the device."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from tracekit.analyses.findings.base import Candidate
from tracekit.analyses.findings.rows import StepRows
from tracekit.analyses.whatif.edits import without

NAME = "allocation"
_ADVICE = (
    "The steps still allocate or free memory of the device with CUDA itself. "
    "Let torch's allocator keep it: no empty_cache(), sizes that repeat, or expandable_segments:True."
)


def candidates(steps: StepRows) -> Iterator[Candidate]:
    """All allocations in steps at once; the module is the one with most of their time."""
    rows = np.flatnonzero(np.isin(steps.wait_kind, ("allocation", "free")))
    rows = rows[steps.event_step[rows] >= 0]
    if rows.size:
        lasts = (steps.events.end - steps.events.start)[rows]
        module = max(steps.by_pattern(steps.events.module[rows]), key=lambda one: int(lasts[one[1]].sum()))[0]
        removal = steps.removed(rows, rows[:0], "none")
        evidence = steps.evidence("waits", steps.waits.id[steps.wait[rows]], "budget")
        yield Candidate(module, steps.per_step(removal.ns), partial(without, removal=removal), evidence, _ADVICE)

"""Copies from pageable memory of the host, which block the host and run at a fraction of the link's speed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from tracekit.analyses.findings.base import Candidate
from tracekit.analyses.findings.rows import StepRows
from tracekit.analyses.whatif.edits import asynchronous
from tracekit.arrays.types import Ints, Rows

NAME = "pageable_copy"
#: The most bytes a ns that a link carries if no faster copy was recorded: 16 lanes of PCIe 5.0.
_LINK = 63.0
_LEAST_NS = 500
_ADVICE = (
    "This copy reads memory of the host that is not pinned, so that the host blocks and the copy is slow. "
    "Pin the memory (pin_memory=True of the DataLoader, or .pin_memory()) and copy with non_blocking=True."
)


def candidates(steps: StepRows) -> Iterator[Candidate]:
    """Blocking copies to the device, by module."""
    rows = np.flatnonzero(steps.uploads)
    rows = rows[steps.counted(rows)]
    for module, own in steps.by_pattern(steps.events.module[rows]):
        yield _candidate(steps, module, rows[own])


def _candidate(steps: StepRows, module: str | None, rows: Rows) -> Candidate:
    events, work = steps.events, steps.launched[rows]
    after = steps.after[rows]
    removal = steps.removed(after[(after >= 0) & (steps.wait_kind[after] == "synchronize")], rows[:0])
    lasts = (steps.work.end - steps.work.start)[work]
    copies = rows, work, np.minimum(_pinned(steps, work), lasts)
    most = steps.per_step(removal.ns + int((events.end - events.start)[rows].sum() + lasts.sum()))
    evidence = steps.evidence("kernels", steps.work.kernel[work], "copies", events.module[rows])
    return Candidate(module, most, partial(asynchronous, copies=copies, after=removal), evidence, _ADVICE)


def _pinned(steps: StepRows, work: Rows) -> Ints:
    """How long copies take at the least from pinned memory: at the speed of the link."""
    lasts, up = steps.work.end - steps.work.start, steps.copied("host-to-device")[:-1]
    rates = steps.bytes[up & (lasts > 0)] / lasts[up & (lasts > 0)]
    return np.maximum(steps.bytes[work] / max(_LINK, float(rates.max(initial=0))), _LEAST_NS).astype(np.int64)

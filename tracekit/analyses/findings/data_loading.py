"""The thread that launches the work loads the next batch, or waits for it, while the device is idle."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from tracekit.analyses.findings.base import Candidate
from tracekit.analyses.findings.rows import StepRows
from tracekit.analyses.whatif.edits import Stretches, without_code
from tracekit.arrays.types import Rows

NAME = "data_loading"
_ADVICE = (
    "The thread that launches the work loads the next batch, or waits for it, before it goes on. "
    "Load ahead in other processes: more num_workers, a higher prefetch_factor, less to do for each sample."
)
_PHASE = "data"


def candidates(steps: StepRows) -> Iterator[Candidate]:
    """Ranges of the DataLoader, and stretches between calls of modules in which the thread waits for no device."""
    (ranges, ids), waits = steps.stretches(_PHASE), _waits(steps)
    found = Stretches(*(np.concatenate(pair) for pair in zip(ranges, _around(steps, waits), strict=True)))
    if found.start.size:
        most = steps.per_step(int((found.end - found.start).sum()))
        table, rows = ("ranges", ids) if ids.size else ("waits", steps.waits.id[waits])
        evidence = steps.evidence(table, rows, "budget")
        yield Candidate(None, most, partial(without_code, stretches=found), evidence, _ADVICE)


def _waits(steps: StepRows) -> Rows:
    """Waits of the operating system in steps but outside modules, in which no other thread launches work."""
    waits, events = steps.waits, steps.events
    launches = np.flatnonzero(steps.launched >= 0)
    rows = np.flatnonzero((waits.kind == "os_wait") & (waits.event < 0) & (waits.module < 0))
    rows = rows[np.isin(waits.thread[rows], steps.calls.thread) & (waits.step[rows] >= 0)]
    starts = np.sort(events.start[launches])
    during = np.searchsorted(starts, waits.end[rows]) > np.searchsorted(starts, waits.start[rows])
    return np.asarray(rows[~during])


def _around(steps: StepRows, waits: Rows) -> Stretches:
    """All of the code around some waits, from the last call of CUDA or edge of a call of a module to the next one."""
    thread, start, end = (column[waits] for column in steps.waits[1:4])
    before, after = steps.edges(thread, start, end)
    return Stretches(thread, before, after)

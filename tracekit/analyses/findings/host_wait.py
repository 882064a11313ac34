"""The host waits for the device inside a module: ``.item()``, ``.cpu()``, synchronising copies and calls."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from tracekit.analyses.findings.base import Candidate
from tracekit.analyses.findings.rows import StepRows
from tracekit.analyses.whatif.edits import asynchronous
from tracekit.arrays.types import Rows

NAME = "host_wait"
_READ = "The host reads a value from the device here (.item(), .cpu(), a branch on a tensor) and waits for it."
_SYNCHRONISED = "The host waits for the device here ({call})."
_KEEP = "Keep the value on the device, or read it later, once a step and without blocking."
_REMOVE = "Remove the call, or wait for an event that was recorded earlier."


def candidates(steps: StepRows) -> Iterator[Candidate]:
    """Waits of threads that start work, by module."""
    rows = _waits(steps)
    for module, own in steps.by_pattern(steps.events.module[rows]):
        yield _candidate(steps, module, rows[own])


def _waits(steps: StepRows) -> Rows:
    events = steps.events
    kinds = np.isin(steps.wait_kind, ("synchronize", "copy", "pageable_copy"))
    rows = np.flatnonzero(kinds & ~steps.uploads)
    rows = rows[steps.counted(rows) & np.isin(events.thread[rows], events.thread[steps.launched >= 0])]
    # A call that waits right after a copy from pageable memory is part of that copy.
    return np.asarray(rows[~np.append(steps.uploads, False)[steps.before[rows]]])


def _candidate(steps: StepRows, module: str | None, rows: Rows) -> Candidate:
    events, down = steps.events, steps.copied("device-to-host")
    up = steps.copied("host-to-device")[steps.launched[rows]]
    prior = steps.before[rows]
    read = prior[(prior >= 0) & down[steps.launched[prior]] & (steps.event_step[prior] == steps.event_step[rows])]
    read = np.union1d(read, rows[down[steps.launched[rows]]])
    after = np.isin(prior, read)
    reads = np.union1d(read, rows[after])
    others = np.setdiff1d(rows[~up], reads)
    removal = steps.removed(reads, steps.launched[read]).joined(steps.removed(others, rows[:0], "none"))
    copies = rows[up], steps.launched[rows[up]], (steps.work.end - steps.work.start)[steps.launched[rows[up]]]
    what = _READ if read.size else _SYNCHRONISED.format(call=_call(steps, rows))
    evidence = _evidence(steps, rows)
    edit = partial(asynchronous, copies=copies, after=removal)
    most = steps.per_step(removal.ns + int((events.end - events.start)[rows[up]].sum()))
    return Candidate(module, most, edit, evidence, f"{what} {_KEEP if read.size else _REMOVE}")


def _evidence(steps: StepRows, rows: Rows) -> dict[str, Any]:
    """The waits, and the launches of their module, or the budget where it has none."""
    module = steps.events.module[rows]
    end = np.append(steps.modules.end, -1)[module[0]]
    launches = bool(((steps.work.module >= module[0]) & (steps.work.module < end)).any())
    ids = steps.waits.id[steps.wait[rows]]
    return steps.evidence("waits", ids, *(("launches", module) if launches else ("budget",)))


def _call(steps: StepRows, rows: Rows) -> str:
    return str(steps.waits.name[steps.wait[rows[0]]]).split("_")[0]

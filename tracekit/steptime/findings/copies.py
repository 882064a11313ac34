"""Copies and casts: from pageable memory, or the same again in every step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from tracekit.arrays.groups import grouped
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.steptime.findings.advice import CAST, COPIED
from tracekit.steptime.findings.rows import Candidate, StepRows
from tracekit.steptime.whatif.changes import Changing, Removal, asynchronous, without

#: So many steps must have the same copy.
_LEAST_STEPS = 3


def pageable(steps: StepRows) -> Iterator[Candidate]:
    """Copies to the device that block as the host memory is not pinned, by module."""
    rows = np.flatnonzero(steps.uploads)
    rows = rows[steps.counted(rows)]
    for module, own in steps.by_pattern(steps.events.module[rows]):
        yield _pageable(steps, module, rows[own])


def _pageable(steps: StepRows, module: str | None, rows: Rows) -> Candidate:
    events, work, after = steps.events, steps.launched[rows], steps.after[rows]
    awaited = (after >= 0) & (steps.wait_kind[after] == "synchronize")
    removal = steps.removed(after[awaited], rows[:0])
    lasts = (steps.work.end - steps.work.start)[work]
    most = steps.per_step(removal.ns + int((events.end - events.start)[rows].sum() + lasts.sum()))
    following = np.where(awaited, steps.after[after], after)
    uses = (following >= 0) & (steps.launched[following] >= 0) & (steps.event_step[following] == steps.event_step[rows])
    users = steps.launched[following[uses]], work[uses]
    edit = partial(_pinned, copies=(rows, work, steps.work.pinned[work, 0]), after=removal, users=users)
    evidence = steps.evidence("kernels", steps.work.kernel[work], "copies", events.module[rows])
    return Candidate(module, most, edit, evidence, steps.advice("pageable_copy"))


def _pinned(changing: Changing, copies: tuple[Rows, Rows, Ints], after: Removal, users: tuple[Rows, Rows]) -> None:
    """Copies no longer block, but what their step launches next still waits for them if it did, on any stream."""
    asynchronous(changing, copies, after)
    tasks = changing.tasks
    known = tasks.order_of.end(tasks.meeting)[users[1]] < tasks.order_of.start[users[0]]
    more = users[0][known], users[1][known], np.zeros(np.count_nonzero(known), np.int64)
    one, other, lag = (np.append(*pair) for pair in zip(tasks.dependent, more, strict=True))
    changing.tasks = replace(tasks, dependent=(one, other, lag))


def repeated(steps: StepRows) -> Iterator[Candidate]:
    """Copies from the host and casts inside modules that every step has, by module."""
    for chosen, question, text in ((_copies(steps), "copies", COPIED), (_casts(steps), "module_kernels", CAST)):
        rows = _in_every_step(steps, np.flatnonzero(chosen & (steps.work.module >= 0) & (steps.step >= 0)))
        for module, own in steps.by_pattern(steps.work.module[rows]):
            removal = steps.removal(rows[own])
            evidence = steps.evidence("kernels", steps.work.kernel[rows[own]], question, steps.work.module[rows[own]])
            yield Candidate(module, steps.per_step(removal.ns), partial(without, removal=removal), evidence, text)


def _copies(steps: StepRows) -> Flags:
    """Copies from the host that do not block: those that do have a family of their own."""
    blocks = np.append(steps.events.blocks, False)[steps.work.event]
    return np.asarray(steps.copied("host-to-device")[:-1] & ~blocks)


def _casts(steps: StepRows) -> Flags:
    """Kernels with which torch casts: copies of elements with another dtype on one side."""
    names = steps.words("full_name")
    casts = [names.containing(text) for text in ("withcast", "float16_copy", "float8", "float4")]
    return np.isin(names.code, np.intersect1d(names.containing("copy_kernel"), np.concatenate(casts)))


def _in_every_step(steps: StepRows, rows: Rows) -> Rows:
    """Those that every step has in the same module, with the same name and size."""
    names, grid = steps.work.name, steps.column("grid_x")
    group, _ = grouped((steps.work.module[rows], names[rows], steps.bytes[rows], grid[rows]))
    pairs = np.unique(np.stack([group, steps.step[rows]]), axis=1)
    number = np.bincount(pairs[0], minlength=1)
    every = np.unique(steps.step[steps.step >= 0]).size
    return rows[(number >= max(_LEAST_STEPS, every))[group]] if rows.size else rows

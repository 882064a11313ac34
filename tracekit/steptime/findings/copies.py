"""Copies and casts: from pageable memory, or the same again in every step."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from tracekit.arrays.groups import grouped
from tracekit.arrays.types import Flags, Rows
from tracekit.steptime.findings.advice import CAST, COPIED
from tracekit.steptime.findings.rows import Candidate, StepRows
from tracekit.steptime.whatif.edits import asynchronous, without

#: So many steps must have the same copy.
_LEAST_STEPS = 3


def pageable(steps: StepRows) -> Iterator[Candidate]:
    """Copies to the device that block as the memory of the host is not pinned, by module."""
    rows = np.flatnonzero(steps.uploads)
    rows = rows[steps.counted(rows)]
    for module, own in steps.by_pattern(steps.events.module[rows]):
        yield _pageable(steps, module, rows[own])


def _pageable(steps: StepRows, module: str | None, rows: Rows) -> Candidate:
    events, work = steps.events, steps.launched[rows]
    after = steps.after[rows]
    removal = steps.removed(after[(after >= 0) & (steps.wait_kind[after] == "synchronize")], rows[:0])
    lasts = (steps.work.end - steps.work.start)[work]
    copies = rows, work, steps.work.pinned[work, 0]
    spared = steps.per_step(int((lasts - copies[2]).sum()))
    most = steps.per_step(removal.ns + int((events.end - events.start)[rows].sum() + lasts.sum()))
    evidence = steps.evidence("kernels", steps.work.kernel[work], "copies", events.module[rows])
    edit = partial(asynchronous, copies=copies, after=removal)
    # The device then idles no longer for the host, and copies for less time.
    return Candidate(module, min(most, steps.idle_ns + spared), edit, evidence, steps.advice("pageable_copy"))


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
    copies = names.containing("copy_kernel")
    casts = [names.containing(text) for text in ("withcast", "float16_copy", "float8", "float4")]
    return np.isin(names.code, np.intersect1d(copies, np.concatenate(casts)))


def _in_every_step(steps: StepRows, rows: Rows) -> Rows:
    """Those that every step has in the same module, with the same name and size."""
    names, grid = steps.work.name, steps.column("grid_x")
    group, _ = grouped((steps.work.module[rows], names[rows], steps.bytes[rows], grid[rows]))
    pairs = np.unique(np.stack([group, steps.step[rows]]), axis=1)
    number = np.bincount(pairs[0], minlength=1)
    every = np.unique(steps.step[steps.step >= 0]).size
    return rows[(number >= max(_LEAST_STEPS, every))[group]] if rows.size else rows

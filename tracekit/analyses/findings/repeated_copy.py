"""A module copies the same to the device, or casts it, in every step."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from tracekit.analyses.findings.base import Candidate
from tracekit.analyses.findings.rows import StepRows
from tracekit.analyses.whatif.edits import without
from tracekit.arrays.groups import grouped
from tracekit.arrays.types import Flags, Rows

NAME = "repeated_copy"
_COPY = (
    "This module copies as many bytes from the host in every step. "
    "If they are the same, copy them once: register_buffer, or create them on the device."
)
_CAST = (
    "This module casts as many values in every step. "
    "If they are parameters or constants, keep them in the dtype in which they are used."
)
#: So many steps must have the same copy.
_LEAST_STEPS = 3


def candidates(steps: StepRows) -> Iterator[Candidate]:
    """Copies from the host and casts inside modules that every step has, by module."""
    for chosen, question, advice in ((_copies(steps), "copies", _COPY), (_casts(steps), "module_kernels", _CAST)):
        rows = _in_every_step(steps, np.flatnonzero(chosen & (steps.work.module >= 0) & (steps.step >= 0)))
        for module, own in steps.by_pattern(steps.work.module[rows]):
            yield _candidate(steps, module, rows[own], question, advice)


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


def _candidate(steps: StepRows, module: str | None, rows: Rows, question: str, advice: str) -> Candidate:
    removal = steps.removal(rows)
    evidence = steps.evidence("kernels", steps.work.kernel[rows], question, steps.work.module[rows])
    return Candidate(module, steps.per_step(removal.ns), partial(without, removal=removal), evidence, advice)

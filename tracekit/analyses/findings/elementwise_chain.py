"""Chains of elementwise kernels in one call of a module, which one fused kernel could replace."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from tracekit.analyses.findings.base import Candidate
from tracekit.analyses.findings.rows import StepRows
from tracekit.analyses.whatif.edits import without
from tracekit.arrays.groups import maxima
from tracekit.arrays.types import Rows

NAME = "elementwise_chain"
_ADVICE = (
    "Elementwise kernels follow each other here, and each reads and writes its tensors anew. "
    "Fuse them: torch.compile on this module or function, or one kernel in Triton."
)
_LEAST_KERNELS = 3


def candidates(steps: StepRows) -> Iterator[Candidate]:
    """Kernels of chains, but for the longest of each chain, by module."""
    chains = _chains(steps)
    rows = np.flatnonzero((chains >= 0) & steps.in_step)
    length = np.bincount(chains[rows], minlength=1)
    rows = rows[length[chains[rows]] >= _LEAST_KERNELS]
    for module, own in steps.by_pattern(steps.work.module[rows]):
        yield _candidate(steps, module, rows[own], chains)


def _chains(steps: StepRows) -> Rows:
    """The number of the chain of each kernel: those that follow each other on a stream, in one call; else -1."""
    work = steps.work
    words = np.array(["elementwise" in name.lower() for name in work.names] + [False])
    fits = words[work.name] & (steps.call >= 0)
    before = np.where(work.before >= 0, work.before, 0)
    joins = fits & (work.before >= 0) & fits[before] & (steps.call[before] == steps.call)
    order = np.lexsort((work.start, work.stream))
    number = np.empty(order.size, np.int64)
    number[order] = np.cumsum(~joins[order])
    return np.where(fits, number, -1)


def _candidate(steps: StepRows, module: str | None, rows: Rows, chains: Rows) -> Candidate:
    lasts = (steps.work.end - steps.work.start)[rows]
    _, chain = np.unique(chains[rows], return_inverse=True)
    longest = lasts == maxima(chain, lasts, int(chain.max()) + 1)[chain]
    kept = np.flatnonzero(longest)
    kept = kept[np.unique(chain[kept], return_index=True)[1]]
    removal = steps.removal(np.delete(rows, kept), "all")
    evidence = steps.evidence("kernels", steps.work.kernel[rows], "module_kernels", steps.work.module[rows])
    return Candidate(module, steps.per_step(removal.ns), partial(without, removal=removal), evidence, _ADVICE)

"""Collectives run while nothing computes, though other work could run meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracekit.analyses.communication import communication
from tracekit.analyses.findings.base import Candidate
from tracekit.analyses.findings.rows import StepRows
from tracekit.analyses.whatif.changes import Changing
from tracekit.arrays.codes import lookup, positions
from tracekit.arrays.columns import integers
from tracekit.arrays.groups import sums

NAME = "exposed_communication"
_ADVICE = (
    "The device computes nothing while these collectives run. "
    "Start them earlier and on a stream of their own: other sizes of buckets, prefetching of parameters, async_op=True."
)


def candidates(steps: StepRows) -> Iterator[Candidate]:
    """All collectives at once; the module is the one with most exposed time."""
    table, _, exposed = communication(steps.dataset, ["kernel_id"])
    time = lookup(exposed, positions(steps.work.kernel, integers(table, "kernel_id")), 0)
    rows = np.flatnonzero((time > 0) & steps.in_step)
    if rows.size:
        by_module = sums(steps.work.module[rows] + 1, time[rows], len(steps.patterns))
        module = steps.patterns[int(by_module.argmax()) - 1]
        evidence = steps.evidence("kernels", steps.work.kernel[rows], "communication")
        yield Candidate(module, steps.per_step(int(time[rows].sum())), _overlap, evidence, _ADVICE)


def _overlap(changing: Changing) -> None:
    changing.overlap_communication()

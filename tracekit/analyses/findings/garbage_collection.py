"""Python collects garbage while the device waits for the host."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from tracekit.analyses.findings.base import Candidate
from tracekit.analyses.findings.rows import StepRows
from tracekit.analyses.whatif.edits import without_code

NAME = "garbage_collection"
_ADVICE = (
    "Python's garbage collector stops the thread that launches the work. "
    "After the warm-up call gc.collect() and gc.freeze(), and collect between steps, or more seldom (gc.set_threshold)."
)


def candidates(steps: StepRows) -> Iterator[Candidate]:
    """Collections on threads that call CUDA, as ``tracekit capture`` marks them."""
    ranges, ids = steps.stretches("garbage_collection")
    if ids.size:
        most = steps.per_step(int((ranges.end - ranges.start).sum()))
        evidence = steps.evidence("ranges", ids, "budget")
        yield Candidate(None, most, partial(without_code, stretches=ranges), evidence, _ADVICE)

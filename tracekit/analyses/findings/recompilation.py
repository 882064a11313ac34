"""Models are compiled again in steps, while the device waits."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from tracekit.analyses.findings.base import Candidate
from tracekit.analyses.findings.rows import StepRows
from tracekit.analyses.whatif.edits import without_code

NAME = "recompilation"
_ADVICE = (
    "torch.compile compiles again in these steps. "
    "Find what changes with TORCH_LOGS=recompiles: mark sizes that vary as dynamic, or pad them to a few."
)


def candidates(steps: StepRows) -> Iterator[Candidate]:
    """Ranges of torch.compile at work."""
    ranges, _ = steps.stretches("compile")
    compiled = steps.dataset.table("steps", ["step_id", "compile_ns"])
    ids = np.asarray(compiled.column("step_id"))[np.asarray(compiled.column("compile_ns")) > 0]
    if ranges.start.size and ids.size:
        most = steps.per_step(int((ranges.end - ranges.start).sum()))
        evidence = steps.evidence("steps", ids, "steps")
        yield Candidate(None, most, partial(without_code, stretches=ranges), evidence, _ADVICE)

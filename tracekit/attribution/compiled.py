"""``compiled``: what a run of a compiled graph launched belongs to the modules that its kernel map tells, by weight.

Which kernel of the map each launch is follows from the order of both (:mod:`tracekit.trace.compiled.matching`). Work
replayed from a CUDA graph is that of the run that was captured. What does not fit the map is nobody's: no other method
is asked about the work of runs, whose callers only hold it as a whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracekit.arrays.lookups import lookup

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints
    from tracekit.trace.evidence import Evidence

NAME = "compiled"


def owners(evidence: Evidence, work: Ints) -> Ints:
    """The call around the run that launched each piece of work, or -1; the modules are known all the same."""
    return np.asarray(lookup(evidence.call_at_launch, evidence.compiled_work.launch[work]))


def known(evidence: Evidence) -> Flags:
    """Whose modules a map tells."""
    return np.asarray(evidence.compiled_work.of_work >= 0)

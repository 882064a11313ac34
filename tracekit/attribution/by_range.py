"""``range``: work belongs to the innermost call that contains the API call which launched it, on the same thread.

This is NVIDIA's GPU projection of ranges: ``range.start <= api.start`` and ``api.end <= range.end``, whenever the work
itself runs. Work replayed from a CUDA graph is left to other methods, since its launch says nothing about its module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracekit.arrays.lookups import lookup

if TYPE_CHECKING:
    from tracekit.arrays.types import Ints
    from tracekit.trace.evidence import Evidence


NAME = "range"


def owners(evidence: Evidence, work: Ints) -> Ints:
    """The innermost call around the launch of each piece of work; -1 for replayed work and work without a launch."""
    call = lookup(evidence.call_at_launch, evidence.launched.launch[work])
    return np.where(evidence.launched.replayed[work], -1, call)

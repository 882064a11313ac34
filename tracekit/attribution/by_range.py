"""``range``: work belongs to the innermost call that contains the API call which launched it, on its thread.

So says NVIDIA's GPU projection of ranges: ``range.start <= api.start`` and ``api.end <= range.end``, whenever the
work itself runs. It does not hold for work replayed from a CUDA graph, whose launch says nothing of its module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tracekit.arrays.types import Ints
    from tracekit.trace.evidence import Evidence


NAME = "range"


def owners(evidence: Evidence, work: Ints) -> Ints:
    """The innermost call around each piece's launch; -1 for what was replayed or has no launch."""
    launch = evidence.launched.launch[work]
    direct = (launch >= 0) & ~evidence.launched.replayed[work]
    found = np.full(work.size, -1, dtype=np.int64)
    found[direct] = evidence.call_at_launch[launch[direct]]
    return found

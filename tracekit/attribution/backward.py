"""``backward``: what a node of autograd launches belongs to the module whose forward made the node.

Known by the sequence numbers of marked operators (:mod:`tracekit.trace.made_by`), where no markers of the backward pass
tell it. The work is part of no call: that of the forward pass has ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tracekit.arrays.types import Ints
    from tracekit.trace.evidence import Evidence


NAME = "backward"


def owners(evidence: Evidence, work: Ints) -> Ints:
    """The call that made the node around the launch of each piece of work; -1 for replayed work and outside nodes."""
    call = np.full(work.size, -1, dtype=np.int64)
    if evidence.made_by is not None:
        launch = evidence.launched.launch[work]
        direct = (launch >= 0) & ~evidence.launched.replayed[work]
        call[direct] = evidence.made_by[launch[direct]]
    return call

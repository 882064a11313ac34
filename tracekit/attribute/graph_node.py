"""``graph_node``: work replayed from a CUDA graph belongs to the call that was open when its node was captured.

The node that ran is a copy; its descent leads to the node that the capture made, and that one lies inside the launch
which was captured. ``cudaGraphExecUpdate`` and calls that set the parameters of an instance's node replace what a node
does and leave no copy behind: after them, descent still leads to the first capture.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracekit.attribute.capturing import call_at_capture
from tracekit.captures import NOWHERE
from tracekit.trace import Origins

if TYPE_CHECKING:
    from tracekit.arrays import Ints
    from tracekit.captures import Captures
    from tracekit.lineage import Lineage
    from tracekit.trace import Evidence


NAME = "graph_node"


def origins(lineage: Lineage, captures: Captures) -> Origins:
    """The places where nodes were captured, as far as descent tells."""
    start, end = (
        np.append(times, NOWHERE)[lineage.root]
        for times in (captures.node_start, captures.node_end)
    )
    return Origins(start, end, np.zeros(start.size, dtype=bool))


def owners(evidence: Evidence, work: Ints) -> Ints:
    """The innermost call around the launch that became each piece's node; -1 where that is not known."""
    return call_at_capture(evidence, work, by_order=False)

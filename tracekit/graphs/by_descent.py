"""Where a graph's nodes were captured, by their descent.

The node that ran is a copy; its descent leads to the node that the capture made, and that one lies inside the launch
which was captured. ``cudaGraphExecUpdate`` and calls that set the parameters of an instance's node replace what a node
does and leave no copy behind: after them, descent still leads to the first capture.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracekit.graphs.captures import NOWHERE
from tracekit.graphs.origins import Origins

if TYPE_CHECKING:
    from tracekit.graphs.captures import Captures
    from tracekit.graphs.nodes import Lineage


def origins(lineage: Lineage, captures: Captures) -> Origins:
    """The places where nodes were captured, as far as descent tells."""
    start, end = (np.append(times, NOWHERE)[lineage.root] for times in (captures.node_start, captures.node_end))
    return Origins(start, end, np.zeros(start.size, dtype=bool))

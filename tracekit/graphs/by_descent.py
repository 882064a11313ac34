"""Where the nodes of a CUDA graph were captured, by their descent.

The node that ran is a copy; its descent leads to the node that the graph capture made, and that one was made inside the
captured launch. ``cudaGraphExecUpdate`` and calls that set the parameters of an instance's node change what a node does
and leave no copy behind: after them, descent still leads to the first graph capture.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracekit.graphs.origins import Origins
from tracekit.graphs.windows import NOWHERE

if TYPE_CHECKING:
    from tracekit.graphs.graph_captures import GraphCaptures
    from tracekit.graphs.nodes import Lineage


def origins(lineage: Lineage, captures: GraphCaptures) -> Origins:
    """The places where nodes were captured, by their descent; ``windows.NOWHERE`` where it leads to none."""
    start, end = (np.append(times, NOWHERE)[lineage.root] for times in captures.nodes)
    no = np.zeros(start.size, dtype=bool)
    return Origins(start, end, by_order=no, shared=no)

"""``graph_node``: replayed work belongs to the call that was open when its node was captured, known by its descent.

The descent leads from the node that ran to the node that the graph capture made, and that one was made inside a
captured launch (:mod:`tracekit.graphs.by_descent`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.attribution.capturing import call_at_graph_capture

if TYPE_CHECKING:
    from tracekit.arrays.types import Ints
    from tracekit.trace.evidence import Evidence


NAME = "graph_node"


def owners(evidence: Evidence, work: Ints) -> Ints:
    """The innermost call around the launch that became the node of each piece of work; -1 where that is not known."""
    return call_at_graph_capture(evidence, work, by_order=False)

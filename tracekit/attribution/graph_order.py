"""``graph_order``: replayed work belongs to the call that was open when its node was captured, known by its order.

Where it is certain that the graph's nodes are the launches of a graph capture in the same order, the n-th node belongs
to the call around the n-th launch (:mod:`tracekit.graphs.by_order`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.attribution.capturing import call_at_graph_capture

if TYPE_CHECKING:
    from tracekit.arrays.types import Ints
    from tracekit.trace.evidence import Evidence


NAME = "graph_order"


def owners(evidence: Evidence, work: Ints) -> Ints:
    """The innermost call around the launch in the place of each node; -1 where that is not known."""
    return call_at_graph_capture(evidence, work, by_order=True)

"""``graph_node``: replayed work belongs to the call that was open when its node was captured.

The node's descent leads to the node that the graph capture made, and that one lies inside a captured launch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.attribution.capturing import call_at_capture

if TYPE_CHECKING:
    from tracekit.arrays.types import Ints
    from tracekit.trace.evidence import Evidence


NAME = "graph_node"


def owners(evidence: Evidence, work: Ints) -> Ints:
    """The innermost call around the launch that became each piece's node; -1 where that is not known."""
    return call_at_capture(evidence, work, by_order=False)

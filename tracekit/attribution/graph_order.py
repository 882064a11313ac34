"""``graph_order``: replayed work belongs to the call around the launch in the place of its node.

The order of nodes is that of the launches of their graph capture, where that is certain
(:mod:`tracekit.graphs.by_order`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.attribution.capturing import call_at_capture

if TYPE_CHECKING:
    from tracekit.arrays.types import Ints
    from tracekit.trace.evidence import Evidence


NAME = "graph_order"


def owners(evidence: Evidence, work: Ints) -> Ints:
    """The innermost call around the launch in the place of each piece's node; -1 where that is not known."""
    return call_at_capture(evidence, work, by_order=True)

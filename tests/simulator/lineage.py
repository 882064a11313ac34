"""What a file says of a replayed node: whose launch added it, and whether that is written down.

It is written down if the clones' records name their originals, back to a node that was recorded inside the API call
which added it, and that call is there. Where a record or the call is lost, or nodes were recorded late, the order of
launches inside the capture may still tell: an answer may be found then, or none, but no other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulator.events import Node, Range, Work


def captured_inside(piece: Work) -> Range | None:
    """The range that was open when the node was captured, if it ever was."""
    launch = piece.node.root.captured_by if piece.node else None
    return launch.inside if launch else None


def recorded(node: Node) -> bool:
    """Whether the file says which launch added ``node`` to the graph that its lineage begins with."""
    while node.original is not None:
        if not any(said.original is node.original and not said.lost for said in node.records):
            return False
        node = node.original
    launch = node.captured_by
    in_time = any(not said.late and not said.lost for said in node.records)
    return launch is not None and not launch.lost and in_time


def phases(pushed: Range) -> frozenset[str]:
    """What a call was part of. Without the bounds of its capture a file need not say that it was one."""
    if pushed.capture is None:
        return frozenset({"forward"})
    bounds = pushed.capture.begin, pushed.capture.end
    known = all(bound is not None and not bound.lost for bound in bounds)
    return frozenset({"capture"} if known else {"capture", "forward"})

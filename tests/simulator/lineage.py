"""What a file says of a replayed node: whose launch added it, and whether that is written down.

It is written down if the clones' records name their originals, back to a node that was recorded inside the API call
which added it, and that call is there. Where a record or the call is lost, or nodes were recorded late, the order of
launches inside the capture may still tell: an answer may be found then, or none, but no other.

A graph traced as a whole is the work of the innermost call that all captured launches lie in. No record of it is sure
to be there, so its call may always be missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulator.events import Launch, Node, Range, Work

UNMAPPED, NOT_EXPANDED, OUTSIDE = "graph_unmapped", "graph_not_expanded", "outside_modules"
IN_NO_CALL = frozenset({OUTSIDE, "graph_not_in_one_call"})


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


def causes(piece: Work, launch: Launch | None, call: Range | None) -> frozenset[str]:
    """Why a piece of work may have no module; none where it must have one.

    Args:
        piece: The work.
        launch: What launched it, if that is in the file.
        call: The call it belongs to, be that told by the file or not.
    """
    if piece.node is not None:
        ran_outside = call is None and piece.node.root.captured_by is not None
        unknown = not recorded(piece.node)
        return frozenset({UNMAPPED} if unknown else ()) | frozenset({OUTSIDE} if ran_outside else ())
    if piece.replayed:
        return frozenset({NOT_EXPANDED}) | (IN_NO_CALL if piece.captured and call is None else frozenset())
    if launch is None and piece.correlation is None:
        return frozenset({"managed_memory"})
    if launch is None:
        in_vain = piece.early and piece.launch is not None and not piece.launch.lost
        return frozenset({"impossible_launch" if in_vain else "no_launch"})
    return frozenset({OUTSIDE} if call is None else ())


def methods(piece: Work, call: Range | None) -> frozenset[str]:
    """How the module of a piece of work may be known."""
    if call is None:
        return frozenset()
    if piece.node is None:
        return frozenset({"graph_capture" if piece.replayed else "range"})
    return frozenset({"graph_node"} if recorded(piece.node) else {"graph_node", "graph_order"})


def phases(pushed: Range) -> frozenset[str]:
    """What a call was part of. Without the bounds of its capture a file need not say that it was one."""
    if pushed.capture is None:
        return frozenset({"forward"})
    bounds = pushed.capture.begin, pushed.capture.end
    known = all(bound is not None and not bound.lost for bound in bounds)
    return frozenset({"capture"} if known else {"capture", "forward"})

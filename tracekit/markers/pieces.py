"""Our own range around a piece of a compiled model: ``{"Piece": "submod_2", "Graph": 0, "Size": 16, …}``.

A piece is no module and no call: work launched in it belongs to the call around it until the piece's kernel map says
more. Its name, graph and code are what that map is found by.
"""

from __future__ import annotations

from tracekit.markers import literal
from tracekit.markers.base import PieceMarker

CANDIDATES = r"""^\{['"]Piece['"]:"""

#: How a piece can run.
WAYS = ("compiled", "captured", "replayed", "eager")
_LARGEST = 2**63 - 1


def parse(text: str) -> PieceMarker | None:
    """The piece; None if the text only begins like one."""
    try:
        said = {str(key): item for key, item in literal.pairs(text)}
    except literal.Refused:
        return None
    name, way, code = said.get("Piece"), said.get("How"), said.get("Code")
    if not isinstance(name, str) or way not in WAYS:
        return None
    return PieceMarker(
        name,
        str(way),
        graph=_count(said.get("Graph")),
        size=_count(said.get("Size")),
        code=code if isinstance(code, str) else None,
    )


def _count(item: object) -> int | None:
    return item if type(item) is int and 0 <= item <= _LARGEST else None

"""Our own range around a piece of a compiled model: ``{"Piece": "submod_2", "Graph": 0, "Size": 16, …}``.

A piece is neither a module nor a call: work launched in it belongs to the call around it, unless the piece's kernel
map, which is found by name, graph and code, tells more.
"""

from __future__ import annotations

from tracekit.markers import literal
from tracekit.markers.base import PieceMarker
from tracekit.markers.fields import count_of

CANDIDATES = r"""^\{['"]Piece['"]:"""

#: How a piece can run.
WAYS = ("compiled", "captured", "replayed", "eager")


def parse(text: str) -> PieceMarker | None:
    """The piece; None if the text only starts like one."""
    try:
        fields = {str(key): item for key, item in literal.pairs(text)}
    except literal.Refused:
        return None
    name, way, code = fields.get("Piece"), fields.get("How"), fields.get("Code")
    if not isinstance(name, str) or way not in WAYS:
        return None
    return PieceMarker(
        name,
        str(way),
        graph=count_of(fields.get("Graph")),
        size=count_of(fields.get("Size")),
        code=code if isinstance(code, str) else None,
    )

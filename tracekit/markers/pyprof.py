"""PyProf's markers: ``{'mod': 'torch', 'op': 'norm', 'args': [...]}`` and ``{'traceMarker': [...]}``.

They name operators and where in the user's code they were called, not modules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.markers import literal
from tracekit.markers.base import OperatorMarker
from tracekit.markers.fields import shapes_of

if TYPE_CHECKING:
    from tracekit.markers.base import Shapes

CANDIDATES = r"""^\s*\{\s*['"](mod|op|traceMarker)['"]\s*:"""


def parse(text: str) -> OperatorMarker | None:
    """The operator and its tensors, or the call stack; None if the text is another dict."""
    try:
        items = {str(key): item for key, item in literal.pairs(text)}
    except literal.Refused:
        return None
    if isinstance(stack := items.get("traceMarker"), list):
        return OperatorMarker(None, stack=tuple(map(str, stack)))
    name, namespace = items.get("op"), items.get("mod")
    if not isinstance(name, str):
        return None
    return OperatorMarker(name, namespace if isinstance(namespace, str) else None, _tensors(items.get("args")))


def _tensors(args: object) -> Shapes:
    if not isinstance(args, list):
        return ()
    shapes = [shapes_of([arg.get("shape")]) for arg in args if isinstance(arg, dict) and arg.get("type") == "tensor"]
    return tuple(shape[0] for shape in shapes if shape)

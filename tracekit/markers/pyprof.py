"""PyProf's markers: ``{'mod': 'torch', 'op': 'norm', 'args': [...]}`` and ``{'traceMarker': ['train.py:12', ...]}``.

They name operators and the lines of the user's code that called them, from the outside in, not modules; of recurrent
layers also class and settings: ``{'mod': 'LSTM', 'strRepr': '200, 200'}``.
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
    if isinstance(settings := items.get("strRepr"), str) and isinstance(namespace, str):
        return OperatorMarker(f"{namespace}({settings})")
    if not isinstance(name, str):
        return None
    return OperatorMarker(name, namespace if isinstance(namespace, str) else None, _tensors(items.get("args")))


def _tensors(args: object) -> Shapes:
    if not isinstance(args, list):
        return ()
    shapes = [shapes_of([arg.get("shape")]) for arg in args if isinstance(arg, dict) and arg.get("type") == "tensor"]
    return tuple(shape[0] for shape in shapes if shape)

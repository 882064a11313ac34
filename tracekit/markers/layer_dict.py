"""The dict that vLLM's and SGLang's layer-wise hooks write, as Python or as JSON.

``{'Module': 'top.layers.3.mlp', 'TrainableParams': {'weight': [64, 64]}, 'Inputs': [[8, 64]], 'mask': [[8]],
'StaticParams': {...}}``: keys in this order, any other key is a tensor-valued keyword argument. When the call has
ended, a second, empty range tells its ``Outputs``. Keyword arguments overwrite keys of the same name.
"""

from __future__ import annotations

import re

from tracekit.markers import literal
from tracekit.markers.base import ModuleMarker, Unreadable
from tracekit.markers.fields import is_path, module_marker

CANDIDATES = r"""(?s)^\s*\{(.*[,\s])?['"]Module['"]\s*:"""

_BEGINNING = re.compile(r"""\s*\{\s*['"]Module['"]\s*:""")
_LEADING_NAME = re.compile(
    r"""\s*\{\s*['"]Module['"]\s*:\s*('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")\s*[,}]"""
)


def parse(text: str) -> ModuleMarker | Unreadable | None:
    """What the text says; of a text cut short or too long, only the module that it begins with."""
    try:
        items = literal.pairs(text)
    except literal.Refused as refused:
        return _salvaged(text, refused)
    return module_marker(items) if any(key == "Module" for key, _ in items) else None


def _salvaged(text: str, refused: literal.Refused) -> ModuleMarker | Unreadable | None:
    if not _BEGINNING.match(text):
        return None
    name = _LEADING_NAME.match(text[: literal.MOST_CHARACTERS])
    path = literal_text(name.group(1)) if name else None
    if path is None or not is_path(path):
        return Unreadable(refused.cause)
    return ModuleMarker(path, cause=refused.cause)


def literal_text(quoted: str) -> str | None:
    """The text in quotes; None if it is not well-formed."""
    try:
        found = literal.value(quoted)
    except literal.Refused:
        return None
    return found if isinstance(found, str) else None

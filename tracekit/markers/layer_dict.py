"""The dict that vLLM's and SGLang's layer-wise hooks write, as Python or as JSON.

``{'Module': 'top.layers.3.mlp', 'TrainableParams': {'weight': [64, 64]}, 'Inputs': [[8, 64]], 'mask': [[8]],
'StaticParams': {...}}``: keys in this order, any other key is a tensor-valued keyword argument. When the call has
ended, a second, empty range records its ``Outputs``. Keyword arguments overwrite keys of the same name.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from tracekit.markers import literal
from tracekit.markers.base import ModuleMarker, Unreadable
from tracekit.markers.fields import cause_of, is_path, module_marker, shapes_of

if TYPE_CHECKING:
    from tracekit.causes.base import Cause
    from tracekit.markers.base import Shapes

CANDIDATES = r"""(?s)^\s*\{(.*[,\s])?['"]Module['"]\s*:"""

_BEGINNING = re.compile(r"""\s*\{\s*['"]Module['"]\s*:""")
_LEADING_NAME = re.compile(r"""\s*\{\s*['"]Module['"]\s*:\s*('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")\s*[,}]""")


#: The module stands before these and the tensors after them. Each repeats often, so both are cached separately.
_INPUTS, _OUTPUTS = ", 'Inputs': ", ", 'Outputs': "
_MOST_CACHED_CHARACTERS = 2_048


def parse(text: str) -> ModuleMarker | Unreadable | None:
    """The marker; for a text that is truncated or too long, only the module that it begins with."""
    if len(text) <= _MOST_CACHED_CHARACTERS and not ('"' in text or "\\" in text):
        module, split, tensors = text.rpartition(_INPUTS)
        if not split:
            module, split, tensors = text.rpartition(_OUTPUTS)
        if split and (marker := _module(module)) is not None and (found := _shapes(tensors)) is not None:
            shapes, cause = found
            results = split == _OUTPUTS
            return ModuleMarker(
                path=marker.path,
                class_name=marker.class_name,
                params=marker.params,
                inputs=None if results else shapes,
                outputs=shapes if results else None,
                only_result=results,
                cause=marker.cause or cause,
            )
    return _whole(text)


@lru_cache(maxsize=4_096)
def _module(text: str) -> ModuleMarker | None:
    """The module in the part of a plain text before its tensors."""
    try:
        items = literal.pairs(f"{text}}}")
    except literal.Refused:
        return None
    if not items or not {key for key, _ in items} <= {"Module", "Class", "TrainableParams"}:
        return None
    marker = module_marker(items)
    return marker if isinstance(marker, ModuleMarker) else None


@lru_cache(maxsize=4_096)
def _shapes(text: str) -> tuple[Shapes, Cause | None] | None:
    """The shapes at the end of a plain text, and what of them cannot be read; None if it does not end with shapes."""
    try:
        items = literal.pairs(f"{{'': {text}")
    except literal.Refused:
        return None
    shapes = shapes_of(items[0][1]) if len(items) == 1 else None
    return None if shapes is None else (shapes, cause_of(shapes))


def _whole(text: str) -> ModuleMarker | Unreadable | None:
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
        value = literal.value(quoted)
    except literal.Refused:
        return None
    return value if isinstance(value, str) else None

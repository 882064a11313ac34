"""vLLM's range around a region compiled by torch.compile, inside of which no hook runs.

``Torch Compiled Module (input):Class`` and, after it, ``Torch Compiled Module (output):Class``, as plain text or as
the ``Module`` of a layer dict. It only names the class; its place is below the enclosing call.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from tracekit.markers import literal
from tracekit.markers.base import ModuleMarker
from tracekit.markers.fields import is_path, module_marker

if TYPE_CHECKING:
    from tracekit.markers.base import Unreadable

CANDIDATES = r"Torch Compiled Module \((input|output)\):"

_NAME = re.compile(r"Torch Compiled Module \((input|output)\):(.*)", re.DOTALL)


def parse(text: str) -> ModuleMarker | Unreadable | None:
    """The compiled region; None if the text only mentions one."""
    if plain := _NAME.fullmatch(text):
        return _region(ModuleMarker(text, inputs=None, outputs=None), *plain.groups())
    try:
        marker = module_marker(literal.pairs(text))
    except literal.Refused:
        return None
    if isinstance(marker, ModuleMarker) and (name := _NAME.fullmatch(marker.path)):
        return _region(marker, *name.groups())
    return None


def _region(marker: ModuleMarker, side: str, class_name: str) -> ModuleMarker | None:
    name = class_name.strip().rsplit(".", 1)[-1]
    if not name or not is_path(name):
        return None
    return replace(marker, path=name, class_name=name, class_only=True, only_result=side == "output")

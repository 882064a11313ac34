"""SGLang's compact markers of diffusion models: ``transformer.blocks.0.attn in=[[1, 4096, 3072]]``.

A call without tensors leaves its bare name, which cannot be told from plain text and stays plain.
"""

from __future__ import annotations

import re

from tracekit.causes import BROKEN
from tracekit.markers import literal
from tracekit.markers.base import ModuleMarker
from tracekit.markers.fields import cause_of, is_path, shapes_of

CANDIDATES = r"^\S+ in=\[.*\]$"

_FORM = re.compile(r"(\S+) in=(\[.*\])")


def parse(text: str) -> ModuleMarker | None:
    """The module and the shapes of its inputs; None if what follows ``in=`` are no shapes."""
    found = _FORM.fullmatch(text)
    if not found or not is_path(found.group(1)):
        return None
    try:
        shapes = shapes_of(literal.value(found.group(2)))
    except literal.Refused as refused:
        return None if refused.cause is BROKEN else ModuleMarker(found.group(1), cause=refused.cause)
    if shapes is None:
        return None
    return ModuleMarker(found.group(1), inputs=shapes, cause=cause_of(shapes))

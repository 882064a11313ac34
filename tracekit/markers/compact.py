"""SGLang's compact markers of diffusion models: ``transformer.blocks.0.attn in=[[1, 4096, 3072]]``.

A call without tensors leaves only its name, which looks like any other text and is not a marker.
"""

from __future__ import annotations

import re

from tracekit.causes.markers import BROKEN
from tracekit.markers import literal
from tracekit.markers.base import ModuleMarker
from tracekit.markers.fields import cause_of, is_path, shapes_of

CANDIDATES = r"^\S+ in=\[.*\]$"

_FORM = re.compile(r"(\S+) in=(\[.*\])")


def parse(text: str) -> ModuleMarker | None:
    """The module and the shapes of its inputs; None if ``in=`` is not followed by shapes."""
    match = _FORM.fullmatch(text)
    if not match or not is_path(match.group(1)):
        return None
    try:
        shapes = shapes_of(literal.value(match.group(2)))
    except literal.Refused as refused:
        return None if refused.cause is BROKEN else ModuleMarker(match.group(1), cause=refused.cause)
    if shapes is None:
        return None
    return ModuleMarker(match.group(1), inputs=shapes, cause=cause_of(shapes))

"""Ranges around code that torch.compile made, which hold numbers and keys of it.

``Torch-Compiled Region: 0/1`` is frame 0 compiled the second time (pytorch: ``torch/_dynamo/convert_frame.py``), ``##
Call CompiledFxGraph fx4k… ##`` a graph by the key of its code in the cache (``torch/_inductor/output_code.py``;
before 2.6 ``codecache.py``), ``graph_3_inductor_wrapper_call`` the code of one
(``torch/_inductor/codegen/wrapper.py``). A region is a place; a key changes with torch and its settings.
"""

from __future__ import annotations

import re

from tracekit.markers.base import RangeMarker
from tracekit.markers.fields import bare_name

CANDIDATES = r"^(Torch-Compiled Region: |## Call CompiledFxGraph |graph_\d+_inductor_wrapper_call)"

_FORM = re.compile(r"Torch-Compiled Region: [\w/\[\]!.-]{1,80}|graph_\d{1,9}_inductor_wrapper_call")
_GRAPH = re.compile(r"(## Call CompiledFxGraph )\w{1,200}( ##)")


def parse(text: str) -> RangeMarker | None:
    """The range; None if the text only starts like one."""
    name = bare_name(text)
    if graph := _GRAPH.fullmatch(name):
        return RangeMarker(f"{graph[1]}*{graph[2]}", compiled=True)
    return RangeMarker(name, compiled=True) if _FORM.fullmatch(name) else None

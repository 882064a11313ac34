"""Calls of modules as torch.profiler records them with ``with_stack``: ``nn.Module: Linear_3``.

A module is named by its class and a number: the fourth Linear that was called. Names of attributes are not recorded, so
this is no path: a module stands below the call around it, under this name.
"""

from __future__ import annotations

import re

from tracekit.causes import NO_NAME
from tracekit.markers.base import ModuleMarker, Unreadable
from tracekit.markers.fields import is_path

#: What such a text begins with.
PREFIX = "nn.Module: "

CANDIDATES = rf"^{re.escape(PREFIX)}"

_NUMBERED = re.compile(rf"{re.escape(PREFIX)}(?P<name>(?P<class>.+)_\d{{1,9}})", re.DOTALL)


def parse(text: str) -> ModuleMarker | Unreadable | None:
    """The marker; None if the text does not begin like one."""
    if not text.startswith(PREFIX):
        return None
    match = _NUMBERED.fullmatch(text)
    if match is None or not is_path(match["name"]):
        return Unreadable(NO_NAME)
    return ModuleMarker(path=match["name"].replace(".", "_"), class_name=match["class"], class_only=True)

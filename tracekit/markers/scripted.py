"""Calls of modules of TorchScript models, in PyTorch's own notation of a module hierarchy.

``TOP(ResNet)::forward.layer1(Sequential)::forward.SELF(Sequential)::helper`` names attribute, class and method of every
frame. ``SELF`` is another method of the same module; functions of no module (``::relu``) are in the module that calls
them. A module is what the frames up to it name; its root goes by its class.
"""

from __future__ import annotations

import re

from tracekit.causes import NO_NAME
from tracekit.markers.base import ModuleMarker, Unreadable
from tracekit.markers.fields import is_path

CANDIDATES = r"^TOP\([^()]+\)::"

_BEGINNING = re.compile(CANDIDATES)
_FRAME = re.compile(r"(?P<name>[^.()\s]+)\((?P<class>[^()]*)\)::[^.()]*")
_SAME, _UNKNOWN = "SELF", ("INSTANCE_NAME_UNKNOWN", "UNKNOWN_INSTANCE")


def frames(text: str) -> list[tuple[str, str]]:
    """The modules that a hierarchy names, outermost first: attribute, and the text up to there."""
    if not _BEGINNING.match(text):
        return []
    return [(frame["name"], text[: frame.end()]) for frame in _FRAME.finditer(text) if frame["name"] != _SAME]


def parse(text: str) -> ModuleMarker | Unreadable | None:
    """The marker; None if the text is no hierarchy."""
    if not _BEGINNING.match(text):
        return None
    modules = [frame for frame in _FRAME.finditer(text) if frame["name"] != _SAME]
    names = [modules[0]["class"], *(frame["name"] for frame in modules[1:])]
    path = ".".join(names)
    if not is_path(path) or not set(names).isdisjoint(_UNKNOWN):
        return Unreadable(NO_NAME)
    return ModuleMarker(path=path, class_name=modules[-1]["class"] or None)

"""Calls of modules of TorchScript models, in PyTorch's own notation of a module hierarchy.

``TOP(ResNet)::forward.layer1(Sequential)::forward.SELF(Sequential)::helper`` names attribute, class and method of
every frame. ``SELF`` is another method of the same module; functions of no module (``::relu``,
``CALL_FUNCTION::relu``) are in the module that calls them, and so is an operator at the end. A module is what the
frames up to it name; its root goes by its class.

:func:`hierarchy_texts` writes the notation, for tools that know it. There, every frame's method is ``forward``: which
other methods ran is not known. A container that is never called has a frame, too, as its name is part of the path.
Roots of one class go by their names.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from tracekit.causes.markers import NO_NAME
from tracekit.markers.base import ModuleMarker, Unreadable
from tracekit.markers.fields import is_path
from tracekit.markers.kinds import MODULE

if TYPE_CHECKING:
    from collections.abc import Sequence

CANDIDATES = r"^TOP\([^()]+\)::"

_BEGINNING = re.compile(CANDIDATES)
_FRAME = re.compile(r"(?P<name>[^()]*?)(?:\((?P<class>[^()]*)\))?::(?P<method>.*)", re.DOTALL)
#: A frame ends at a dot, but not at one in the name of its class.
_PART = re.compile(r"(?:[^.()]|\([^()]*\))+")
_ROOT, _SAME = "TOP", "SELF"
_UNKNOWN = ("INSTANCE_NAME_UNKNOWN", "UNKNOWN_INSTANCE")
#: The field of an event of a Chrome trace that holds a hierarchy.
FIELD = "Module Hierarchy"
#: What the notation cannot hold.
_UNWRITABLE_NAME, _UNWRITABLE_CLASS = re.compile(r"[.()\s]|::|^(?:TOP|SELF|CALL_FUNCTION)$|^$"), re.compile(r"[()]")


class Frame(NamedTuple):
    """A frame of a hierarchy.

    Attributes:
        name: Attribute of the module, or what stands in its place.
        class_name: Its class; None for a function or operator.
        text: The frame.
    """

    name: str
    class_name: str | None
    text: str

    @property
    def calls_module(self) -> bool:
        """Whether it calls a module other than that of the frame above."""
        return bool(self.name) and self.class_name is not None and self.name != _SAME

    @property
    def is_nameless_root(self) -> bool:
        """Whether it is the root of a part of a model that was compiled for itself, or a function's."""
        return self.name == _ROOT and not self.class_name


def frames(text: str) -> list[Frame]:
    """The frames of a hierarchy, outermost first; none if the text is no hierarchy."""
    if not text.startswith(f"{_ROOT}("):
        return []
    parts = [(part, _FRAME.fullmatch(part)) for part in _PART.findall(text)]
    return [Frame(match["name"], match["class"], part) for part, match in parts if match]


def parse(text: str) -> ModuleMarker | Unreadable | None:
    """The marker; None if the text is no hierarchy."""
    if not _BEGINNING.match(text):
        return None
    modules = [frame for frame in frames(text) if frame.calls_module]
    names = [(modules[0].class_name or "").rpartition(".")[2], *(frame.name for frame in modules[1:])]
    path = ".".join(names)
    if not is_path(path) or not set(names).isdisjoint(_UNKNOWN):
        return Unreadable(NO_NAME)
    return ModuleMarker(path=path, class_name=modules[-1].class_name or None)


class Node(NamedTuple):
    """A node of a hierarchy.

    Attributes:
        parent: Row of the node above it, or -1.
        name: Its attribute; of a root its own name.
        class_name: Its class, if known.
        kind: One of ``markers.kinds.KINDS``.
    """

    parent: int
    name: str
    class_name: str | None
    kind: str = MODULE


def hierarchy_texts(nodes: Sequence[Node]) -> list[str | None]:
    """The hierarchy of every node; one that is no module has that of the module above it, or None.

    Args:
        nodes: The nodes, each after the one above it.
    """
    roots = Counter(node.class_name or node.name for node in nodes if node.parent < 0)
    texts: list[str | None] = []
    for node in nodes:
        above = texts[node.parent] if node.parent >= 0 else None
        if node.kind != MODULE:
            texts.append(above)
        elif above is None:
            own = node.class_name if node.class_name and roots[node.class_name] <= 1 else node.name
            texts.append(f"TOP({_UNWRITABLE_CLASS.sub('', own)})::forward.")
        else:
            name = _UNKNOWN[0] if _UNWRITABLE_NAME.search(node.name) else node.name
            texts.append(f"{above}{name}({_UNWRITABLE_CLASS.sub('', node.class_name or '')})::forward.")
    return texts

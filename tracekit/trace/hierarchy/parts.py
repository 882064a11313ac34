"""Parts of a place: the names from a root down to it, joined by dots.

The name of a range may hold dots, and be the same as a module's beside it. So within this room it is written as a part
of its own kind, without dots; in the tables it stands as it is, and a path that is taken gets a number.
"""

from __future__ import annotations

from typing import Final

from tracekit.markers.kinds import MODULE, OPERATOR, RANGE, REGION

# Characters of Unicode's private use area, which no sensible text holds.
_DOT = "\ue000"
_MARKS: Final = {RANGE: "\ue001", OPERATOR: "\ue002", REGION: "\ue003"}
_KIND_OF: Final = {mark: kind for kind, mark in _MARKS.items()}
_UNUSED = str.maketrans(dict.fromkeys((_DOT, *_KIND_OF), "?"))


def part(name: str, kind: str) -> str:
    """A name as one part of a place."""
    return _MARKS[kind] + name.translate(_UNUSED).replace(".", _DOT)


def name_and_kind(part_: str) -> tuple[str, str]:
    """The name and kind of a part; of modules the part is the name."""
    kind = _KIND_OF.get(part_[:1])
    return (part_, MODULE) if kind is None else (part_[1:].replace(_DOT, "."), kind)

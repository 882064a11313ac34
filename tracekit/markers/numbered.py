"""Calls of modules as torch.profiler records them with ``with_stack``: ``nn.Module: Linear_3``.

A module is named by its class and a number: the fourth Linear that was called. Names of attributes are not recorded, so
this is no path: a module stands below the call around it, under this name. Where a trace shows that several modules
have one name, the reader adds what tells them apart: ``nn.Module: Block_0 (model.py(12))``; and where a module runs
again for a backward pass, that it does: ``nn.Module: Linear_3, recompute``.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from tracekit.causes.markers import NO_NAME
from tracekit.markers.base import ModuleMarker, Unreadable
from tracekit.markers.fields import is_path

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

#: What such a text begins with.
PREFIX = "nn.Module: "
#: What the text of a call ends with that runs a module again.
AGAIN = ", recompute"

CANDIDATES = rf"^{re.escape(PREFIX)}"

_NUMBERED = re.compile(
    rf"{re.escape(PREFIX)}(?P<name>(?P<class>.+?)_(?P<number>\d{{1,9}}))(?: \((?P<sign>.+)\))?(?P<again>{AGAIN})?",
    re.DOTALL,
)


def parse(text: str) -> ModuleMarker | Unreadable | None:
    """The marker; None if the text does not begin like one."""
    if not text.startswith(PREFIX):
        return None
    match = _NUMBERED.fullmatch(text)
    if match is None or not is_path(match["name"]):
        return Unreadable(NO_NAME)
    return ModuleMarker(
        path=match["name"].replace(".", "_"),
        class_name=match["class"],
        static_params=json.dumps({"forward": match["sign"]}) if match["sign"] else None,
        class_only=True,
        numbered=True,
        phase="recompute" if match["again"] else "forward",
    )


class Numbering:
    """Numbers of modules in several traces of one process, each of which counts anew.

    ``Linear_0`` of one trace and of another are different modules unless it is known that they are the same: where all
    that both traces number is equal, and where a class has one module in both that runs around the same work. A trace
    whose modules are not known to be those of others has its numbers raised.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self._known: dict[str, set[int]] = {}
        self._renamed: dict[frozenset[str], dict[str, str]] = {}
        for name, number in _numbered(texts).values():
            self._known.setdefault(name, set()).add(number)

    def renamed(self, texts: Iterable[str], same: Container[str] = ()) -> dict[str, str]:
        """The texts of one more trace that need another number, with the text that has it.

        Args:
            texts: Texts of ranges.
            same: Texts that mean the same module as in the first trace, if it is the only one of its class in both.
        """
        numbered = _numbered(texts)
        key = frozenset(numbered)
        if key not in self._renamed:
            own: dict[str, set[int]] = {}
            for name, number in numbered.values():
                own.setdefault(name, set()).add(number)
            raised = {
                name: max(self._known[name]) + 1
                for name, numbers in own.items()
                if numbers & self._known.get(name, set())
                and not (numbers == self._known[name] and len(numbers) == 1 and _text(name, *numbers) in same)
            }
            self._renamed[key] = {
                text: _text(name, number + raised[name]) + text.removeprefix(_text(name, number))
                for text, (name, number) in numbered.items()
                if name in raised
            }
            for name, numbers in own.items():
                self._known.setdefault(name, set()).update(number + raised.get(name, 0) for number in numbers)
        return self._renamed[key]


def _text(name: str, number: int) -> str:
    return f"{PREFIX}{name}_{number}"


def _numbered(texts: Iterable[str]) -> dict[str, tuple[str, int]]:
    """Class and number by text."""
    matches = {text: _NUMBERED.fullmatch(text) for text in texts if text.startswith(PREFIX)}
    return {text: (match["class"], int(match["number"])) for text, match in matches.items() if match is not None}

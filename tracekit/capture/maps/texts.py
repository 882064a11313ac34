"""How a traced graph names modules: by the variable and the attributes through which the program came to each."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import fx

#: What a traced name begins with: a local or global of the traced function.
_VARIABLE = re.compile(r"([A-Z]+)\['((?:[^'\\]|\\.)*)'\]")
_PART = re.compile(r"\._(?:modules|parameters|buffers)\['([^']*)'\]|\['?([^'\]]*)'?\]")


def module_text(node: fx.Node) -> str | None:
    """How a graph names the innermost module that a node is work of; None if it lies in none."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not isinstance(stack, dict) or not stack:
        return None
    return entry_of(list(stack.values())[-1])[0]


def entry_of(entry: Any) -> tuple[str, str]:  # noqa: ANN401 - as torch writes it
    """The text and the class of a module in a stack."""
    text, cls = entry if isinstance(entry, tuple | list) else (entry, "")
    name = cls.__name__ if isinstance(cls, type) else str(cls).rpartition(".")[2]
    return plain(str(text)), name


@lru_cache(maxsize=65_536)
def plain(text: str) -> str:
    """A name in which modules of modules are written with dots, behind the variable."""
    head = _VARIABLE.match(text)
    end = head.end() if head else 0
    return text[:end] + _PART.sub(lambda part: f".{part[1] or part[2]}", text[end:])


def base_of(text: str) -> str:
    """The variable that a name begins with."""
    head = _VARIABLE.match(text)
    return head[0] if head else text.partition(".")[0]

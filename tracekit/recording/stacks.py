"""Stacks of Python as texts: lines that are no part of torch, each ``file:line function``, the outermost first."""

import re
from collections.abc import Sequence

BETWEEN = ";"
#: Files of torch, and those that Inductor writes.
_OF_TORCH = re.compile(r"(?:.*[/\\](?:site|dist)-packages[/\\])?torch[/\\]|.*[/\\]torchinductor_")
_FILE, _FUNCTION = 200, 100
#: The most lines of a stack, and of all stacks of a report together: of deeper ones, the outermost are left out.
_DEEPEST, _MOST_LINES = 128, 1 << 18


def source_line(file: str, line: int, function: str) -> str | None:
    """A line of a stack; None for those of torch."""
    if _OF_TORCH.match(file):
        return None
    return f"{file[-_FILE:]}:{line} {function[:_FUNCTION]}".replace(BETWEEN, ",")


def stack_text(lines: Sequence[str]) -> str:
    """The text of a stack, from the innermost line outwards."""
    return BETWEEN.join(reversed(lines))


def innermost_line(stack: str) -> str:
    """The innermost line of a stack's text."""
    return stack.rpartition(BETWEEN)[2]


def deepest(stacks: int) -> int:
    """How many lines are kept of each of so many stacks."""
    return max(1, min(_DEEPEST, _MOST_LINES // max(stacks, 1)))

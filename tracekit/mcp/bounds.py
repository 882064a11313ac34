"""Bounds: arguments that no tool can mean are refused, and answers are cut to a size that an agent can read."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Sequence
from typing import Any

from tracekit.errors import plain
from tracekit.files import is_name
from tracekit.views.formatting import shortened

#: The most characters of an answer as JSON, and of a text in it.
MOST_CHARACTERS = 24_000
_LONGEST = 400
#: The most items of every list in it: the first of these that is short enough.
_MOST = (200, 100, 50, 25, 12, 6, 3, 1)
#: Limits of arguments: no path and no pattern is longer, no call needs more values.
_LONGEST_ARGUMENT, _MOST_ARGUMENTS = 4_096, 1_000

Answer = dict[str, Any]


def refused(arguments: object) -> str | None:
    """Why a call is refused because of its arguments, as JSON gives them; None if it is not."""
    waiting, seen = [arguments], 0
    while waiting:
        value, seen = waiting.pop(), seen + 1
        if seen > _MOST_ARGUMENTS:
            return f"more than {_MOST_ARGUMENTS:,} arguments"
        if isinstance(value, dict):
            waiting += [*value, *value.values()]
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, str) and len(value) > _LONGEST_ARGUMENT:
            return f"a text of {len(value):,} characters; expected at most {_LONGEST_ARGUMENT:,}"
        elif isinstance(value, str) and not is_name(value):
            return "a text with characters that no name has"
        elif isinstance(value, float) and not math.isfinite(value):
            return f"{value} is not a number"
    return None


def bounded(answer: Any, command: Sequence[object]) -> Answer:  # noqa: ANN401 - plain data
    """An answer that is cut to size.

    Args:
        answer: Plain data.
        command: The words of the command that prints all of it.

    Returns:
        ``answer``, ``complete`` (whether nothing was cut off) and ``command``.
    """
    whole = cut = _cut(answer, None)
    for most in _MOST:
        if len(as_text(cut)) <= MOST_CHARACTERS:
            break
        cut = _cut(answer, most)
    if len(as_text(cut)) > MOST_CHARACTERS:
        cut = None
    return {"answer": cut, "complete": cut == whole, "command": shlex.join(map(str, command))}


def as_text(answer: Any) -> str:  # noqa: ANN401 - plain data
    """Plain data as JSON in the fewest characters."""
    return json.dumps(answer, separators=(",", ":"), ensure_ascii=False)


def _cut(value: Any, most: int | None) -> Any:  # noqa: ANN401 - plain data
    if isinstance(value, str):
        return plain(shortened(value, _LONGEST), keep="\n")
    if isinstance(value, dict):
        return {_cut(str(name), most): _cut(item, most) for name, item in value.items()}
    return [_cut(item, most) for item in value[:most]] if isinstance(value, list | tuple) else value

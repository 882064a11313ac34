"""Arguments that no tool can mean: too long, too many, or neither texts nor numbers that can be written."""

from __future__ import annotations

import math

from tracekit.files import is_name

#: No path and no pattern is longer; no call needs more values.
_LONGEST = 4_096
_MOST = 1_000


def refused(arguments: object) -> str | None:
    """Why a call is refused because of its arguments, as JSON gives them; None if it is not."""
    waiting, seen = [arguments], 0
    while waiting:
        value, seen = waiting.pop(), seen + 1
        if seen > _MOST:
            return f"more than {_MOST:,} arguments"
        if isinstance(value, dict):
            waiting += [*value, *value.values()]
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, str) and (why := _refused_text(value)):
            return why
        elif isinstance(value, float) and not math.isfinite(value):
            return f"{value} is not a number"
    return None


def _refused_text(text: str) -> str | None:
    if len(text) > _LONGEST:
        return f"a text of {len(text):,} characters; expected at most {_LONGEST:,}"
    return None if is_name(text) else "a text with characters that no name has"

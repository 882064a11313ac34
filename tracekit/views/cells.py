"""Values as texts in the tables of the terminal, in the unit that the name of their column ends in."""

from __future__ import annotations

import json

from tracekit.analyses.phase_times import COLUMNS
from tracekit.views.wording import duration, flops, percent, plain, rounded, shortened, size

#: Names of columns of numbers that identify something: no thousands separators.
_IDENTIFIERS = ("_id", "pid", "rank", "device", "index")
_SHARES = ("share", "spread")
#: Longer texts lose their middle.
_LONGEST = 240


def cell(name: str, value: object) -> str:
    """A value for people.

    Args:
        name: The name of its column.
        value: The value; None is empty, as is a time of 0 in a phase.
    """
    if value is None or (value == 0 and name in COLUMNS):
        return ""
    if isinstance(value, str):
        return plain(shortened(value, _LONGEST))
    if isinstance(value, list | dict | bool):
        return plain(_shapes(value))
    assert isinstance(value, int | float)
    return _figure(name, value)


def _figure(name: str, value: float) -> str:
    if name.endswith(("_ns", "_ns_per_token")):
        return f"-{duration(-value)}" if value < 0 else duration(value)
    if name.endswith(_SHARES) or name == "known":
        return percent(value)
    if name.endswith(_IDENTIFIERS):
        return str(value)
    if name.endswith("bytes"):
        return size(value)
    if name.endswith(("flops", "flops_per_call")):
        return flops(value)
    return f"{value:,}" if isinstance(value, int) else rounded(value)


def _shapes(value: object) -> str:
    return json.dumps(value) if value not in ({}, []) else ""

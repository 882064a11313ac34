"""Series of siblings: numbered modules (``layers.0 … 31``) and ranges (``layer_0 … layer_31``)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tracekit.markers.kinds import RANGE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.analyses.subtrees import Hierarchy

#: A number that tells siblings apart: not the 2 of ``conv2d``.
_NUMBER = re.compile(r"(?<![0-9])[0-9]{1,9}(?![^\W_])")
#: How many numbers of a name are looked at, from its end.
_MOST_NUMBERS = 4


def series(modules: Hierarchy) -> list[str | None]:
    """For each module of a series its name with ``*`` for the number; None for the others.

    A module is in a series if its name is a number; a range if a sibling has the next number or the one before in
    place of one of its own.
    """
    # By parent and name without the number, the ranges by number.
    alike: dict[tuple[int, str], set[int]] = {}
    numbers = {row: [*_numbers(modules.name[row])] for row, kind in enumerate(modules.kind) if kind == RANGE}
    parents = modules.parent.tolist()
    for row, own in numbers.items():
        for name, number in own:
            alike.setdefault((parents[row], name), set()).add(number)
    names = ["*" if name.isdecimal() else None for name in modules.name]
    for row, own in numbers.items():
        in_series = (n for n, number in own if not alike[parents[row], n].isdisjoint((number - 1, number + 1)))
        names[row] = next(in_series, None)
    return names


def patterns(modules: Hierarchy) -> list[str]:
    """For each module its path with ``*`` for the numbers of series: ``top.layers.*.mlp``."""
    answer: list[str] = []
    for row, (name, parent) in enumerate(zip(series(modules), modules.parent.tolist(), strict=True)):
        own = modules.name[row] if name is None else name
        answer.append(f"{answer[parent]}.{own}" if parent >= 0 else modules.path[row])
    return answer


def _numbers(name: str) -> Iterator[tuple[str, int]]:
    """The numbers of a name, the last one first, each with the name without it."""
    for match in [*_NUMBER.finditer(name)][: -_MOST_NUMBERS - 1 : -1]:
        yield f"{name[: match.start()]}*{name[match.end() :]}", int(match[0])

"""Lines of Python around launches, from the functions that ``with_stack`` records."""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from tracekit.arrays.codes import lookup
from tracekit.arrays.groups import grouped
from tracekit.arrays.intervals import innermost, nesting_order, one_axis, parents
from tracekit.arrays.types import Ints, Rows
from tracekit.recording.stacks import deepest, source_line, stack_text
from tracekit.recording.tables import Launches

#: A function as torch names it, ``model.py(12): forward``; modules and built-in functions have no line.
_FUNCTION = re.compile(r"(.*)\((\d{1,9})\): (.*)", re.DOTALL)


@lru_cache(maxsize=1 << 16)
def line_of(name: object) -> str | None:
    """The line of a function; None if it has none, or is torch's own."""
    match = _FUNCTION.fullmatch(name) if isinstance(name, str) else None
    return source_line(match[1], int(match[2]), match[3]) if match else None


def with_stacks(launches: Launches, functions: dict[str, Ints], lines: Sequence[str]) -> tuple[Launches, list[str]]:
    """The launches with the functions around them on their threads, and the distinct stacks of these."""
    if not functions["start"].size:
        return launches, []
    threads = [functions["thread"]] * 2 + [launches.thread] * 2
    start, end, begun, ended = one_axis(
        threads, [functions["start"], functions["end"], launches.start_ns, launches.end_ns]
    )
    around = np.flatnonzero(np.searchsorted(begun, start) < np.searchsorted(begun, end, side="right"))
    order = around[nesting_order(start[around], end[around])]
    start, end, line = start[order], end[order], functions["name"][order]
    parent, _ = parents(start, end)
    inner = innermost(start, end, parent, begun, ended)
    kind = _same_stacks(line, parent)
    kinds, first = np.unique(kind[np.unique(inner[inner >= 0])], return_index=True)
    texts: dict[str, int] = {}
    of_kind = np.full(kind.size + 1, -1, dtype=np.int64)
    for number, row in zip(kinds.tolist(), np.unique(inner[inner >= 0])[first].tolist(), strict=True):
        text = stack_text(_upwards(row, line, parent, lines, deepest(kinds.size)))
        of_kind[number] = texts.setdefault(text, len(texts))
    return replace(launches, stack=of_kind[lookup(kind, inner)]), list(texts)


def _same_stacks(line: Ints, parent: Rows) -> Ints:
    """A number for each function, which those share that have equal lines above them: twice as many each round."""
    kind, above = grouped((line,)).group, parent
    while bool((above >= 0).any()):
        kind = grouped((kind, lookup(kind, above))).group
        above = lookup(above, above)
    return kind


def _upwards(row: int, line: Ints, parent: Rows, lines: Sequence[str], most: int) -> list[str]:
    stack: list[str] = []
    while row >= 0 and len(stack) < most:
        stack.append(lines[line[row]])
        row = int(parent[row])
    return stack

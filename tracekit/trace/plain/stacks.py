"""Call stacks as nodes: PyProf tells for each operator which lines of which files called it, from the outside in.

Each line is a node inside the one that called it. The stack of an operator that another one called begins with the
lines around that one; these are nodes already.
"""

from __future__ import annotations

import re
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.groups import grouped
from tracekit.arrays.intervals import parents
from tracekit.arrays.lookups import lookup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.arrays.types import Ints, Rows
    from tracekit.trace.plain.extents import Extents

#: Of a deeper stack the innermost lines count.
_MOST_LINES = 100
_OWN_LINES = re.compile(r"pyprof[/\\]nvtx[/\\]")
_FOLDERS = re.compile(r".*[/\\]", re.DOTALL)

Stack = tuple[str, ...]


class Lines(NamedTuple):
    """Lines of stacks as nodes.

    Attributes:
        at: Positions among the extents, each once for every line that is a node, in the order in which they nest.
        line: For each of these the name of the line.
    """

    at: Rows
    line: list[str]


def lines_of(stack: Sequence[str]) -> Stack:
    """The names of a stack's lines, such as ``train.py:123``, without folders and without PyProf's own lines."""
    lines = [line for line in stack[-_MOST_LINES:] if not _OWN_LINES.search(line)]
    return tuple(_FOLDERS.sub("", line) for line in lines)


def stack_lines(extents: Extents, name: Ints, stacks: list[Stack]) -> Lines:
    """The lines that are nodes for ranges that tell a call stack.

    Args:
        extents: Ranges that nest.
        name: For each of them the number of its name.
        stacks: For every name the lines of its stack; empty if it tells none.
    """
    at = np.flatnonzero(np.array([bool(stack) for stack in stacks])[name])
    parent, _ = parents(extents.start[at], extents.end[at])
    own = name[at]
    around = lookup(own, parent)
    groups = grouped((own, around))
    fresh = [
        _inside(stacks[inner], stacks[outer] if outer >= 0 else ())
        for inner, outer in zip(own[groups.first].tolist(), around[groups.first].tolist(), strict=True)
    ]
    sizes = np.array([len(lines) for lines in fresh], dtype=np.int64)[groups.group]
    lines = chain.from_iterable(fresh[group] for group in groups.group.tolist())
    return Lines(np.repeat(at, sizes), list(lines))


def _inside(stack: Stack, around: Stack) -> Stack:
    """The lines of a stack inside of those around it."""
    return stack[len(around) :] if stack[: len(around)] == around else stack

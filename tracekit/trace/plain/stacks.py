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
    from collections.abc import Collection, Sequence

    from tracekit.arrays.types import Ints, Rows
    from tracekit.trace.plain.extents import Extents

#: Of a deeper stack the innermost lines count.
_MOST_LINES = 100
_OWN_LINES = re.compile(r"pyprof[/\\]nvtx[/\\]")
_SEPARATOR = re.compile(r"[/\\]")
#: Files that so many folders do not tell apart keep all of theirs.
_MOST_FOLDERS = 8

Stack = tuple[str, ...]


class Lines(NamedTuple):
    """Lines of stacks as nodes.

    Attributes:
        at: Positions among the extents, each once for every line that is a node, in the order in which they nest.
        line: For each of these the line.
    """

    at: Rows
    line: list[str]


def lines_of(stack: Sequence[str]) -> Stack:
    """A stack's lines, such as ``/home/me/train.py:123``, without PyProf's own."""
    return tuple(line for line in stack[-_MOST_LINES:] if not _OWN_LINES.search(line))


def short_names(lines: Collection[str]) -> dict[str, str]:
    """The name of each of some lines: ``train.py:123``, with as many folders as tell files of one name apart."""
    parts = {line: tuple(_SEPARATOR.split(line)) for line in lines}
    files: dict[str, set[Stack]] = {}
    for folders in parts.values():
        files.setdefault(_file(folders)[-1], set()).add(_file(folders))
    kept = {name: _told_apart(those) for name, those in files.items()}
    return {line: "/".join(folders[-kept[_file(folders)[-1]] :]) for line, folders in parts.items()}


def _file(folders: Stack) -> Stack:
    """Folders and name of a line's file, without the number of the line."""
    name, colon, _ = folders[-1].rpartition(":")
    return (*folders[:-1], name if colon else folders[-1])


def _told_apart(files: set[Stack]) -> int:
    """How many of the last parts of some paths tell them apart; of very long ones all."""
    kept = range(1, _MOST_FOLDERS + 1)
    return next((number for number in kept if len({path[-number:] for path in files}) == len(files)), 0)


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

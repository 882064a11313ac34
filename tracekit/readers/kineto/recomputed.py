"""Modules that run again for a backward pass, as checkpoints have it: their calls lie inside a node of autograd."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracekit.arrays.intervals import innermost, nesting_order, one_axis, parents
from tracekit.markers.numbered import AGAIN
from tracekit.markers.operators import EVALUATION

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints
    from tracekit.readers.kineto.gathering import Columns


def names_with_phase(calls: Columns, operators: Columns, names: dict[str, int]) -> Ints:
    """Rows of the names of all calls of modules; those of calls that run again say so.

    Args:
        calls: The calls.
        operators: All operators.
        names: Rows of names, to which new ones are added.
    """
    text, name = list(names), calls["name"].copy()
    again = _inside(calls, _nodes(operators, text))
    distinct, which = np.unique(name[again], return_inverse=True)
    texts = [f"{text[row]}{AGAIN}" for row in distinct.tolist()]
    name[again] = np.array([names.setdefault(one, len(names)) for one in texts], dtype=np.int64)[which]
    return name


def _nodes(operators: Columns, names: list[str]) -> Columns:
    """The nodes that autograd's engine ran."""
    evaluates = np.array([name.startswith(EVALUATION) for name in names], dtype=bool)
    rows = np.flatnonzero(evaluates[operators["name"]])
    return {column: operators[column][rows] for column in ("start", "end", "thread")}


def _inside(calls: Columns, nodes: Columns) -> Flags:
    """Which calls lie inside a node of their thread."""
    threads = [nodes["thread"], nodes["thread"], calls["thread"], calls["thread"]]
    times = [nodes["start"], nodes["end"], calls["start"], calls["end"]]
    start, end, first, last = one_axis(threads, times)
    order = nesting_order(start, end)
    start, end = start[order], end[order]
    return np.asarray(innermost(start, end, parents(start, end)[0], first, last) >= 0)

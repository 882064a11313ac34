"""Different modules of one name, told apart.

``with_stack`` numbers the modules of each class, and does not tell classes of one name from each other: every first
module of a class ``Block`` is ``Block_0``. What tells them apart is the ``forward`` that ran, or for modules with
parametrizations, each of which has a class of its own, what computed their first parameter.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from tracekit.arrays.groups import mixed
from tracekit.arrays.intervals import nesting_order, one_axis, parents
from tracekit.markers.numbered import PREFIX
from tracekit.readers.kineto.gathering import CALLED_FORWARD

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.arrays.types import Flags, Ints
    from tracekit.readers.kineto.gathering import Columns

#: Functions of that name that are no module's: those of compilers and autograd.
_OF_TORCH = re.compile(r"(?:^|.*[/\\])torch[/\\](?:_|fx[/\\]|autograd[/\\])")
_PARAMETRIZED, _PARAMETRIZATION = f"{PREFIX}Parametrized", f"{PREFIX}ParametrizationList_"
_MICROSECOND = 1000
_NOTHING, _OF_FUNCTION, _OF_PARAMETER = range(3)


def distinct_names(calls: Columns, functions: Columns, names: dict[str, int]) -> Ints:
    """Rows of the names of all calls of modules; those of different modules differ.

    Args:
        calls: The calls.
        functions: Calls of functions called forward.
        names: Rows of names, to which new ones are added.
    """
    text = list(names)
    sign = _signs(calls, functions, text)
    known = sign >= 0
    several = mixed(calls["name"][known], sign[known], len(text))[calls["name"]] & known
    pairs = np.stack((calls["name"][several], sign[several]), axis=1)
    distinct, which = np.unique(pairs, axis=0, return_inverse=True)
    texts = [f"{text[name]} ({_short(text[by])})" for name, by in distinct.tolist()]
    rows = np.array([names.setdefault(name, len(names)) for name in texts], dtype=np.int64)
    name = calls["name"].copy()
    name[several] = rows[which.reshape(-1)]
    return name


def _signs(calls: Columns, functions: Columns, names: Sequence[str]) -> Ints:
    """For every call the name of the first thing inside that tells its module from others, or -1."""
    kind = np.array([_kind(name) for name in names] + [_NOTHING], dtype=np.int64)
    takes = np.array([name.startswith(_PARAMETRIZED) for name in names] + [False]) + 1
    size = calls["start"].size
    start, end, thread, name = (
        np.concatenate([calls[column], functions[column]]) for column in ("start", "end", "thread", "name")
    )
    if not (start % _MICROSECOND).any():
        # Rounded down, a function may seem to outlast the call that it is in.
        end[:size] += _MICROSECOND
    start, end = one_axis([thread, thread], [start, end])
    order = nesting_order(start, end)
    around = _calls_around(start[order], end[order], order < size)
    sign = np.full(size, -1, dtype=np.int64)
    inner = np.flatnonzero(around >= 0)[::-1]
    outer = order[around[inner]]
    fits = kind[name[order[inner]]] == takes[name[outer]]
    # Of several the first, which is written last.
    sign[outer[fits]] = name[order[inner[fits]]]
    return sign


def _calls_around(start: Ints, end: Ints, is_call: Flags) -> Ints:
    """For every interval the innermost call of a module around it, or -1."""
    around, _ = parents(start, end)
    while (others := (around >= 0) & ~is_call[around]).any():
        around[others] = around[around[others]]
    return around


def _kind(name: str) -> int:
    if name.startswith(_PARAMETRIZATION):
        return _OF_PARAMETER
    return _OF_FUNCTION if name.endswith(CALLED_FORWARD) and not _OF_TORCH.match(name) else _NOTHING


def _short(name: str) -> str:
    """A function without the rest of its name, or a module without its prefix."""
    return name.removesuffix(CALLED_FORWARD).removeprefix(PREFIX).partition(" from ")[0]

"""Calls of modules that a Chrome trace records: the numbered ones of ``with_stack``.

It numbers the modules of each class, and does not distinguish classes of one name: every first module of a class
``Block`` is ``Block_0``. What distinguishes them is the ``forward`` that ran, or for modules with parametrizations,
each of which has a class of its own, what computed their first parameter.
"""

import re
from collections.abc import Sequence

import numpy as np

from tracekit.arrays.groups import mixed
from tracekit.arrays.intervals import innermost, nesting_order, one_axis, parents
from tracekit.arrays.types import Ints
from tracekit.kineto.columns import CALLED_FORWARD, Columns
from tracekit.markers.torch_texts import AGAIN, EVALUATION, PREFIX, shapes_in

#: Functions of that name that are no module's: those of compilers and autograd.
_OF_TORCH = re.compile(r"(?:^|.*[/\\])torch[/\\](?:_|fx[/\\]|autograd[/\\])")
_PARAMETRIZED, _PARAMETRIZATION = f"{PREFIX}Parametrized", f"{PREFIX}ParametrizationList_"
#: Operators that take a weight, and which of their inputs that is.
_WEIGHT_OF = {"aten::linear": 1, "aten::convolution": 1, "aten::embedding": 0, "aten::layer_norm": 2}
_SIZES = re.compile(r", sizes = (\[\[.*?\]\])")
_MICROSECOND = 1000
_NOTHING, _OF_FUNCTION, _OF_PARAMETER = range(3)


def distinct_names(calls: Columns, functions: Columns, names: dict[str, int]) -> Ints:
    """Rows of the names of all calls of modules; those of different modules differ.

    ``functions`` are those called forward; new names are added to ``names``, by row.
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
    """For every call the name of the first thing inside that distinguishes its module from others, or -1."""
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
    is_call = order < size
    around, _ = parents(start[order], end[order])
    while (others := (around >= 0) & ~is_call[around]).any():
        around[others] = around[around[others]]
    sign = np.full(size, -1, dtype=np.int64)
    inner = np.flatnonzero(around >= 0)[::-1]
    outer = order[around[inner]]
    fits = kind[name[order[inner]]] == takes[name[outer]]
    # The first of several, which is written last.
    sign[outer[fits]] = name[order[inner[fits]]]
    return sign


def _kind(name: str) -> int:
    if name.startswith(_PARAMETRIZATION):
        return _OF_PARAMETER
    return _OF_FUNCTION if name.endswith(CALLED_FORWARD) and not _OF_TORCH.match(name) else _NOTHING


def _short(name: str) -> str:
    return name.removesuffix(CALLED_FORWARD).removeprefix(PREFIX).partition(" from ")[0]


def names_with_weights(calls: Columns, operators: Columns, names: dict[str, int], texts: Sequence[str]) -> Ints:
    """Rows of the names of all calls of modules, added to ``names``; that of one that takes one weight shows its shape.

    Numbers do not identify a module: another trace may count them in another order.
    """
    text, name = list(names), calls["name"].copy()
    takes = np.array([one in _WEIGHT_OF for one in text], dtype=bool)[operators["name"]]
    chosen = {column: operators[column][takes] for column in ("start", "end", "thread", "name", "text")}
    around = _innermost_call(calls, chosen)
    inside = around >= 0
    used = np.stack((name[around[inside]], chosen["name"][inside], chosen["text"][inside]), axis=1)
    shapes: dict[int, set[str]] = {}
    for row, operator, of_text in np.unique(used, axis=0).tolist():
        shapes.setdefault(row, set()).add(_weight_shape(texts[of_text], _WEIGHT_OF[text[operator]]))
    for row, (shape, *others) in shapes.items():
        if shape and not others:
            name[name == row] = names.setdefault(f"{text[row]} weight {shape}", len(names))
    return name


def _weight_shape(text: str, at: int) -> str:
    sizes = _SIZES.search(text)
    shapes = (shapes_in(sizes[1]) if sizes else None) or ()
    shape = shapes[at] if at < len(shapes) else ()
    return str(list(shape)) if shape and None not in shape else ""


def names_with_phase(calls: Columns, operators: Columns, names: dict[str, int]) -> Ints:
    """Rows of the names of all calls of modules, added to ``names``; names of recomputed calls are marked."""
    text, name = list(names), calls["name"].copy()
    evaluates = np.array([one.startswith(EVALUATION) for one in text], dtype=bool)[operators["name"]]
    nodes = {column: operators[column][evaluates] for column in ("start", "end", "thread")}
    again = _innermost_call(nodes, calls) >= 0
    distinct, which = np.unique(name[again], return_inverse=True)
    texts = [f"{text[row]}{AGAIN}" for row in distinct.tolist()]
    name[again] = np.array([names.setdefault(one, len(names)) for one in texts], dtype=np.int64)[which]
    return name


def _innermost_call(calls: Columns, inner: Columns) -> Ints:
    threads = [calls["thread"], calls["thread"], inner["thread"], inner["thread"]]
    times = [calls["start"], calls["end"], inner["start"], inner["end"]]
    start, end, first, last = one_axis(threads, times)
    order = nesting_order(start, end)
    start, end = start[order], end[order]
    return np.append(order, -1)[innermost(start, end, parents(start, end)[0], first, last)]

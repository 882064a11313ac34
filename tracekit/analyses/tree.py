"""Where did the time go? The hierarchy of modules (or ranges), with layers that are alike folded into one line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tracekit.analyses import modules as modules_by_time
from tracekit.analyses.base import Columns, taken
from tracekit.analyses.phase_times import COLUMNS
from tracekit.analyses.spread import spread
from tracekit.analyses.subtrees import Hierarchy, hierarchy, is_numbered, series
from tracekit.arrays.types import Floats, Rows
from tracekit.dataset.opening import Dataset
from tracekit.errors import UsageError
from tracekit.markers.base import RANGE

NAME = "tree"
ANSWER = ("path", "share", "subtree_ns", "self_ns", "calls")
#: Keywords of :func:`frame` that the command line passes on.
OPTIONS = ("sort",)

_SUMMED = ("calls", "kernels", "self_ns", "subtree_ns", *COLUMNS, "share", "host_ns", "subtree_host_ns")
#: What siblings can be sorted by, other than their order in the model.
SORTED_BY = (
    *("subtree_ns", "self_ns", *COLUMNS, "share", "calls", "kernels", "median_ns", "spread", "min_ns", "max_ns"),
    *("host_ns", "subtree_host_ns", "label"),
)


class _Line(NamedTuple):
    """Modules that share a line, in pre-order; the first of them is shown. See :func:`frame`."""

    rows: list[int]
    depth: int
    copies: int
    label: str
    pattern: str


def frame(dataset: Dataset, *, sort: str | None = None) -> pd.DataFrame:
    """The hierarchy in pre-order. Numbered siblings that are alike inside share a line, also where series alternate.

    Args:
        dataset: The dataset, or a subtree of one.
        sort: One of :data:`SORTED_BY`: siblings are sorted by it, the largest first (labels from A), each followed by
            what is below it.

    Returns:
        A row per line: ``label``, ``path`` (of the first module), ``pattern`` (the path with folded numbers:
        ``top.layers.0…31.mlp``), ``class_name``, ``kind`` (``module``; or ``range``, ``operator`` or ``region`` where
        the hierarchy holds these), ``depth``, ``copies`` (how many siblings were folded) and ``modules``
        (how many modules share the line, those below folded parents included). Summed over these modules: ``calls``,
        ``kernels``, ``self_ns``, ``subtree_ns``, that by phase (``forward_ns``, ``backward_ns``, ``recompute_ns``,
        ``optimizer_ns`` and ``other_ns``, in any other phase or an unknown one, add up to it) and ``share`` (of all
        GPU time, attributed or not), ``host_ns`` and ``subtree_host_ns`` (on the host). Over the single modules, each
        with all below it: ``median_ns``, ``min_ns`` and ``max_ns``.

    Raises:
        UsageError: If siblings cannot be sorted by that.
    """
    # Texts stay objects.
    found = columns(dataset, sort=sort)
    return pd.DataFrame({name: pd.array(values, dtype=values.dtype) for name, values in found.items()})


def columns(dataset: Dataset, *, sort: str | None = None) -> Columns:
    """The columns of :func:`frame`, made without pandas."""
    if sort not in (None, *SORTED_BY):
        raise UsageError(f"{NAME} cannot be sorted by {sort}; use one of {', '.join(SORTED_BY)}")
    modules = hierarchy(dataset)
    lines = list(_Folding(modules).lines())
    times = modules_by_time.gathered(dataset, modules).columns()
    answer = {**_names(lines, modules), **_figures(lines, times)}
    return answer if sort is None else _siblings_by(answer, sort)


def _names(lines: list[_Line], modules: Hierarchy) -> Columns:
    first = [line.rows[0] for line in lines]
    texts: dict[str, list[Any]] = {
        "label": [line.label for line in lines],
        "path": [modules.path[row] for row in first],
        "pattern": [line.pattern for line in lines],
        "class_name": [modules.class_name[row] for row in first],
        "kind": [modules.kind[row] for row in first],
    }
    numbers = {
        "depth": [line.depth for line in lines],
        "copies": [line.copies for line in lines],
        "modules": [len(line.rows) for line in lines],
    }
    return {
        **{name: np.array(values, dtype=object) for name, values in texts.items()},
        **{name: np.array(values, dtype=np.int64) for name, values in numbers.items()},
    }


def _figures(lines: list[_Line], times: Columns) -> Columns:
    size = np.array([len(line.rows) for line in lines], dtype=np.int64)
    rows = np.array([row for line in lines for row in line.rows], dtype=np.int64)
    line = np.repeat(np.arange(size.size), size)
    each = spread(line, np.asarray(times["subtree_ns"])[rows], size.size)
    totals = {
        name: np.add.reduceat(np.asarray(times[name])[rows], each.start) if lines else np.empty(0) for name in _SUMMED
    }
    return {
        **totals,
        "median_ns": each.quantile(0.5),
        "min_ns": each.value[each.start],
        "max_ns": each.value[each.start + each.size - 1],
    }


def largest(lines: Columns | pd.DataFrame, count: int) -> Rows:
    """The rows of the lines of the most time, in their order; the line above a kept one is kept, too."""
    return np.sort(modules_by_time.by_time(lines)[:count])


def spread_of(lines: Columns | pd.DataFrame) -> Floats:
    """How much the modules of each line differ: largest minus smallest, divided by the median; NaN if that is 0."""
    most, least, median = (np.asarray(lines[name]) for name in ("max_ns", "min_ns", "median_ns"))
    spread: Floats = (most - least) / np.where(median > 0, median, np.nan)
    return spread


def members(modules: Hierarchy) -> list[list[int]]:
    """The rows of the modules on each line of :func:`frame`, in its order."""
    return [line.rows for line in _Folding(modules).lines()]


def _siblings_by(lines: Columns, sort: str) -> Columns:
    key, depth = _sort_key(lines, sort), lines["depth"].tolist()
    parents: list[int] = []
    children: list[list[int]] = [[] for _ in range(len(depth) + 1)]
    for row, level in enumerate(depth):
        del parents[level:]
        children[parents[-1] if parents else -1].append(row)
        parents.append(row)
    order: list[int] = []
    ahead = [-1]
    while ahead:
        order.append(row := ahead.pop())
        # The first of equals stays the first.
        ahead += sorted(children[row], key=key.__getitem__, reverse=True)[::-1]
    return taken(lines, np.array(order[1:], np.int64))


def _sort_key(lines: Columns, sort: str) -> list[float]:
    if sort == "label":
        rank = {label: -float(at) for at, label in enumerate(sorted(set(lines[sort])))}
        return [rank[label] for label in lines[sort]]
    by = spread_of(lines) if sort == "spread" else lines[sort]
    return [float(value) for value in np.where(np.isnan(by), -1, by)]


_DIGITS = re.compile(r"\d+")
#: How many kinds of layers may alternate: attention in each eighth layer.
_MOST_KINDS = 8


class _Folding:
    """Folds siblings that are alike: of one series and class, with the same names and classes below.

    Numbers of names below may change as those of the siblings do: ``layers.3.mlp`` in ``layers.3``.
    """

    def __init__(self, modules: Hierarchy) -> None:
        self._names, self._series = modules.name, series(modules)
        self._size = (modules.end - np.arange(modules.end.size)).tolist()
        parents = modules.parent.tolist()
        self._children: list[list[int]] = [[] for _ in range(len(parents) + 1)]
        for row, parent in enumerate(parents):
            self._children[parent].append(row)
        kinds: dict[tuple[object, ...], int] = {}
        self._kind = [0] * len(parents)
        self._numbers: list[list[int]] = [[] for _ in parents]
        for row in reversed(range(len(parents))):
            name = self._names[row]
            if is_numbered(modules, row):
                name = ""
            elif modules.kind[row] == RANGE or self._series[row] is not None:
                self._numbers[row] = [int(number) for number in _DIGITS.findall(name)]
                name = _DIGITS.sub("*", name)
            below = tuple(self._kind[child] for child in self._children[row])
            kind = modules.kind[row], modules.class_name[row], name, below
            self._kind[row] = kinds.setdefault(kind, len(kinds))

    def lines(self) -> Iterator[_Line]:
        """The lines, in pre-order."""
        ahead = self._folded([[row] for row in self._children[-1]], 0, "")[::-1]
        while ahead:
            line = ahead.pop()
            yield line
            below = [self._children[row] for row in line.rows]
            siblings = [[children[at] for children in below] for at in range(len(below[0]))]
            ahead += self._folded(siblings, line.depth + 1, f"{line.pattern}.")[::-1]

    def _folded(self, siblings: list[list[int]], depth: int, above: str) -> list[_Line]:
        members: list[list[list[int]]] = []
        #: The siblings of each series since one that is in none: series may alternate.
        by_series: dict[str, list[list[int]]] = {}
        for rows in [*siblings, None]:
            name = None if rows is None else self._series[rows[0]]
            if rows is not None and name is not None:
                by_series.setdefault(name, []).append(rows)
                continue
            lines = [line for alike in by_series.values() for line in self._runs(alike)]
            members += [*sorted(lines), *([] if rows is None else [[rows]])]
            by_series.clear()
        return [self._line(copies, depth, above) for copies in members]

    def _runs(self, siblings: list[list[int]]) -> Iterator[list[list[int]]]:
        """The lines of a series: neighbours that are alike, or kinds that alternate."""
        start = 0
        while start < len(siblings):
            period, end = self._period(siblings, start)
            lines: list[list[list[int]]] = []
            for at in range(start, min(start + period, end)):
                alike = next((line for line in lines if self._alike(line[0][0], siblings[at][0])), None)
                lines += [[]] if alike is None else []
                (lines[-1] if alike is None else alike).extend(siblings[at:end:period])
            yield from map(sorted, lines)
            start = end

    def _period(self, siblings: list[list[int]], start: int) -> tuple[int, int]:
        """After how many siblings kinds repeat, so that most of them do, and where that ends."""
        period, end = 1, start
        for longer in range(1, _MOST_KINDS + 1):
            at = start + longer
            while at < len(siblings) and self._alike(siblings[at - longer][0], siblings[at][0]):
                at += 1
            if at > end and (longer == 1 or at - start >= 2 * longer):
                period, end = longer, at
        return period, end

    def _line(self, copies: list[list[int]], depth: int, above: str) -> _Line:
        rows = [row for copy in copies for row in copy]
        first, last = self._names[rows[0]], self._names[rows[-1]]
        label, pattern = (first, first) if first == last else (f"{first} … {last}", f"{first}…{last}")
        return _Line(rows, depth, len(copies), label, f"{above}{pattern}")

    def _alike(self, first: int, second: int) -> bool:
        if self._kind[first] != self._kind[second]:
            return False
        numbers, others = (
            [n for own in self._numbers[row : row + self._size[row]] for n in own] for row in (first, second)
        )
        changes = {number - other for number, other in zip(numbers, others, strict=True)}
        return len(changes - {0}) <= 1

"""Where did the time go? The hierarchy of modules (or ranges), with layers that are alike folded into one line."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tracekit.aggregates.phase_times import COLUMNS
from tracekit.aggregates.spread import spread
from tracekit.aggregates.subtrees import Folding, Hierarchy, Line, folded as folded, hierarchy
from tracekit.answers import modules as modules_by_time
from tracekit.arrays.columns import selected
from tracekit.arrays.types import Columns, Floats, Ints, Rows
from tracekit.dataset.opening import Dataset
from tracekit.errors import UsageError

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
    lines = _lines(dataset, modules)
    times = modules_by_time.gathered(dataset, modules).columns()
    first = [line.rows[0] for line in lines]
    rows = np.array([row for line in lines for row in line.rows], dtype=np.int64)
    size = np.array([len(line.rows) for line in lines], dtype=np.int64)
    each = spread(np.repeat(np.arange(size.size), size), times["subtree_ns"][rows], size.size)
    answer = {
        "label": np.array([line.label for line in lines], object),
        "path": np.array([modules.path[row] for row in first], object),
        "pattern": np.array([line.pattern for line in lines], object),
        "class_name": np.array([modules.class_name[row] for row in first], object),
        "kind": np.array([modules.kind[row] for row in first], object),
        "depth": np.array([line.depth for line in lines], np.int64),
        "copies": np.array([line.copies for line in lines], np.int64),
        "modules": size,
        **{name: np.add.reduceat(times[name][rows], each.start) if lines else np.empty(0) for name in _SUMMED},
        "median_ns": each.quantile(0.5),
        "min_ns": each.least(),
        "max_ns": each.greatest(),
    }
    return answer if sort is None else _siblings_by(answer, sort)


def largest(lines: Columns | pd.DataFrame, count: int) -> Rows:
    """The rows of the lines of the most time, in their order; the line above a kept one is kept, too."""
    return np.sort(modules_by_time.by_time(lines)[:count])


def spread_of(lines: Columns | pd.DataFrame) -> Floats:
    """How much the modules of each line differ: largest minus smallest, divided by the median; NaN if that is 0."""
    most, least, median = (np.asarray(lines[name]) for name in ("max_ns", "min_ns", "median_ns"))
    spread: Floats = (most - least) / np.where(median > 0, median, np.nan)
    return spread


def members(dataset: Dataset, modules: Hierarchy) -> list[list[int]]:
    """The rows of the modules on each line of :func:`frame`, in its order."""
    return [line.rows for line in _lines(dataset, modules)]


def _lines(dataset: Dataset, modules: Hierarchy) -> list[Line]:
    """The lines of a dataset; those of subtrees are folded as in the whole tree."""
    if dataset.root is None:
        return [*Folding(modules).lines()]
    whole = hierarchy(dataset.whole)
    tops = whole.rows_of(modules.ids[modules.parent < 0]).tolist()
    rows = modules.rows_of(whole.ids).tolist()
    return [line._replace(rows=[rows[row] for row in line.rows]) for line in Folding(whole).lines(tops)]


def parents_of(depth: Ints) -> list[int]:
    """The row above each line, -1 for none, by their depths in pre-order."""
    parents: list[int] = []
    above: list[int] = []
    for row, level in enumerate(depth.tolist()):
        del above[level:]
        parents.append(above[-1] if above else -1)
        above.append(row)
    return parents


def _siblings_by(lines: Columns, sort: str) -> Columns:
    if sort == "label":
        rank = {label: -float(at) for at, label in enumerate(sorted(set(lines[sort])))}
        key = [rank[label] for label in lines[sort]]
    else:
        by = spread_of(lines) if sort == "spread" else lines[sort]
        key = np.where(np.isnan(by), -1.0, by).tolist()
    parents = parents_of(lines["depth"])
    children: list[list[int]] = [[] for _ in range(len(parents) + 1)]
    for row, parent in enumerate(parents):
        children[parent].append(row)
    order: list[int] = []
    ahead = [-1]
    while ahead:
        order.append(row := ahead.pop())
        # The first of equals stays the first.
        ahead += sorted(children[row], key=key.__getitem__, reverse=True)[::-1]
    return selected(lines, np.array(order[1:], np.int64))

"""The hierarchy on the page: single modules, and the lines of the tree in which alike ones are folded.

Both are columns in pre-order. Those of the least time are left out of a large hierarchy, and what they took is counted
at what is above them, so that the inclusive time of a node is its own, that of the nodes below and ``left_out_ns``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tracekit.analyses import (
    classes as modules_by_class,
    modules as modules_by_time,
    tree as module_tree,
)
from tracekit.analyses.subtrees import summed
from tracekit.views.page import limits
from tracekit.views.page.limits import clipped
from tracekit.views.wording import records

if TYPE_CHECKING:
    import pandas as pd

    from tracekit.analyses.subtrees import Hierarchy
    from tracekit.arrays.types import Ints, Rows
    from tracekit.dataset.opening import Dataset

#: Sums of subtrees, which lines add up over their modules.
_LAUNCHES = {
    "launches": "inclusive_launches",
    "launch_ns": "inclusive_launch_ns",
    "blocked_ns": "inclusive_blocked_ns",
    "launched_ns": "inclusive_gpu_time_ns",
    "launch_bound_ns": "inclusive_launch_bound_ns",
    "waiting_ns": "inclusive_waiting_ns",
}
_SUMS = ("calls", "kernels", "self_ns", "inclusive_ns")
_SINGLE = ("busy_ns", "steps", "step_mean_ns", "step_median_ns", "step_p95_ns")


class Kept(NamedTuple):
    """Which nodes of a forest in pre-order are on the page.

    Attributes:
        rows: Their rows, in pre-order.
        place: For every row of the forest the place among them of itself, or else of the nearest that is above it;
            -1 where there is none.
        parent: For each of them the place of the one above, or -1.
    """

    rows: Rows
    place: Rows
    parent: Rows


class Nodes(NamedTuple):
    """What is on the page, and where every module of the hierarchy is found there.

    Attributes:
        data: Two lists of nodes, ``modules`` and ``lines``, and the ``types`` of layers, as plain data.
        module: The place of every module among the modules on the page, or of one above it; -1 where there is none.
        line: Its place among the lines, likewise.
        rows: The modules that are on the page.
    """

    data: dict[str, Any]
    module: Rows
    line: Rows
    rows: Rows


def kept(parent: Rows, inclusive: Ints, most: int) -> Kept:
    """The nodes of the most time; a node that is kept has all those above it kept."""
    # Of equals the first comes first, which in pre-order is the one above.
    rows = np.sort(np.argsort(-inclusive, kind="stable")[:most])
    place = np.full(inclusive.size, -1, dtype=np.int64)
    place[rows] = np.arange(rows.size)
    found = place.tolist()
    for row, above in enumerate(parent.tolist()):
        if found[row] < 0 <= above:
            found[row] = found[above]
    place = np.array(found, dtype=np.int64)
    above = parent[rows]
    return Kept(rows, place, np.where(above >= 0, place[above], -1))


def nodes(dataset: Dataset, modules: Hierarchy, launched: pd.DataFrame) -> Nodes:
    """Modules and lines with their figures.

    Args:
        dataset: The dataset.
        modules: Its hierarchy.
        launched: What the analysis ``launches`` answers.
    """
    of_modules = _in_order(modules_by_time.frame(dataset), modules)
    host = _in_order(launched, modules)[list(_LAUNCHES.values())]
    figures = of_modules.assign(**{name: host[source] for name, source in _LAUNCHES.items()})
    types, type_ = _types(dataset, modules)
    single = kept(modules.parent, _ints(figures, "inclusive_ns"), limits.MODULES)
    lines, members = module_tree.frame(dataset), module_tree.members(modules)
    line_parent = _parents(lines["depth"].tolist())
    folded = kept(line_parent, _ints(lines, "inclusive_ns"), limits.MODULES)
    line = np.empty(len(modules.path), dtype=np.int64)
    for at, rows in enumerate(members):
        line[rows] = at
    of_lines = _of_lines(lines, members, line, figures)
    first = np.array([rows[0] for rows in members], dtype=np.int64)
    own_line = folded.place[line] if line.size else line
    data = {
        "types": types,
        "modules": _columns(figures, single, (modules.name, type_)) | {"line": own_line[single.rows].tolist()},
        "lines": _columns(of_lines, folded, (list(lines["label"]), type_[first] if first.size else first)),
    }
    return Nodes(data, single.place, own_line, single.rows)


def _types(dataset: Dataset, modules: Hierarchy) -> tuple[list[dict[str, Any]], Rows]:
    """Types of layers, the most own time first, and the place of each module's among them, -1 for one left out."""
    named, code = modules_by_class.types(modules)
    found = modules_by_class.frame(dataset).head(limits.TYPES)
    rows = records(found)
    order = {(row["class_name"], row["name"]): at for at, row in enumerate(rows)}
    place = np.array([order.get(key, -1) for key in named], dtype=np.int64)
    for row in rows:
        for name in ("class_name", "name"):
            row[name] = None if row[name] is None else clipped(row[name])
    return rows, place[code] if code.size else code


def _in_order(frame: pd.DataFrame, modules: Hierarchy) -> pd.DataFrame:
    """The rows of modules, in pre-order; a row of no module is left out."""
    # pandas would look up long paths in an array as wide as the longest of them.
    row = {path: at for at, path in enumerate(frame["path"])}
    return frame.iloc[[row[path] for path in modules.path]].reset_index(drop=True)


def _parents(depth: list[int]) -> Rows:
    """The row above each row of a forest in pre-order, or -1."""
    found: list[int] = []
    above: list[int] = []
    for row, level in enumerate(depth):
        del above[level:]
        found.append(above[-1] if above else -1)
        above.append(row)
    return np.array(found, dtype=np.int64)


def _of_lines(lines: pd.DataFrame, members: list[list[int]], line: Rows, figures: pd.DataFrame) -> pd.DataFrame:
    """Lines with what can be added up over their modules; what cannot is that of a module alone, or missing."""
    first = [rows[0] for rows in members]
    alone = lines["modules"].to_numpy() == 1
    sums = {name: summed(line, _ints(figures, name), len(lines)) for name in _LAUNCHES}
    single = {name: figures[name].iloc[first].reset_index(drop=True).where(alone) for name in _SINGLE}
    return lines.assign(**sums, **single)


def _columns(figures: pd.DataFrame, chosen: Kept, said: tuple[list[str], Ints]) -> dict[str, list[Any]]:
    """The figures of the nodes that are kept."""
    names, types = said
    found = figures.iloc[chosen.rows]
    numbers = [*_SUMS, *_LAUNCHES, *_SINGLE]
    folds = ["copies", "modules", "median_ns", "min_ns", "max_ns"]
    shown = found[[*numbers, *(name for name in folds if name in found)]]
    values = shown.astype(object).where(shown.notna(), None)
    return {
        "name": [clipped(names[row]) for row in chosen.rows.tolist()],
        "parent": chosen.parent.tolist(),
        "type": types[chosen.rows].tolist(),
        **{str(name): values[name].tolist() for name in values},
        **_left_out(chosen, _ints(figures, "inclusive_ns"), _ints(figures, "self_ns")),
    }


def _left_out(chosen: Kept, inclusive: Ints, own: Ints) -> dict[str, list[int]]:
    """How many nodes below each are not on the page, but for those below another one, and their time."""
    count = chosen.rows.size
    gone = np.ones(inclusive.size, dtype=bool)
    gone[chosen.rows] = False
    below = np.where(chosen.parent >= 0, inclusive[chosen.rows], 0)
    rest = inclusive[chosen.rows] - own[chosen.rows] - summed(chosen.parent, below, count)
    return {
        "left_out": summed(np.where(gone, chosen.place, -1), None, count).tolist(),
        "left_out_ns": rest.tolist(),
    }


def _ints(frame: pd.DataFrame, name: str) -> Ints:
    return np.asarray(frame[name], np.int64)

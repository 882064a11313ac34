"""The hierarchy on the page: single modules, and the lines of the tree, in which equal layers are folded.

Both are columns in pre-order. In a large hierarchy, the nodes with the least time are omitted and counted at their
parent, so that the time of a node's subtree is its own time, that of its children and ``left_out_ns``. Without
backward, recomputation or optimizer there was no training, and the page shows nothing about phases.
"""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tracekit.aggregates.phase_times import PHASES, TRAINING, outside, phase_times
from tracekit.aggregates.subtrees import Hierarchy
from tracekit.answers import classes as modules_by_class, modules as modules_by_time, tree as module_tree
from tracekit.arrays.codes import positions
from tracekit.arrays.groups import counts, sums
from tracekit.arrays.types import Ints, Rows
from tracekit.dataset.opening import Dataset
from tracekit.views.formatting import lists_of, records
from tracekit.views.page import limits
from tracekit.views.page.limits import clipped

#: Sums over subtrees, which a line adds up over its modules.
_LAUNCHES = {
    "launches": "subtree_launches",
    "launch_ns": "subtree_launch_ns",
    "blocked_ns": "subtree_blocked_ns",
    "launched_ns": "subtree_gpu_time_ns",
    "launch_bound_ns": "subtree_launch_bound_ns",
    "waiting_ns": "subtree_waiting_ns",
}
_SUMS = ("calls", "kernels", "self_ns", "subtree_ns")
#: Known of lines only.
_OF_LINES = ("copies", "modules", "median_ns", "min_ns", "max_ns")
#: Times by phase, of which a line's are sums: own time, and with all modules below.
_BY_PHASE = {f"self_{name}_ns": f"{name}_ns" for name in PHASES}
#: Known of a single module only: these cannot be added up.
_SINGLE = ("busy_ns", "steps", "step_mean_ns", "step_median_ns", "step_p95_ns")


class Kept(NamedTuple):
    """The rows of a forest that are on the page, in pre-order, and for each the index of its parent there, or -1.

    ``place`` is, for each row of the forest, the index on the page of the node or of its nearest ancestor there, or -1.
    """

    rows: Rows
    place: Rows
    parent: Rows


class Nodes(NamedTuple):
    """The nodes on the page: lists of ``modules`` and ``lines``, and the ``types`` of layers, as plain data.

    For each module of the hierarchy, the indexes of itself, or its nearest ancestor there, among the modules and the
    lines, or -1; ``rows`` are the modules that are on the page.
    """

    data: dict[str, Any]
    module: Rows
    line: Rows
    rows: Rows


def kept(parent: Rows, subtree_ns: Ints, most: int) -> Kept:
    """The nodes with the most time, each with all its ancestors."""
    # If times are equal, the first row comes first: in pre-order, the ancestor.
    rows = np.sort(np.argsort(-subtree_ns, kind="stable")[:most])
    places = positions(np.arange(subtree_ns.size), rows).tolist()
    for row, above in enumerate(parent.tolist()):
        if places[row] < 0 <= above:
            places[row] = places[above]
    place = np.array(places, dtype=np.int64)
    parents = parent[rows]
    return Kept(rows, place, np.where(parents >= 0, place[parents], -1))


def nodes(dataset: Dataset, modules: Hierarchy, launched: pd.DataFrame, by_phase: dict[str, Ints]) -> Nodes:
    """Modules and lines with their figures; ``launched`` answers ``launches``, ``by_phase`` is own time in training."""
    host = _in_order(launched, modules)
    figures = _in_order(modules_by_time.frame(dataset), modules)
    figures = figures.assign(**{name: host[source] for name, source in _LAUNCHES.items()}, **by_phase)
    types, type_of = _types(dataset, modules, by_phase)
    on_page = kept(modules.parent, _ints(figures, "subtree_ns"), limits.MODULES)
    lines, line_of = _lines(dataset, modules, figures, type_of)
    data = {
        "types": types,
        "modules": _columns(figures, on_page, modules.name, type_of) | {"line": line_of[on_page.rows].tolist()},
        "lines": lines,
    }
    return Nodes(data, on_page.place, line_of, on_page.rows)


def _lines(
    dataset: Dataset, modules: Hierarchy, figures: pd.DataFrame, type_of: Rows
) -> tuple[dict[str, list[Any]], Rows]:
    lines, members = module_tree.frame(dataset), module_tree.members(dataset, modules)
    parents = np.array(module_tree.parents_of(_ints(lines, "depth")), np.int64)
    on_page = kept(parents, _ints(lines, "subtree_ns"), limits.MODULES)
    line_of = np.empty(len(modules.path), dtype=np.int64)
    for line, rows in enumerate(members):
        line_of[rows] = line
    first = np.array([rows[0] for rows in members], dtype=np.int64)
    # What has no sum is known only for lines of a single module.
    alone = lines["modules"].to_numpy() == 1
    summed = [*_LAUNCHES, *(name for name in _BY_PHASE if name in figures)]
    added = {name: sums(line_of, _ints(figures, name), len(lines)) for name in summed}
    single = {name: figures[name].iloc[first].reset_index(drop=True).where(alone) for name in _SINGLE}
    types = type_of[first] if first.size else first
    columns = _columns(lines.assign(**added, **single), on_page, list(lines["label"]), types)
    return columns, on_page.place[line_of] if line_of.size else line_of


def _types(dataset: Dataset, modules: Hierarchy, by_phase: dict[str, Ints]) -> tuple[list[dict[str, Any]], Rows]:
    keys, code = modules_by_class.layer_types(modules)
    rows = records(modules_by_class.frame(dataset).head(limits.TYPES))
    index = {(row["class_name"], row["name"]): at for at, row in enumerate(rows)}
    place = np.array([index.get(key, -1) for key in keys], dtype=np.int64)
    type_of = place[code] if code.size else code
    own = {name: sums(type_of, time, len(rows)).tolist() for name, time in by_phase.items()}
    for at, row in enumerate(rows):
        for name in ("class_name", "name"):
            row[name] = None if row[name] is None else clipped(row[name])
        row |= {name: times[at] for name, times in own.items()}
    return rows, type_of


def _in_order(frame: pd.DataFrame, modules: Hierarchy) -> pd.DataFrame:
    # A dict, since pandas looks up strings in an array as wide as the longest of them.
    row = {path: at for at, path in enumerate(frame["path"])}
    return frame.iloc[[row[path] for path in modules.path]].reset_index(drop=True)


def _columns(figures: pd.DataFrame, on_page: Kept, names: list[str], types: Ints) -> dict[str, list[Any]]:
    phases = [name for times in _BY_PHASE.items() if times[0] in figures for name in times]
    columns = [*_SUMS, *_LAUNCHES, *_SINGLE, *phases, *(name for name in _OF_LINES if name in figures)]
    shown = figures[columns].iloc[on_page.rows]
    subtree_ns, count = _ints(shown, "subtree_ns"), on_page.rows.size
    below = np.where(on_page.parent >= 0, subtree_ns, 0)
    rest = subtree_ns - _ints(shown, "self_ns") - sums(on_page.parent, below, count)
    return {
        "name": [clipped(names[row]) for row in on_page.rows.tolist()],
        "parent": on_page.parent.tolist(),
        "type": types[on_page.rows].tolist(),
        **lists_of(shown),
        "left_out": (counts(on_page.place, count) - 1).tolist(),
        "left_out_ns": rest.tolist(),
    }


def _ints(frame: pd.DataFrame, name: str) -> Ints:
    return np.asarray(frame[name], np.int64)


class Phases(NamedTuple):
    """The phases in which time was spent, if there was training: their names, what the page shows of them, own time.

    The own time of modules is in pre-order, by phase: ``self_forward_ns`` and so on.
    """

    names: list[str]
    data: dict[str, Any]
    own: dict[str, Ints]


def phases(dataset: Dataset) -> Phases:
    """The phases of a dataset and what was spent in them."""
    own = phase_times(dataset)
    causes = outside(dataset)
    total = {name: int(own[name].sum()) + int(causes[name].sum()) for name in own}
    if not any(total[name] for name in TRAINING):
        return Phases([], {"names": [], "total_ns": [], "causes": []}, {})
    names = [name for name in PHASES if total[f"{name}_ns"]]
    rows = records({name: causes[name] for name in ("cause", *(f"{name}_ns" for name in names))})
    data = {
        "names": names,
        "total_ns": [total[f"{name}_ns"] for name in names],
        "causes": [{**row, "cause": clipped(row["cause"])} for row in rows],
    }
    return Phases(names, data, {f"self_{name}_ns": own[f"{name}_ns"] for name in names})

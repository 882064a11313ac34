"""What changed since another dataset: whole steps, modules, layers side by side, and the budget of before."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any

from tracekit.aggregates.subtrees import hierarchy
from tracekit.comparison.comparable import names_of
from tracekit.comparison.difference import compare_with_several, part_of
from tracekit.dataset.opening import Dataset
from tracekit.dataset.patterns import literals
from tracekit.views.budget import budgets_of
from tracekit.views.difference import by_module, by_own_change, changed_parts, kernels_of, whole_steps
from tracekit.views.formatting import records
from tracekit.views.page import limits
from tracekit.views.page.limits import clipped
from tracekit.views.page.nodes import Nodes
from tracekit.views.page.overview import budget, title

_KERNELS = 8
_FIGURES = ("before_ns", "after_ns", "change_ns", "before_kernels", "after_kernels")
_CHANGED = ("slower", "faster", "added", "gone")


def changes(before: Sequence[Dataset], after: Dataset, nodes: Nodes) -> dict[str, Any]:
    """Whole steps, and the modules that changed, equal changes in one line, the largest own change first.

    Returns:
        Also ``modules``, for those on the page ``before_ns`` (null if not compared) and ``change_ns`` (0 if it is no
        more than chance) per step; ``layers``, the same for series of modules that changed; ``budget``, of the first.
    """
    difference = part_of(compare_with_several(before, after.whole), after.root, 0.0)
    rows = records(difference.rows)
    changed = changed_parts(rows)
    lines = by_own_change(changed, difference.patterns)
    kernels = by_module(difference)
    of_whole = names_of(before[0], after.whole, strip_root=False)[0][1]
    names = [of_whole[row] for row in hierarchy(after.whole).rows_of(hierarchy(after).ids)]
    return {
        "before": titles(before),
        "after": title(after),
        "notes": [clipped(note, limits.TEXT) for note in difference.notes],
        "tally": dict(Counter(row["status"] for row in changed)),
        "same": sum(row["what"] != "step" and row["status"] == "same" for row in rows),
        "steps": [_line({**row, "copies": [row]}, []) for row in whole_steps(rows)[: limits.ROWS]],
        "lines": [_line(line, kernels_of(line, kernels)) for line in lines[: limits.ROWS]],
        "left_out": max(len(lines) - limits.ROWS, 0),
        "modules": _of_modules(rows, names, nodes),
        "layers": _of_layers(rows, difference.patterns),
        "budget": budget(before[0], budgets_of(before[0])),
    }


def titles(datasets: Sequence[Dataset]) -> str:
    """The names of several datasets."""
    return clipped(", ".join(map(title, datasets)))


def _of_modules(rows: list[dict[str, Any]], names: list[str], nodes: Nodes) -> dict[str, list[float | None]]:
    """The times of modules of before and how they changed, inputs of all shapes together."""
    place = {names[row]: at for at, row in enumerate(nodes.rows.tolist())}
    before: list[float | None] = [None] * nodes.rows.size
    change: list[float | None] = [0] * nodes.rows.size
    for row in rows:
        at = place.get(row["path"])
        if row["what"] == "module" and at is not None:
            before[at] = (before[at] or 0) + (row["before_ns"] or 0)
            change[at] = (change[at] or 0) + (row["change_ns"] if row["status"] in _CHANGED else 0)
    return {"before_ns": before, "change_ns": change}


def _of_layers(rows: list[dict[str, Any]], patterns: dict[str, str]) -> dict[str, Any]:
    """Series of modules with the largest changes: what each of the series changed by."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        pattern = patterns.get(row["path"], "")
        parts = literals(pattern)
        if row["what"] != "module" or len(parts) != 2:  # noqa: PLR2004 - around one number
            continue
        begin, end = map(len, parts)
        number = row["path"][begin : len(row["path"]) - end]
        times = found.setdefault(pattern, {}).setdefault(number, [0, 0])
        times[0] += row["before_ns"] or 0
        times[1] += row["change_ns"] if row["status"] in _CHANGED else 0
    changed = {pattern: sum(abs(change) for _, change in layers.values()) for pattern, layers in found.items()}
    shown = [name for name in sorted(found, key=lambda name: -changed[name]) if changed[name]]
    layers = {name: found[name] for name in shown[: limits.LAYER_ROWS]}
    numbers = sorted({*chain(*layers.values())}, key=lambda number: (len(number), number))[: limits.LAYERS]
    rows = [{"path": clipped(name, limits.TEXT), "layers": [*map(own.get, numbers)]} for name, own in layers.items()]
    return {"names": [*map(clipped, numbers)], "rows": rows}


def _line(line: dict[str, Any], kernels: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        **{name: line[name] for name in _FIGURES},
        "path": clipped(line["path"], limits.TEXT),
        "shapes": line["shapes"] and clipped(line["shapes"], limits.TEXT),
        "status": line["status"],
        "copies": len(line["copies"]),
        "own_change_ns": line["own_change_ns"],
        "kernels": [
            {**{name: kernel[name] for name in _FIGURES}, "name": clipped(kernel["name"])}
            for kernel in kernels[:_KERNELS]
        ],
        "kernels_left_out": max(len(kernels) - _KERNELS, 0),
    }

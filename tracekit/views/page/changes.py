"""What changed between two datasets, on the page of the later one."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from tracekit.analyses.difference import Options, compare
from tracekit.views.difference import by_module, by_own_change, changed_parts, kernels_of, whole_steps
from tracekit.views.page import limits
from tracekit.views.page.about import title
from tracekit.views.page.limits import clipped
from tracekit.views.wording import records

if TYPE_CHECKING:
    from tracekit.dataset.opening import Dataset

_KERNELS = 8


def changes(before: Dataset, after: Dataset) -> dict[str, Any]:
    """Whole steps, and the modules that changed, equal changes in one line, the largest own change first.

    Raises:
        DatasetError: If one dataset holds a run on a CPU and the other a run on a GPU.
    """
    difference = compare(before, after, Options())
    rows = records(difference.rows)
    changed = changed_parts(rows)
    lines = by_own_change(changed, difference.patterns)
    whole = [{**row, "copies": [row]} for row in whole_steps(rows)]
    kernels = by_module(difference)
    return {
        "before": title(before),
        "after": title(after),
        "notes": [clipped(note, limits.TEXT) for note in difference.notes],
        "tally": dict(Counter(row["status"] for row in changed)),
        "same": sum(row["what"] != "step" and row["status"] == "same" for row in rows),
        "steps": [_line(line, []) for line in whole[: limits.ROWS]],
        "lines": [_line(line, kernels_of(line, kernels)) for line in lines[: limits.ROWS]],
        "left_out": max(len(lines) - limits.ROWS, 0),
    }


def _line(line: dict[str, Any], kernels: list[dict[str, Any]]) -> dict[str, Any]:
    shapes = line["shapes"]
    return {
        **_figures(line),
        "path": clipped(line["path"], limits.TEXT),
        "shapes": None if shapes is None else clipped(shapes, limits.TEXT),
        "status": line["status"],
        "copies": len(line["copies"]),
        "own_change_ns": line["own_change_ns"],
        "kernels": [{**_figures(kernel), "name": clipped(kernel["name"])} for kernel in kernels[:_KERNELS]],
        "kernels_left_out": max(len(kernels) - _KERNELS, 0),
    }


def _figures(row: dict[str, Any]) -> dict[str, Any]:
    names = ("before_ns", "after_ns", "change_ns", "before_kernels", "after_kernels")
    return {name: row[name] for name in names}

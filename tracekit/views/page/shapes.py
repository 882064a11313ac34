"""Shapes on the page: what calls of a module cost, by the shapes of their inputs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tracekit.analyses import shapes as modules_by_shape
from tracekit.views.page import limits
from tracekit.views.page.limits import clipped

if TYPE_CHECKING:
    from tracekit.analyses.subtrees import Hierarchy
    from tracekit.dataset.opening import Dataset
    from tracekit.views.page.nodes import Nodes

_ROWS_OF_A_MODULE = 6
_FIGURES = ("calls", "gpu_time_ns", "gpu_ns_per_token", "median_ns", "rows")


def shapes(dataset: Dataset, modules: Hierarchy, nodes: Nodes) -> dict[str, Any]:
    """Rows of the modules on the page, of each module those with the most time.

    Returns:
        Columns: ``module`` (its index among the modules on the page), ``phase``, ``inputs`` (shapes, as text),
        ``calls``, ``gpu_time_ns``, ``gpu_ns_per_token``, ``median_ns``, and ``rows`` (how many the module has in all).
    """
    by_shape = modules_by_shape.frame(dataset)
    of_module = by_shape.groupby("path", sort=False)
    first = by_shape.assign(rows=of_module["path"].transform("size"))[of_module.cumcount() < _ROWS_OF_A_MODULE]
    on_page = {modules.path[row]: place for place, row in enumerate(nodes.rows.tolist())}
    listed = first[first["path"].isin(on_page.keys())].head(limits.SHAPES)
    shown = listed.assign(module=[on_page[path] for path in listed["path"]])
    figures = shown[["module", "phase", *_FIGURES]].astype(object)
    columns = figures.where(figures.notna(), None)
    return {str(name): columns[name].tolist() for name in columns} | {
        "inputs": list(map(_text, shown["inputs"], shown["kwargs"]))
    }


def _text(inputs: object, kwargs: object) -> str:
    """Shapes of positional and keyword arguments, as JSON."""
    parts = [json.dumps(shapes) for shapes in (inputs, kwargs) if shapes]
    return clipped(" ".join(parts) or "[]", limits.NAME)

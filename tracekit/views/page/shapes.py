"""What calls cost by the shapes that went in, on the page."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from tracekit.analyses import shapes as modules_by_shape
from tracekit.views.page import limits
from tracekit.views.page.limits import clipped

if TYPE_CHECKING:
    from tracekit.analyses.subtrees import Hierarchy
    from tracekit.dataset.opening import Dataset
    from tracekit.views.page.nodes import Nodes

_EACH = 6
_FIGURES = ("calls", "gpu_time_ns", "gpu_ns_per_token", "median_ns", "rows")


def shapes(dataset: Dataset, modules: Hierarchy, nodes: Nodes) -> dict[str, Any]:
    """Rows of the modules on the page, of each those of the most time.

    Returns:
        Columns: ``module`` (its place among the modules on the page), ``phase``, ``inputs`` (shapes, as text),
        ``calls``, ``gpu_time_ns``, ``gpu_ns_per_token``, ``median_ns``, and ``rows``: how many the module has in all.
    """
    found = modules_by_shape.frame(dataset)
    of_module = found.groupby("path", sort=False)
    found = found.assign(rows=of_module["path"].transform("size"))[of_module.cumcount() < _EACH]
    row = {path: at for at, path in enumerate(modules.path)}
    alone = nodes.module.tolist()
    own = nodes.rows.tolist()
    place = [alone[row[path]] for path in found["path"]]
    here = [at >= 0 and own[at] == row[path] for at, path in zip(place, found["path"], strict=True)]
    shown = found.assign(module=place)[np.array(here, dtype=bool)].head(limits.SHAPES)
    figures = shown[["module", "phase", *_FIGURES]].astype(object)
    columns = figures.where(figures.notna(), None)
    return {str(name): columns[name].tolist() for name in columns} | {
        "inputs": list(map(_text, shown["inputs"], shown["kwargs"]))
    }


def _text(inputs: object, kwargs: object) -> str:
    said = [json.dumps(one) for one in (inputs, kwargs) if one]
    return clipped(" ".join(said) or "[]", limits.NAME)

"""Which types of layers take the most time: modules by class, or by name where the class is unknown?"""

from __future__ import annotations

import numpy as np
import pandas as pd

from tracekit.aggregates.phase_times import COLUMNS
from tracekit.aggregates.spread import share
from tracekit.aggregates.subtrees import Hierarchy, hierarchy, series
from tracekit.answers import modules as modules_by_time
from tracekit.arrays.groups import counts, sums
from tracekit.arrays.types import Flags, Rows
from tracekit.dataset.opening import Dataset

NAME = "classes"
ANSWER = ("class_name", "name", "self_ns", "self_share", "calls", "modules")


def frame(dataset: Dataset) -> pd.DataFrame:
    """Types of layers by their own GPU time, the most expensive first.

    Returns:
        A row per class, or per name for modules of unknown class: ``class_name``, ``name`` (null where the class is
        known; ``layers.*`` for numbered modules in ``layers``, ``layer_*`` for ranges ``layer_0``, ``layer_1``, …),
        ``modules``, ``calls``, ``kernels``, ``self_ns`` (the rows add up to all attributed time), ``self_share``,
        ``subtree_ns`` (with all modules below; a module below another one of its type counts once), that by phase
        (``forward_ns``, ``backward_ns``, ``recompute_ns``, ``optimizer_ns`` and ``other_ns`` add up to it) and
        ``share``. Both shares are of all GPU time.
    """
    modules = hierarchy(dataset)
    gathered = modules_by_time.gathered(dataset, modules)
    times, whole = gathered.columns(), gathered.whole_ns
    kinds, code = layer_types(modules)
    outermost = _outermost(code, modules.end)
    own = {name: sums(code, np.asarray(times[name]), len(kinds)) for name in ("calls", "kernels", "self_ns")}
    total = {
        name: sums(code, np.where(outermost, np.asarray(times[name]), 0), len(kinds))
        for name in ("subtree_ns", *COLUMNS)
    }
    answer = pd.DataFrame(
        {
            "class_name": pd.array([class_name for class_name, _ in kinds], dtype=object),
            "name": pd.array([name for _, name in kinds], dtype=object),
            "modules": counts(code, len(kinds)),
            **own,
            "self_share": share(own["self_ns"], whole),
            **total,
            "share": share(total["subtree_ns"], whole),
        }
    )
    return answer.sort_values("self_ns", ascending=False, kind="stable", ignore_index=True)


def layer_types(modules: Hierarchy) -> tuple[list[tuple[str | None, str | None]], Rows]:
    """The types of layers as (class, name), and for each module the place of its type among them."""
    known: dict[tuple[str | None, str | None], int] = {}
    code = np.empty(len(modules.path), dtype=np.int64)
    numbered = series(modules)
    for row, (class_name, name) in enumerate(zip(modules.class_name, modules.name, strict=True)):
        above, plain = modules.parent[row], numbered[row] or name
        if numbered[row] == "*":
            plain = f"{modules.name[above]}.*" if above >= 0 else name
        type_ = (class_name, None) if class_name is not None else (None, plain)
        code[row] = known.setdefault(type_, len(known))
    return list(known), code


def _outermost(code: Rows, end: Rows) -> Flags:
    outermost = np.ones(code.size, dtype=bool)
    reach: dict[int, int] = {}
    for row, (own, last) in enumerate(zip(code.tolist(), end.tolist(), strict=True)):
        outermost[row] = reach.get(own, 0) <= row
        if outermost[row]:
            reach[own] = last
    return outermost

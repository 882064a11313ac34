"""Which types of layers took the time: modules of one class together, without a class those of one name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tracekit.analyses import modules as modules_by_time
from tracekit.analyses.devices import kernels
from tracekit.analyses.spread import share
from tracekit.analyses.subtrees import hierarchy, integers, summed

if TYPE_CHECKING:
    from tracekit.analyses.subtrees import Hierarchy
    from tracekit.arrays.types import Flags, Rows
    from tracekit.dataset.opening import Dataset

NAME = "classes"


def frame(dataset: Dataset) -> pd.DataFrame:
    """Classes of modules by the GPU time of their own, the most expensive first.

    Returns:
        A row per class, and for modules whose markers tell none, per name: ``class_name``, ``name`` (null where the
        class is known; ``layers.*`` for what is numbered below ``layers``), ``modules``, ``calls``,
        ``kernels``, ``self_ns`` (adds up to all attributed time), ``self_share``, ``inclusive_ns`` (with all below;
        a module below another one of its class counts once) and ``share``; both shares are of all GPU time.
    """
    work, modules = kernels(dataset, ["module_id", "dur_ns"]), hierarchy(dataset)
    times = modules_by_time.times(dataset, modules, work, modules.rows(work))
    kinds, code = types(modules)
    whole = int(integers(work, "dur_ns").sum())
    outermost = _outermost(code, modules.end)
    sums = {name: summed(code, np.asarray(times[name]), len(kinds)) for name in ("calls", "kernels", "self_ns")}
    inclusive = np.where(outermost, np.asarray(times["inclusive_ns"]), 0)
    total = summed(code, inclusive, len(kinds))
    found = pd.DataFrame(
        {
            "class_name": pd.array([class_name for class_name, _ in kinds], dtype=object),
            "name": pd.array([name for _, name in kinds], dtype=object),
            "modules": np.bincount(code, minlength=len(kinds)),
            **sums,
            "self_share": share(sums["self_ns"], whole),
            "inclusive_ns": total,
            "share": share(total, whole),
        }
    )
    return found.sort_values("self_ns", ascending=False, kind="stable", ignore_index=True)


def types(modules: Hierarchy) -> tuple[list[tuple[str | None, str | None]], Rows]:
    """The types of layers there are, by class or else by name, and the place of each module's among them."""
    known: dict[tuple[str | None, str | None], int] = {}
    code = np.empty(len(modules.path), dtype=np.int64)
    for row, (class_name, name) in enumerate(zip(modules.class_name, modules.name, strict=True)):
        above = modules.parent[row]
        numbered = name.isdecimal() and above >= 0
        plain = f"{modules.name[above]}.*" if numbered else name
        its = (class_name, None) if class_name is not None else (None, plain)
        code[row] = known.setdefault(its, len(known))
    return list(known), code


def _outermost(code: Rows, end: Rows) -> Flags:
    """Which modules are below none of their own class, in pre-order."""
    found = np.ones(code.size, dtype=bool)
    reach: dict[int, int] = {}
    for row, (own, last) in enumerate(zip(code.tolist(), end.tolist(), strict=True)):
        found[row] = reach.get(own, 0) <= row
        if found[row]:
            reach[own] = last
    return found

"""Which types of layers took the time: modules of one class together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tracekit.analyses import modules_by_time
from tracekit.analyses.devices import kernels
from tracekit.analyses.spread import share
from tracekit.analyses.subtrees import hierarchy, integers, summed

if TYPE_CHECKING:
    from tracekit.arrays import Flags, Rows
    from tracekit.dataset import Dataset

NAME = "classes"


def frame(dataset: Dataset) -> pd.DataFrame:
    """Classes of modules by the GPU time of their own, the most expensive first.

    Returns:
        A row per class: ``class_name`` (null for modules whose markers tell none), ``modules``, ``calls``,
        ``kernels``, ``self_ns`` (adds up to all attributed time), ``self_share``, ``inclusive_ns`` (with all below;
        a module below another one of its class counts once) and ``share``; both shares are of all GPU time.
    """
    work, modules = kernels(dataset, ["module_id", "dur_ns"]), hierarchy(dataset)
    times = modules_by_time.times(dataset, modules, work, modules.rows(work))
    code, classes = pd.factorize(np.array(modules.class_name, dtype=object), use_na_sentinel=False)
    code = np.asarray(code, np.int64)
    whole = int(integers(work, "dur_ns").sum())
    outermost = _outermost(code, modules.end)
    sums = {
        name: summed(code, np.asarray(times[name]), len(classes))
        for name in ("calls", "kernels", "self_ns")
    }
    inclusive = np.where(outermost, np.asarray(times["inclusive_ns"]), 0)
    total = summed(code, inclusive, len(classes))
    found = pd.DataFrame(
        {
            "class_name": [None if pd.isna(one) else one for one in classes],
            "modules": np.bincount(code, minlength=len(classes)),
            **sums,
            "self_share": share(sums["self_ns"], whole),
            "inclusive_ns": total,
            "share": share(total, whole),
        }
    )
    return found.sort_values("self_ns", ascending=False, kind="stable", ignore_index=True)


def _outermost(code: Rows, end: Rows) -> Flags:
    """Which modules are below none of their own class, in pre-order."""
    found = np.ones(code.size, dtype=bool)
    reach: dict[int, int] = {}
    for row, (own, last) in enumerate(zip(code.tolist(), end.tolist(), strict=True)):
        found[row] = reach.get(own, 0) <= row
        if found[row]:
            reach[own] = last
    return found

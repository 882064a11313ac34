"""Where the GPU's time went: every module's own time and that of its whole subtree."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pyarrow as pa

from tracekit.analyses.devices import WHERE, axis, kernels, steps_of
from tracekit.analyses.spread import share, spread
from tracekit.analyses.subtrees import (
    Pairs,
    hierarchy,
    inclusive_pairs,
    integers,
    summed,
)
from tracekit.arrays.intervals import union_within

if TYPE_CHECKING:
    from tracekit.analyses.subtrees import (
        Hierarchy,
    )
    from tracekit.arrays.types import Ints, Rows
    from tracekit.dataset.opening import Dataset

NAME = "modules"


def frame(dataset: Dataset) -> pd.DataFrame:
    """Modules by the GPU time of their subtree, the most expensive first.

    Returns:
        A row per module: ``path``, ``class_name``, ``depth`` (below the first module), ``calls``, ``kernels`` (of the
        module itself), ``self_ns``, ``inclusive_ns`` (self plus all below), ``share`` (of all GPU time, known or not),
        ``busy_ns`` (time in which a device ran something of its subtree, over all devices: union, not sum), ``steps``
        (in which its subtree had work), and over these the time of its subtree: ``step_mean_ns``, ``step_median_ns``,
        ``step_p95_ns``; NaN where there are no steps.
    """
    work = kernels(dataset, ["module_id", "step_id", "dur_ns", *WHERE])
    modules = hierarchy(dataset)
    owner = modules.rows(work)
    found = pd.DataFrame(
        {
            **times(dataset, modules, work, owner),
            "busy_ns": _busy(dataset, modules, work, owner),
            **_per_step(dataset, modules, work, owner),
        }
    )
    return _by_time(found)


def sums(dataset: Dataset) -> pd.DataFrame:
    """The same rows with the columns up to ``share``, in half the time."""
    work, modules = kernels(dataset, ["module_id", "dur_ns"]), hierarchy(dataset)
    return _by_time(pd.DataFrame(times(dataset, modules, work, modules.rows(work))))


def _by_time(found: pd.DataFrame) -> pd.DataFrame:
    return found.sort_values("inclusive_ns", ascending=False, kind="stable", ignore_index=True)


def times(dataset: Dataset, modules: Hierarchy, work: pa.Table, owner: Rows) -> dict[str, object]:
    """The first columns, a row per module in pre-order, out of ``dur_ns`` of all work and its modules' rows."""
    count = len(modules.path)
    duration = integers(work, "dur_ns")
    calls = modules.rows(dataset.table("calls", ["module_id"]))
    own = summed(owner, duration, count)
    inclusive = modules.inclusive(own)
    return {
        "path": modules.path,
        "class_name": modules.class_name,
        "depth": modules.depth,
        "calls": summed(calls, None, count),
        "kernels": summed(owner, None, count),
        "self_ns": own,
        "inclusive_ns": inclusive,
        "share": share(inclusive, int(duration.sum())),
    }


def _busy(dataset: Dataset, modules: Hierarchy, work: pa.Table, owner: Rows) -> Ints:
    owned = owner >= 0
    if not owned.all():
        work, owner = work.filter(pa.array(owned)), owner[owned]
    on = axis(dataset, work)
    forest = (modules.parent, modules.depth, modules.end)
    return union_within(owner, forest, on.start, on.end)


def _per_step(dataset: Dataset, modules: Hierarchy, work: pa.Table, owner: Rows) -> dict[str, object]:
    own = steps_of(dataset, work)
    inside = np.flatnonzero((owner >= 0) & (own >= 0))
    pairs = Pairs(owner[inside], own[inside], integers(work, "dur_ns")[inside])
    pairs = inclusive_pairs(modules.parent, modules.depth, pairs)
    found = spread(pairs.node, pairs.value, len(modules.path))
    return {
        "steps": found.size,
        "step_mean_ns": found.mean(),
        "step_median_ns": found.quantile(0.5),
        "step_p95_ns": found.quantile(0.95),
    }

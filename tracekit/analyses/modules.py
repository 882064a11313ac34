"""How long does each module (or range, or operator) take: by itself, with its subtree, and in a step?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa

from tracekit.analyses.devices import DEVICE_TIMES, axis, steps_of
from tracekit.analyses.phase_times import times_of
from tracekit.analyses.portions import portions
from tracekit.analyses.spread import share, spread
from tracekit.analyses.subtrees import (
    Pairs,
    hierarchy,
    inclusive_pairs,
)
from tracekit.arrays.columns import integers
from tracekit.arrays.groups import counts, sums
from tracekit.arrays.unions import union_within

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
        module itself), ``self_ns``, ``inclusive_ns`` (own time plus all modules below) and that by phase:
        ``forward_ns``, ``backward_ns``, ``recompute_ns``, ``optimizer_ns`` and ``other_ns`` (in any other phase, or in
        an unknown one) add up to it. ``share`` (of all GPU time, attributed or not), ``kind`` (``module``; or
        ``range``, ``operator`` or ``region`` where the hierarchy holds these), ``busy_ns`` (time in which a device ran
        any work of its subtree, over all devices: a union, not a sum), ``steps`` (in which its subtree had work), and
        over these the time of its subtree: ``step_mean_ns``, ``step_median_ns``, ``step_p95_ns``; NaN where there are
        no steps.
    """
    work = portions(dataset, ["module_id", "step_id", "dur_ns", "phase", *DEVICE_TIMES])
    modules = hierarchy(dataset)
    owner = modules.rows(work)
    rows = pd.DataFrame(
        {
            **times(dataset, modules, work, owner),
            "busy_ns": _busy(dataset, modules, work, owner),
            **_per_step(dataset, modules, work, owner),
        }
    )
    return rows.sort_values("inclusive_ns", ascending=False, kind="stable", ignore_index=True)


def totals(dataset: Dataset, most: int) -> dict[str, np.ndarray[Any, Any]]:
    """The first rows of it, without pandas and only with the columns up to ``kind``: half the work."""
    work, modules = portions(dataset, ["module_id", "dur_ns", "phase"]), hierarchy(dataset)
    columns = times(dataset, modules, work, modules.rows(work))
    first = np.argsort(-np.asarray(columns["inclusive_ns"]), kind="stable")[:most]
    return {
        name: np.asarray(values, dtype=object if isinstance(values, list) else None)[first]
        for name, values in columns.items()
    }


def times(dataset: Dataset, modules: Hierarchy, work: pa.Table, owner: Rows) -> dict[str, object]:
    """The columns up to ``kind``, a row per module in pre-order.

    Args:
        dataset: The dataset.
        modules: Its hierarchy.
        work: All device work with ``dur_ns`` and ``phase``.
        owner: The module of each piece of it.
    """
    count = len(modules.path)
    duration = integers(work, "dur_ns")
    calls = modules.rows(dataset.table("calls", ["module_id"]))
    own = sums(owner, duration, count)
    inclusive = modules.inclusive(own)
    by_phase = times_of(modules, work, owner).inclusive
    return {
        "path": modules.path,
        "class_name": modules.class_name,
        "depth": modules.depth,
        "calls": counts(calls, count),
        "kernels": counts(owner, count),
        "self_ns": own,
        "inclusive_ns": inclusive,
        **by_phase,
        "share": share(inclusive, int(duration.sum())),
        "kind": modules.kind,
    }


def _busy(dataset: Dataset, modules: Hierarchy, work: pa.Table, owner: Rows) -> Ints:
    """The time in which a device ran any work of each subtree."""
    owned = owner >= 0
    if not owned.all():
        work, owner = work.filter(pa.array(owned)), owner[owned]
    on_axis = axis(dataset, work)
    forest = (modules.parent, modules.depth, modules.end)
    return union_within(owner, forest, on_axis.start, on_axis.end)


def _per_step(dataset: Dataset, modules: Hierarchy, work: pa.Table, owner: Rows) -> dict[str, object]:
    """The time of each subtree over the steps in which it had work."""
    step = steps_of(dataset, work)
    in_step = np.flatnonzero((owner >= 0) & (step >= 0))
    own = Pairs(owner[in_step], step[in_step], integers(work, "dur_ns")[in_step])
    pairs = inclusive_pairs(modules.parent, modules.depth, own)
    by_step = spread(pairs.node, pairs.value, len(modules.path))
    return {
        "steps": by_step.size,
        "step_mean_ns": by_step.mean(),
        "step_median_ns": by_step.quantile(0.5),
        "step_p95_ns": by_step.quantile(0.95),
    }

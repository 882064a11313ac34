"""How long does each module (or range, or operator) take: by itself, with its subtree, and in a step?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from tracekit.analyses.devices import DEVICE_TIMES, axis, steps_of
from tracekit.analyses.each_report import added
from tracekit.analyses.phase_times import COLUMNS, by_phase
from tracekit.analyses.portions import portions
from tracekit.analyses.spread import share, spread
from tracekit.analyses.subtrees import (
    Pairs,
    hierarchy,
    inclusive_pairs,
)
from tracekit.arrays.columns import integers
from tracekit.arrays.groups import counts
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
    modules = hierarchy(dataset)
    own: dict[str, Ints] = {}
    by_step: list[tuple[Rows, Ints]] = []
    for part in dataset.by_report():
        found = _of_one(part, modules)
        own = added((own, found.own))
        by_step.append((found.by_step.node, found.by_step.value))
    rows = pd.DataFrame(
        {
            **times(modules, own),
            "busy_ns": own["busy_ns"],
            **_per_step(modules, by_step),
        }
    )
    return rows.sort_values("inclusive_ns", ascending=False, kind="stable", ignore_index=True)


def totals(dataset: Dataset, most: int) -> dict[str, np.ndarray[Any, Any]]:
    """The first rows of it, without pandas and only with the columns up to ``kind``: half the work."""
    modules = hierarchy(dataset)
    columns = times(modules, own_times(dataset, modules))
    first = np.argsort(-np.asarray(columns["inclusive_ns"]), kind="stable")[:most]
    return {
        name: np.asarray(values, dtype=object if isinstance(values, list) else None)[first]
        for name, values in columns.items()
    }


def own_times(dataset: Dataset, modules: Hierarchy) -> dict[str, Ints]:
    """What modules had themselves, one report at a time.

    Args:
        dataset: The dataset.
        modules: Its hierarchy.

    Returns:
        For every module ``calls``, ``kernels`` and its time by phase (:data:`~tracekit.analyses.phase_times.COLUMNS`);
        and as the only value of ``whole_ns`` the time of all work, attributed or not.
    """
    return added(_own(part, modules, portions(part, ["module_id", "dur_ns", "phase"])) for part in dataset.by_report())


def times(modules: Hierarchy, own: dict[str, Ints]) -> dict[str, object]:
    """The columns up to ``kind``, a row per module in pre-order.

    Args:
        modules: The hierarchy.
        own: What :func:`own_times` gives.
    """
    spent = np.sum([own[name] for name in COLUMNS], axis=0)
    inclusive = modules.inclusive(spent)
    return {
        "path": modules.path,
        "class_name": modules.class_name,
        "depth": modules.depth,
        "calls": own["calls"],
        "kernels": own["kernels"],
        "self_ns": spent,
        "inclusive_ns": inclusive,
        **{name: modules.inclusive(own[name]) for name in COLUMNS},
        "share": share(inclusive, int(own["whole_ns"][0])),
        "kind": modules.kind,
    }


class _Part(NamedTuple):
    """What modules had in one report: sums, and the time of subtrees in its steps."""

    own: dict[str, Ints]
    by_step: Pairs


def _of_one(dataset: Dataset, modules: Hierarchy) -> _Part:
    """What is known from one report."""
    work = portions(dataset, ["module_id", "step_id", "dur_ns", "phase", *DEVICE_TIMES])
    owner = modules.rows(work)
    own = {**_own(dataset, modules, work), "busy_ns": _busy(dataset, modules, work, owner)}
    return _Part(own, _by_step(dataset, modules, work, owner))


def _own(dataset: Dataset, modules: Hierarchy, work: pa.Table) -> dict[str, Ints]:
    """The sums of all device work of a dataset, which has ``dur_ns`` and ``phase``."""
    count, owner = len(modules.path), modules.rows(work)
    return {
        "calls": counts(modules.rows(dataset.table("calls", ["module_id"])), count),
        "kernels": counts(owner, count),
        **by_phase(owner, work, count),
        "whole_ns": integers(work, "dur_ns").sum(keepdims=True),
    }


def _busy(dataset: Dataset, modules: Hierarchy, work: pa.Table, owner: Rows) -> Ints:
    """The time in which a device ran any work of each subtree."""
    owned = owner >= 0
    if not owned.all():
        work, owner = work.filter(pa.array(owned)), owner[owned]
    on_axis = axis(dataset, work)
    forest = (modules.parent, modules.depth, modules.end)
    return union_within(owner, forest, on_axis.start, on_axis.end)


def _by_step(dataset: Dataset, modules: Hierarchy, work: pa.Table, owner: Rows) -> Pairs:
    """The time of each subtree in each step in which it had work."""
    step = steps_of(dataset, work)
    in_step = np.flatnonzero((owner >= 0) & (step >= 0))
    own = Pairs(owner[in_step], step[in_step], integers(work, "dur_ns")[in_step])
    return inclusive_pairs(modules.parent, modules.depth, own)


def _per_step(modules: Hierarchy, parts: list[tuple[Rows, Ints]]) -> dict[str, object]:
    """The time of each subtree over the steps of all reports in which it had work, given by report."""
    node, value = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    by_step = spread(node, value, len(modules.path))
    return {
        "steps": by_step.size,
        "step_mean_ns": by_step.mean(),
        "step_median_ns": by_step.quantile(0.5),
        "step_p95_ns": by_step.quantile(0.95),
    }

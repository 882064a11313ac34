"""How long does each module (or range, or operator) take: its own work, its subtree, and per step?"""

from __future__ import annotations

import numpy as np
import pandas as pd

from tracekit.aggregates.phase_times import COLUMNS, by_phase
from tracekit.aggregates.spread import Values, share
from tracekit.aggregates.subtrees import Hierarchy, Pairs, hierarchy, subtree_pairs
from tracekit.aggregates.weighted_kernels import DEVICE_TIMES, axis, steps_of, weighted_kernels
from tracekit.arrays.codes import positions
from tracekit.arrays.columns import selected
from tracekit.arrays.groups import counts, sums
from tracekit.arrays.slices import union_within
from tracekit.arrays.types import Columns, Rows
from tracekit.dataset.opening import Dataset
from tracekit.schema.tables import Calls, Kernels

NAME = "modules"
ANSWER = ("path", "subtree_ns", "share", "self_ns", "subtree_host_ns", "calls")


def frame(dataset: Dataset) -> pd.DataFrame:
    """Modules by the GPU time of their subtree, the most expensive first.

    Returns:
        A row per module: ``path``, ``class_name``, ``depth`` (below the first module), ``calls``, ``kernels`` (of the
        module itself), ``self_ns``, ``subtree_ns`` (own time plus all modules below) and that by phase:
        ``forward_ns``, ``backward_ns``, ``recompute_ns``, ``optimizer_ns`` and ``other_ns`` (in any other phase, or in
        an unknown one) add up to it. ``share`` (of all GPU time, attributed or not), ``kind`` (``module``; or
        ``range``, ``operator`` or ``region`` where the hierarchy holds these), ``busy_ns`` (time in which a device ran
        any work of its subtree, over all devices: a union, not a sum), ``steps`` (in which its subtree had work), and
        over these the time of its subtree: ``step_mean_ns``, ``step_median_ns``, ``step_p95_ns``; NaN where there are
        no steps. ``host_ns`` is the time that its calls took on the host, without those inside them, and
        ``subtree_host_ns`` that of its subtree; where no device did any work, modules are sorted by this.
    """
    # Texts are those of pandas.
    found = columns(dataset).items()
    return pd.DataFrame({name: values.tolist() if values.dtype == object else values for name, values in found})


def columns(dataset: Dataset) -> Columns:
    """The columns of :func:`frame`, made without pandas."""
    modules, of_steps = hierarchy(dataset), Values()
    times, busy = _Times(modules), np.zeros(len(modules.path), np.int64)
    for part in dataset.by_report():
        work = weighted_kernels(part, ["module_id", "step_id", "dur_ns", "phase", *DEVICE_TIMES])
        owner = modules.rows_of(work.module_id)
        times.add(part, work, owner)
        owned = owner >= 0
        if not owned.all():
            work, owner = work.filter(owned), owner[owned]
        on_axis = axis(part, work)
        busy += union_within(owner, (modules.parent, modules.depth, modules.end), on_axis.start, on_axis.end)
        step = steps_of(part, work)
        in_step = np.flatnonzero(step >= 0)
        own = Pairs(owner[in_step], step[in_step], work.dur_ns[in_step])
        pairs = subtree_pairs(modules.parent, modules.depth, own)
        of_steps.add(pairs.node, pairs.value)
    by_step = of_steps.spread(busy.size)
    rows = {
        **times.columns(),
        "busy_ns": busy,
        "steps": by_step.size,
        "step_mean_ns": by_step.mean(),
        "step_median_ns": by_step.quantile(0.5),
        "step_p95_ns": by_step.quantile(0.95),
    }
    return selected(rows, by_time(rows))


def most_telling(rows: Columns | pd.DataFrame) -> str:
    """The name of the time to sort by: that on devices if they did any work, otherwise that on the host."""
    return "subtree_ns" if np.asarray(rows["subtree_ns"]).any() else "subtree_host_ns"


def by_time(rows: Columns | pd.DataFrame) -> Rows:
    """The order of rows by that time, the most first."""
    return np.argsort(-np.asarray(rows[most_telling(rows)]), kind="stable")


def totals(dataset: Dataset, most: int) -> Columns:
    """The first rows of it, only with the columns up to ``kind``: half the work."""
    rows = gathered(dataset, hierarchy(dataset)).columns()
    return selected(rows, by_time(rows)[:most])


class _Times:
    """Calls, kernels and times of modules, added up over reports; ``whole_ns`` is the time of all work."""

    def __init__(self, modules: Hierarchy) -> None:
        self._modules = modules
        self._calls, self._kernels, self._own, self._host = np.zeros((4, len(modules.path)), np.int64)
        self._by_phase = np.zeros((len(COLUMNS), len(modules.path)), np.int64)
        self.whole_ns = 0

    def add(self, dataset: Dataset, work: Kernels, owner: Rows) -> None:
        duration, count = work.dur_ns, self._own.size
        calls = dataset.rows(Calls, ["module_id", "call_id", "parent_call_id", "start_ns", "end_ns"])
        called, spent = self._modules.rows_of(calls.module_id), calls.end_ns - calls.start_ns
        inside = sums(positions(calls.parent_call_id, calls.call_id), spent, spent.size)
        self._calls += counts(called, count)
        self._host += sums(called, np.maximum(spent - inside, 0), count)
        self._kernels += counts(owner, count)
        self._own += sums(owner, duration, count)
        self._by_phase += by_phase(owner, work, count)
        self.whole_ns += int(duration.sum())

    def columns(self) -> Columns:
        """The columns of :func:`frame` up to ``kind``, a row per module in pre-order."""
        modules = self._modules
        subtree = modules.subtree_sums(self._own)
        return {
            "path": np.array(modules.path, object),
            "class_name": np.array(modules.class_name, object),
            "depth": modules.depth,
            "calls": self._calls,
            "kernels": self._kernels,
            "self_ns": self._own,
            "subtree_ns": subtree,
            **{name: modules.subtree_sums(time) for name, time in zip(COLUMNS, self._by_phase, strict=True)},
            "share": share(subtree, self.whole_ns),
            "kind": np.array(modules.kind, object),
            "host_ns": self._host,
            "subtree_host_ns": modules.subtree_sums(self._host),
        }


def gathered(dataset: Dataset, modules: Hierarchy) -> _Times:
    """Calls, kernels and times of the modules of a dataset's hierarchy."""
    times = _Times(modules)
    for part in dataset.by_report():
        work = weighted_kernels(part, ["module_id", "dur_ns", "phase"])
        times.add(part, work, modules.rows_of(work.module_id))
    return times

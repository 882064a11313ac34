"""What does a call cost for each set of input shapes, by step, by token and in FLOPs?"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from tracekit.aggregates.phase_times import COLUMNS as PHASE_COLUMNS, PHASES, phase_rows
from tracekit.aggregates.spread import Values, ratio
from tracekit.aggregates.subtrees import Pairs, hierarchy, subtree_pairs, summed_by_node
from tracekit.aggregates.weighted_kernels import from_graph, kernels
from tracekit.arrays.codes import positions
from tracekit.arrays.columns import selected, with_nulls
from tracekit.arrays.groups import counts, maxima, minima, sums
from tracekit.arrays.intervals import depths
from tracekit.arrays.types import Columns, Flags, Ints, Rows
from tracekit.costs.calls import CallKinds, Costs, costs
from tracekit.costs.subtree_costs import subtree_flops
from tracekit.dataset.opening import Dataset
from tracekit.schema.tables import Steps

NAME = "shapes"
ANSWER = ("path", "inputs", "phase", "median_ns", "gpu_time_ns", "calls")

#: What is null where it is not known which calls were replayed: whole numbers, and others.
_COUNTED = ["gpu_time_ns", "forward_ns", "backward_ns", "recompute_ns", "optimizer_ns", "other_ns", "steps"]
_TEXTS, _FLOPS = ("path", "class_name", "phase"), "flops_per_call"
_WORK = ("call_id", "step_id", "phase", "dur_ns", "graph_id", "graph_node_id")
_LARGEST = np.iinfo(np.int64).max
_RATES = ["gpu_ns_per_token", "step_median_ns", "step_mean_ns", "tflops_per_s"]


def frame(dataset: Dataset) -> pd.DataFrame:
    """Calls by module, phase and shapes of their inputs, the most expensive first.

    Returns:
        A row per module, phase and shapes: ``path``, ``class_name``, ``phase``, ``inputs`` and ``kwargs`` (shapes of
        positional and keyword tensors), ``calls``, ``gpu_time_ns`` (of their subtrees, including all replays of those
        in a graph capture) and that by the phase of the work (``forward_ns``, ``backward_ns``, ``recompute_ns``,
        ``optimizer_ns`` and ``other_ns`` add up to it; recomputed calls have rows of their own); null for calls in a
        graph capture whose replays cannot be distinguished from those of other calls. ``gpu_ns_per_token``
        (over the steps whose tokens are known; NaN if there are none), ``steps`` (in which they had work),
        ``step_median_ns`` and ``step_mean_ns`` (their time in each of these). Of one call: ``median_ns`` and
        ``mean_ns`` (NaN for calls during a graph capture, whose work ran once per replay) and ``flops_per_call`` (of
        one run with all modules below; null where unknown, or where calls differ). ``tflops_per_s`` is over all their
        runs. :func:`tracekit.answers.roofline.frame` documents which FLOPs count.
    """
    answer = columns(dataset)
    counted = {name: pd.array(answer[name], "Int64") for name in (_FLOPS, *_COUNTED) if answer[name].dtype == object}
    return pd.DataFrame(answer | {name: answer[name].tolist() for name in _TEXTS} | counted)


def columns(dataset: Dataset) -> Columns:
    """The columns of :func:`frame`, made without pandas."""
    modules = hierarchy(dataset)
    gathered = _Gathered(len(modules.path))
    for cost in costs(dataset, modules=modules):
        gathered.add(cost)
    owner, phases, shapes = gathered.called()
    kwargs = [None if pairs is None else dict(pairs) for pairs in shapes.column("kwargs").to_pylist()]
    classes = [modules.class_name[row] for row in owner.tolist()]
    texts = (modules.paths(owner), classes, phases, shapes.column("inputs").to_pylist(), kwargs)
    answer = {name: np.empty(owner.size, object) for name in (*_TEXTS, "inputs", "kwargs")}
    for column, values in zip(answer.values(), texts, strict=True):
        column[:] = values
    answer |= gathered.figures()
    in_graph_capture = np.array([phase == "capture" for phase in phases], bool)
    unclear = (modules.subtree_sums(gathered.shared) > 0)[owner] & in_graph_capture
    for name in _COUNTED + _RATES:
        answer[name][unclear] = -1 if name in _COUNTED else np.nan
    answer = selected(answer, np.argsort(-answer["gpu_time_ns"], kind="stable"))
    return with_nulls(answer, [_FLOPS, *(_COUNTED if unclear.any() else ())])


class _Gathered:
    def __init__(self, modules: int) -> None:
        # How much replayed work is known to be a module's, but not of which of its calls.
        self.shared = np.zeros(modules, np.int64)
        self._kinds: CallKinds | None = None
        self._sums: Columns = {}
        self._flops_least = self._flops_most = np.empty(0, np.int64)
        self._calls, self._steps = Values(), Values()

    def add(self, cost: Costs) -> None:
        self._kinds = cost.kinds
        groups = cost.kinds.groups()
        group, count = groups[cost.kind], int(groups.max(initial=-1)) + 1
        time = cost.table.gpu_time_ns
        steps = cost.report.whole.rows(Steps, ["step_id", "tokens"])
        spent = _spent(cost, steps)
        several_runs = spent.replayed | cost.table.phase.among("capture")
        self._calls.add(np.where(several_runs, -1, group), time)
        own, in_step = group[spent.call], np.flatnonzero(spent.step >= 0)
        pairs = summed_by_node(Pairs(own[in_step], spent.step[in_step], spent.ns[in_step]))
        self._steps.add(pairs.node, pairs.value)
        phases = sums(own * len(PHASES) + spent.phase, spent.ns, count * len(PHASES)).reshape(count, len(PHASES))
        tokens = np.maximum(np.append(steps.tokens, 0)[pairs.group], 0)
        one_run, all_runs = subtree_flops(cost)
        figures = {
            "calls": counts(group, count),
            "gpu_time_ns": sums(group, time, count),
            **dict(zip(PHASE_COLUMNS, phases.T, strict=True)),
            "spent_ns": sums(pairs.node, np.where(tokens > 0, pairs.value, 0), count),
            "tokens": sums(pairs.node, tokens, count),
            "flops": np.bincount(group, all_runs, minlength=count),
        }
        new = (0, count - self._flops_least.size)
        for name, more in figures.items():
            self._sums[name] = np.pad(self._sums.get(name, more[:0]), new) + more
        self.shared += counts(cost.modules.rows_of(cost.work.shared.module_id), self.shared.size)
        least, most = minima(group, one_run, count), maxima(group, one_run, count)
        self._flops_least = np.minimum(np.pad(self._flops_least, new, constant_values=_LARGEST), least)
        self._flops_most = np.maximum(np.pad(self._flops_most, new, constant_values=-_LARGEST), most)

    def called(self) -> tuple[Rows, list[str | None], pa.Table]:
        """Modules, phases and shapes of the rows."""
        assert self._kinds is not None
        return self._kinds.called(np.unique(self._kinds.groups(), return_index=True)[1])

    def figures(self) -> Columns:
        """The columns after what was called, -1 for no FLOPs."""
        found = dict(self._sums)
        spent, tokens, flops = (found.pop(name) for name in ("spent_ns", "tokens", "flops"))
        each, steps = (values.spread(spent.size) for values in (self._calls, self._steps))
        return {
            **found,
            "gpu_ns_per_token": ratio(spent, tokens),
            "steps": steps.size,
            "step_median_ns": steps.quantile(0.5),
            "step_mean_ns": steps.mean(),
            "median_ns": each.quantile(0.5),
            "mean_ns": each.mean(),
            _FLOPS: np.where(self._flops_least == self._flops_most, self._flops_most, -1),
            # A FLOP in a nanosecond is 10^9 in a second.
            "tflops_per_s": ratio(flops, found["gpu_time_ns"]) / 1e3,
        }


class _Spent(NamedTuple):
    """Time of calls with all below, in each step (-1 for none) and phase; and which calls ran from CUDA graphs."""

    call: Rows
    step: Rows
    phase: Rows
    ns: Ints
    replayed: Flags


def _spent(cost: Costs, steps: Steps) -> _Spent:
    work = kernels(cost.report, _WORK)
    call = positions(work.call_id, cost.table.call_id)
    step = positions(work.step_id, steps.step_id)
    cell, depth = (step + 1) * len(PHASES) + phase_rows(work.phase), depths(cost.parent)
    rows = np.flatnonzero(call >= 0)
    pairs = subtree_pairs(cost.parent, depth, Pairs(call[rows], cell[rows], work.dur_ns[rows]))
    of_graph = call[(call >= 0) & from_graph(work.table)]
    replayed = np.zeros(depth.size, dtype=bool)
    replayed[subtree_pairs(cost.parent, depth, Pairs(of_graph, *np.zeros((2, of_graph.size), np.int64))).node] = True
    step, phase = np.divmod(pairs.group, len(PHASES))
    return _Spent(pairs.node, step - 1, phase, pairs.value, replayed)

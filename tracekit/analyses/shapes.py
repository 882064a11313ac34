"""What does a call cost for each set of input shapes, by step, by token and in FLOPs?"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from tracekit.analyses.costs.calls import costs
from tracekit.analyses.costs.modules import inclusive_flops
from tracekit.analyses.devices import from_graph, steps_of
from tracekit.analyses.phase_times import by_phase
from tracekit.analyses.spread import ratio, spread
from tracekit.analyses.subtrees import Pairs, inclusive_pairs, united
from tracekit.arrays.codes import codes, joint
from tracekit.arrays.columns import integers
from tracekit.arrays.groups import agreed, counts, sums
from tracekit.arrays.intervals import by_level, depths
from tracekit.arrays.labels import labels
from tracekit.arrays.lookups import positions

if TYPE_CHECKING:
    from tracekit.analyses.costs.calls import Costs
    from tracekit.arrays.types import Flags, Floats, Ints, Rows
    from tracekit.dataset.opening import Dataset

NAME = "shapes"

#: What is null where it is not known which calls were replayed: whole numbers, and others.
_COUNTED = ["gpu_time_ns", "forward_ns", "backward_ns", "recompute_ns", "optimizer_ns", "other_ns", "steps"]
_RATES = ["gpu_ns_per_token", "step_median_ns", "step_mean_ns", "tflops_per_s"]


def frame(dataset: Dataset) -> pd.DataFrame:
    """Calls by module, phase and shapes of their inputs, the most expensive first.

    Returns:
        A row per module, phase and shapes: ``path``, ``class_name``, ``phase``, ``inputs`` and ``kwargs`` (shapes of
        positional and keyword tensors), ``calls``, ``gpu_time_ns`` (of their subtrees, including all replays of those
        in a graph capture) and that by the phase of the work (``forward_ns``, ``backward_ns``, ``recompute_ns``,
        ``optimizer_ns`` and ``other_ns`` add up to it; recomputed calls have rows of their own); null for calls in a
        graph capture whose replays cannot be told from those of other calls. ``gpu_ns_per_token``
        (over the steps whose tokens are known; NaN if there are none), ``steps`` (in which they had work),
        ``step_median_ns`` and ``step_mean_ns`` (their time in each of these). Of one call: ``median_ns`` and
        ``mean_ns`` (NaN for calls during a graph capture, whose work ran once per replay) and ``flops_per_call`` (of
        one run with all modules below; null where unknown, or where calls differ). ``tflops_per_s`` is over all their
        runs. :func:`tracekit.analyses.roofline.frame` says which FLOPs count.
    """
    cost = costs(dataset)
    calls, phases = cost.table, labels(cost.table, "phase")
    group, first = _groups(cost, phases.code)
    time, count = integers(calls, "gpu_time_ns"), first.size
    gpu_time_ns = sums(group, time, count)
    called = _called(dataset, calls)
    by_step, replayed = _by_step(dataset, called)
    several_runs = replayed | np.isin(phases.code, phases.of("capture"))
    each = spread(np.where(several_runs, -1, group), time, count)
    answer = pd.DataFrame(
        {
            **_what_was_called(cost, first),
            "calls": counts(group, count),
            "gpu_time_ns": gpu_time_ns,
            **{name: sums(group, time, count) for name, time in _by_phase(called).items()},
            **_per_step(dataset, by_step, group, count),
            "median_ns": each.quantile(0.5),
            "mean_ns": each.mean(),
            **_speed(cost, group, gpu_time_ns),
        }
    )
    untold = _replays_untold(cost)[cost.owner[first]] & np.isin(phases.code[first], phases.of("capture"))
    if untold.any():
        answer[_COUNTED] = answer[_COUNTED].astype("Int64")
        answer.loc[untold, _COUNTED + _RATES] = pd.NA
    return answer.sort_values("gpu_time_ns", ascending=False, kind="stable", ignore_index=True)


def _replays_untold(cost: Costs) -> Flags:
    """Of each module whether replays are known to be its, or of one below, but not of which of several calls."""
    work = cost.work.shared
    replays: Flags = cost.modules.inclusive(counts(cost.modules.rows(work), len(cost.modules.path))) > 0
    return replays


def _groups(cost: Costs, phase: Rows) -> tuple[Rows, Rows]:
    """The group of each call by module, phase and shapes, and the first call of each group."""
    of_kinds = cost.table.select(["inputs", "kwargs"]).take(pa.array(cost.first))
    shapes = [codes(column.combine_chunks()) for column in of_kinds.columns]
    code = joint((cost.owner[cost.first], phase[cost.first] + 1, *shapes))
    _, first, group = np.unique(code, return_index=True, return_inverse=True)
    return group[cost.kind], cost.first[first]


def _what_was_called(cost: Costs, first: Rows) -> dict[str, object]:
    """Module, phase and shapes of some calls."""
    calls, modules, owner = cost.table, cost.modules, cost.owner[first].tolist()
    phases, shapes = labels(calls, "phase"), calls.select(["inputs", "kwargs"]).take(pa.array(first))
    kwargs = [None if pairs is None else dict(pairs) for pairs in shapes.column("kwargs").to_pylist()]
    return {
        "path": modules.paths(cost.owner[first]),
        "class_name": [modules.class_name[row] for row in owner],
        "phase": phases.named(phases.code[first]),
        "inputs": pd.Series(shapes.column("inputs").to_pylist(), dtype=object),
        "kwargs": pd.Series(kwargs, dtype=object),
    }


def _speed(cost: Costs, group: Rows, time: Ints) -> dict[str, object]:
    """FLOPs of one call of each group, and the rate of all of them."""
    one_run, all_runs = inclusive_flops(cost)
    per_call = agreed(group, one_run, time.size)
    total = np.bincount(group, all_runs, minlength=time.size)
    return {
        "flops_per_call": pd.arrays.IntegerArray(per_call, per_call < 0),
        # A FLOP in a nanosecond is 10^9 in a second.
        "tflops_per_s": ratio(total, time) / 1e3,
    }


class _Called(NamedTuple):
    """Calls with their work.

    Attributes:
        parent: The call around each call, or -1.
        depth: How many are around it.
        work: Device work.
        call: The call of each piece of it, or -1.
    """

    parent: Rows
    depth: Ints
    work: pa.Table
    call: Rows


def _called(dataset: Dataset, calls: pa.Table) -> _Called:
    ids = integers(calls, "call_id")
    work = dataset.table("kernels", ["call_id", "step_id", "dur_ns", "phase", "graph_id", "graph_node_id"])
    parent = positions(integers(calls, "parent_call_id"), ids)
    return _Called(parent, depths(parent), work, positions(integers(work, "call_id"), ids))


def _by_phase(called: _Called) -> dict[str, Ints]:
    """The time of each call and those below it by phase."""
    times = by_phase(called.call, called.work, called.parent.size)
    for rows in reversed(by_level(called.depth)[1:]):
        for time in times.values():
            np.add.at(time, called.parent[rows], time[rows])
    return times


def _by_step(dataset: Dataset, called: _Called) -> tuple[Pairs, Flags]:
    """The time of each call and those below it by step, and which of them were replayed."""
    parent, depth, work, call = called
    step, time = steps_of(dataset, work), integers(work, "dur_ns")
    in_step = np.flatnonzero((call >= 0) & (step >= 0))
    by_step = inclusive_pairs(parent, depth, Pairs(call[in_step], step[in_step], time[in_step]))
    of_graph = np.flatnonzero((call >= 0) & from_graph(work))
    replays = inclusive_pairs(parent, depth, Pairs(call[of_graph], np.zeros_like(of_graph), time[of_graph]))
    replayed = np.zeros(parent.size, dtype=bool)
    replayed[replays.node] = True
    return by_step, replayed


def _per_step(dataset: Dataset, by_step: Pairs, group: Rows, count: int) -> dict[str, object]:
    """The time of each group in each step in which it had work."""
    pairs = united(Pairs(group[by_step.node], by_step.group, by_step.value))
    each = spread(pairs.node, pairs.value, count)
    return {
        "gpu_ns_per_token": _per_token(dataset, pairs, count),
        "steps": each.size,
        "step_median_ns": each.quantile(0.5),
        "step_mean_ns": each.mean(),
    }


def _per_token(dataset: Dataset, pairs: Pairs, count: int) -> Floats:
    """The time of each group by token, over the steps whose tokens are known."""
    tokens = integers(dataset.whole.table("steps", ["tokens"]), "tokens", null=0)
    if not tokens.size:
        return np.full(count, np.nan)
    of_pairs = np.maximum(tokens[pairs.group], 0)
    spent = sums(pairs.node, np.where(of_pairs > 0, pairs.value, 0), count)
    return ratio(spent, sums(pairs.node, of_pairs, count))

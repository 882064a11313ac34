"""What calls of a module cost by the shapes that they were given."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pyarrow as pa

from tracekit.analyses.costs.calls import costs
from tracekit.analyses.costs.modules import inclusive_flops
from tracekit.analyses.devices import from_graph, places, steps_of
from tracekit.analyses.spread import ratio, spread
from tracekit.analyses.subtrees import Pairs, inclusive_pairs, integers, summed, united
from tracekit.arrays.codes import codes, joint
from tracekit.arrays.intervals import depths
from tracekit.arrays.labels import labels

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tracekit.analyses.costs.calls import Costs
    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.dataset.opening import Dataset

NAME = "shapes"


def frame(dataset: Dataset) -> pd.DataFrame:
    """Calls by module, phase and shapes of what they were given, the most expensive first.

    Returns:
        A row per module, phase and shapes: ``path``, ``class_name``, ``phase``, ``inputs`` and ``kwargs`` (shapes of
        positional and keyword tensors), ``calls``, ``gpu_time_ns`` (of their subtrees, all replays of captured ones
        included), ``gpu_ns_per_token`` (of the steps that tell their tokens; NaN if none does), ``steps`` (in which
        they had work), ``step_median_ns`` and ``step_mean_ns`` (their time in each of these), and of a call
        ``median_ns`` and ``mean_ns`` (NaN where calls were captured: what they did ran as often as their graph was
        replayed), ``flops_per_call`` (of one run with all below it; null where they are not known, or calls differ)
        and ``tflops_per_s`` (in all their runs). Which FLOPs count: see :func:`tracekit.analyses.roofline.frame`.
    """
    cost = costs(dataset)
    calls, modules, owner = cost.table, cost.modules, cost.owner
    phases = labels(calls, "phase")
    group, first = _groups(cost, phases.code)
    time, count = integers(calls, "gpu_time_ns"), first.size
    lifted, replayed = _lifted(dataset, calls)
    often = replayed | np.isin(phases.code, phases.of("capture"))
    each = spread(np.where(often, -1, group), time, count)
    shown = calls.select(["inputs", "kwargs"]).take(pa.array(first))
    classes = modules.class_name
    found = pd.DataFrame(
        {
            "path": modules.paths(owner[first]),
            "class_name": [classes[row] for row in owner[first].tolist()],
            "phase": phases.named(phases.code[first]),
            "inputs": pd.Series(shown.column("inputs").to_pylist(), dtype=object),
            "kwargs": pd.Series(
                [None if one is None else dict(one) for one in shown.column("kwargs").to_pylist()],
                dtype=object,
            ),
            "calls": np.bincount(group, minlength=count),
            "gpu_time_ns": summed(group, time, count),
            **_per_step(dataset, lifted, group, count),
            "median_ns": each.quantile(0.5),
            "mean_ns": each.mean(),
            **_speed(cost, group, summed(group, time, count)),
        }
    )
    return found.sort_values("gpu_time_ns", ascending=False, kind="stable", ignore_index=True)


def _speed(cost: Costs, group: Rows, time: Ints) -> dict[str, object]:
    """FLOPs of one call of each group, and of all in the time that they took."""
    one, all_runs = inclusive_flops(cost)
    least = np.full(time.size, np.iinfo(np.int64).max)
    most = np.full(time.size, -1, dtype=np.int64)
    np.minimum.at(least, group, one)
    np.maximum.at(most, group, one)
    whole = np.bincount(group, all_runs, minlength=time.size)
    return {
        "flops_per_call": pd.arrays.IntegerArray(most, (least < 0) | (least != most)),
        # A FLOP in a nanosecond is 10^9 in a second.
        "tflops_per_s": ratio(whole, time) / 1e3,
    }


def _groups(cost: Costs, phase: Rows) -> tuple[Rows, Rows]:
    """A number for each call by module, phase and shapes, and the first call of each."""
    of_kind = cost.table.select(["inputs", "kwargs"]).take(pa.array(cost.first))
    shapes = [codes(column.combine_chunks()) for column in of_kind.columns]
    code = joint((cost.owner[cost.first], phase[cost.first] + 1, *shapes))
    _, first, group = np.unique(code, return_index=True, return_inverse=True)
    return group[cost.kind], cost.first[first]


def _lifted(dataset: Dataset, calls: pa.Table) -> tuple[Pairs, Flags]:
    """The time of each call and those below it by step, and which of them were replayed."""
    ids = integers(calls, "call_id")
    columns = ["call_id", "step_id", "dur_ns", "graph_id", "graph_node_id"]
    work = dataset.table("kernels", columns)
    parent = places(calls, "parent_call_id", ids)
    forest = parent, depths(parent)
    call, step = places(work, "call_id", ids), steps_of(dataset, work)
    time = integers(work, "dur_ns")
    inside = np.flatnonzero((call >= 0) & (step >= 0))
    lifted = inclusive_pairs(*forest, Pairs(call[inside], step[inside], time[inside]))
    of_graph = np.flatnonzero((call >= 0) & from_graph(work))
    again = inclusive_pairs(*forest, Pairs(call[of_graph], np.zeros_like(of_graph), time[of_graph]))
    replayed = np.zeros(ids.size, dtype=bool)
    replayed[again.node] = True
    return lifted, replayed


def _per_step(dataset: Dataset, lifted: Pairs, group: Rows, count: int) -> dict[str, object]:
    """The time of each group in each step in which it had work."""
    groups = int(lifted.group.max(initial=0)) + 1
    pairs = united(Pairs(group[lifted.node], lifted.group, lifted.value), groups)
    each = spread(pairs.node, pairs.value, count)
    return {
        "gpu_ns_per_token": _per_token(dataset, pairs, count),
        "steps": each.size,
        "step_median_ns": each.quantile(0.5),
        "step_mean_ns": each.mean(),
    }


def _per_token(dataset: Dataset, pairs: Pairs, count: int) -> NDArray[np.float64]:
    tokens = integers(dataset.whole.table("steps", ["tokens"]), "tokens", missing=0)
    if not tokens.size:
        return np.full(count, np.nan)
    told = tokens[pairs.group]
    spent = summed(pairs.node, np.where(told > 0, pairs.value, 0), count)
    return ratio(spent, summed(pairs.node, np.maximum(told, 0), count))

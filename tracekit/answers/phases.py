"""What do steps of each kind and batch size cost: prefill against decode, small batches against large ones?"""

from __future__ import annotations

import numpy as np
import pandas as pd

from tracekit.aggregates.each_report import Totals
from tracekit.aggregates.spread import Values, ratio, share
from tracekit.answers import steps as steps_by_time
from tracekit.dataset.opening import Dataset

NAME = "phases"
ANSWER = ("kind", "batch_size", "gpu_median_ns", "gpu_ns_per_token", "steps")

_KEYS, _SUMMED = ["kind", "batch_size"], ("gpu_time_ns", "steps", "tokens", "unknown")


def frame(dataset: Dataset) -> pd.DataFrame:
    """Steps by kind and batch size, sorted by both.

    Returns:
        A row per kind and batch size (null where steps do not have one): ``kind``, ``batch_size``, ``steps``,
        ``tokens`` (null if those of any step are unknown), ``gpu_time_ns``, ``share`` (of the GPU time of all steps),
        ``gpu_ns_per_token`` (NaN without tokens), and over the steps ``gpu_median_ns``, ``gpu_mean_ns``,
        ``gpu_p95_ns``, ``busy_median_ns`` and ``host_median_ns``.
    """
    number: dict[tuple[str | None, int | None], int] = {}
    sums = Totals(("group",), _SUMMED)
    gpu_times, busy_times, host_times = Values(), Values(), Values()
    for part in dataset.by_report():
        steps, figures = steps_by_time.with_figures(part, _KEYS)
        keys = zip(*(steps.table[name].to_pylist() for name in _KEYS), strict=True)
        group = np.array([number.setdefault(key, len(number)) for key in keys], np.int64)
        gpu_times.add(group, figures["gpu_time_ns"])
        busy_times.add(group, figures["busy_ns"])
        host_times.add(group, figures["host_ns"])
        ones = np.ones(group.size, np.int64)
        counted = {"steps": ones, "tokens": np.maximum(steps.tokens, 0), "unknown": steps.tokens < 0}
        sums.add({"group": group, "gpu_time_ns": figures["gpu_time_ns"], **counted})
    groups = pd.DataFrame([*number], columns=_KEYS, dtype=object).astype({"batch_size": "Int64"})
    order = groups.sort_values(_KEYS, kind="stable").index
    totals = sums.frame()
    total, count, tokens, unknown = (totals[name].to_numpy("int64")[order] for name in _SUMMED)
    gpu, busy, host = (times.spread(len(order)) for times in (gpu_times, busy_times, host_times))
    return pd.DataFrame(
        {
            **groups.loc[order].reset_index(drop=True),
            "steps": count,
            "tokens": pd.arrays.IntegerArray(tokens, unknown > 0),
            "gpu_time_ns": total,
            "share": share(total, int(total.sum())),
            "gpu_ns_per_token": ratio(total, np.where(unknown > 0, 0, tokens)),
            "gpu_median_ns": gpu.quantile(0.5)[order],
            "gpu_mean_ns": gpu.mean()[order],
            "gpu_p95_ns": gpu.quantile(0.95)[order],
            "busy_median_ns": busy.quantile(0.5)[order],
            "host_median_ns": host.quantile(0.5)[order],
        }
    )

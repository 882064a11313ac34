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

_KEYS, _TIMES = ["kind", "batch_size"], ("gpu_time_ns", "busy_ns", "host_ns")
_SUMMED = ("gpu_time_ns", "steps", "tokens", "unknown")


def frame(dataset: Dataset) -> pd.DataFrame:
    """Steps by kind and batch size, sorted by both.

    Returns:
        A row per kind and batch size (null where steps do not have one): ``kind``, ``batch_size``, ``steps``,
        ``tokens`` (null if those of any step are unknown), ``gpu_time_ns``, ``share`` (of the GPU time of all steps),
        ``gpu_ns_per_token`` (NaN without tokens), and over the steps ``gpu_median_ns``, ``gpu_mean_ns``,
        ``gpu_p95_ns``, ``busy_median_ns`` and ``host_median_ns``.
    """
    number: dict[tuple[str | None, int | None], int] = {}
    sums, times = Totals(("group",), _SUMMED), {name: Values() for name in _TIMES}
    for part in dataset.by_report():
        steps, figures = steps_by_time.with_figures(part, _KEYS)
        keys = zip(*(steps.table[name].to_pylist() for name in _KEYS), strict=True)
        group = np.array([number.setdefault(key, len(number)) for key in keys], np.int64)
        for name, values in times.items():
            values.add(group, figures[name])
        tokens, ones = steps.tokens, np.ones(group.size, np.int64)
        counted = {"steps": ones, "tokens": np.maximum(tokens, 0), "unknown": tokens < 0}
        sums.add({"group": group, "gpu_time_ns": figures["gpu_time_ns"], **counted})
    totals = sums.frame()
    total, count, tokens, unknown = (totals[name].to_numpy() for name in _SUMMED)
    gpu, busy, host = (values.spread(len(number)) for values in times.values())
    answer = pd.DataFrame(
        {
            **pd.DataFrame([*number], columns=_KEYS, dtype=object).astype({"batch_size": "Int64"}),
            "steps": count,
            "tokens": pd.arrays.IntegerArray(tokens, unknown > 0),
            "gpu_time_ns": total,
            "share": share(total, int(total.sum())),
            "gpu_ns_per_token": ratio(total, np.where(unknown > 0, 0, tokens)),
            "gpu_median_ns": gpu.quantile(0.5),
            "gpu_mean_ns": gpu.mean(),
            "gpu_p95_ns": gpu.quantile(0.95),
            "busy_median_ns": busy.quantile(0.5),
            "host_median_ns": host.quantile(0.5),
        }
    )
    return answer.sort_values(_KEYS, kind="stable", ignore_index=True)

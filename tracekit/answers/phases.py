"""What do steps of each kind and batch size cost: prefill against decode, small batches against large ones?"""

from __future__ import annotations

import numpy as np
import pandas as pd

from tracekit.aggregates.each_report import Totals, Words
from tracekit.aggregates.spread import Values, ratio, share
from tracekit.answers import steps as steps_by_time
from tracekit.dataset.opening import Dataset

NAME = "phases"
ANSWER = ("kind", "batch_size", "gpu_median_ns", "gpu_ns_per_token", "steps")

_KEYS = ["kind", "batch_size"]


def frame(dataset: Dataset) -> pd.DataFrame:
    """Steps by kind and batch size, sorted by both.

    Returns:
        A row per kind and batch size (null where steps do not have one): ``kind``, ``batch_size``, ``steps``,
        ``tokens`` (null if those of any step are unknown), ``gpu_time_ns``, ``share`` (of the GPU time of all steps),
        ``gpu_ns_per_token`` (NaN without tokens), and over the steps ``gpu_median_ns``, ``gpu_mean_ns``,
        ``gpu_p95_ns``, ``busy_median_ns`` and ``host_median_ns``.
    """
    gathered = _Steps()
    for part in dataset.by_report():
        gathered.add(part)
    return gathered.frame()


class _Steps:
    """The steps of all reports so far, by kind and batch size."""

    def __init__(self) -> None:
        self._kinds, self._number = Words(), dict[tuple[int, int | None], int]()
        self._totals = Totals(["group"], dict.fromkeys(("steps", "gpu_time_ns", "tokens", "unknown"), "sum"))
        self._times = {name: Values() for name in ("gpu_time_ns", "busy_ns", "host_ns")}

    def add(self, dataset: Dataset) -> None:
        """Adds those of a report."""
        steps, figures = steps_by_time.with_figures(dataset, _KEYS)
        keys = zip(self._kinds.codes(steps.kind).tolist(), steps.table["batch_size"].to_pylist(), strict=True)
        group = np.array([self._number.setdefault(key, len(self._number)) for key in keys], np.int64)
        for name, values in self._times.items():
            values.add(group, figures[name])
        self._totals.add(
            {
                "group": group,
                "steps": np.ones(group.size, np.int64),
                "gpu_time_ns": figures["gpu_time_ns"],
                "tokens": np.maximum(steps.tokens, 0),
                "unknown": (steps.tokens < 0).astype(np.int64),
            }
        )

    def frame(self) -> pd.DataFrame:
        """The answer: groups in the order of their kind and batch size."""
        kinds = self._kinds.named([kind for kind, _ in self._number])
        sizes = pd.array([size for _, size in self._number], "Int64")
        sorted_ = pd.DataFrame({"kind": pd.Series(kinds, dtype=object), "batch_size": sizes}).groupby(
            _KEYS, dropna=False, sort=True
        )
        answer = sorted_.size().reset_index()[_KEYS]
        place, count = np.asarray(sorted_.ngroup(), np.int64), len(answer)
        totals = self._totals.frame().iloc[np.argsort(place)]
        total, tokens, unknown = (totals[name].to_numpy("int64") for name in ("gpu_time_ns", "tokens", "unknown"))
        gpu, busy, host = (values.spread(count, place) for values in self._times.values())
        return pd.DataFrame(
            {
                **{name: answer[name] for name in _KEYS},
                "steps": totals["steps"].to_numpy("int64"),
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

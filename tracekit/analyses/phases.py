"""What steps of a kind and batch size cost: prefill against decode, small batches against large ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tracekit.analyses import steps as steps_by_time
from tracekit.analyses.spread import ratio, share, spread
from tracekit.analyses.subtrees import summed

if TYPE_CHECKING:
    from tracekit.dataset.opening import Dataset

NAME = "phases"

_KEYS = ["kind", "batch_size"]


def frame(dataset: Dataset) -> pd.DataFrame:
    """Steps by kind and batch size, by size within a kind.

    Returns:
        A row per kind and batch size (null where steps do not tell): ``kind``, ``batch_size``, ``steps``, ``tokens``
        (null if a step does not tell), ``gpu_time_ns``, ``share`` (of the GPU time of all steps), ``gpu_ns_per_token``
        (NaN without tokens), and over the steps ``gpu_median_ns``, ``gpu_mean_ns``, ``gpu_p95_ns``,
        ``busy_median_ns`` and ``host_median_ns``.
    """
    steps = steps_by_time.frame(dataset)
    grouped = steps.groupby(_KEYS, dropna=False, sort=True)
    group, time = (np.asarray(one, np.int64) for one in (grouped.ngroup(), steps["gpu_time_ns"]))
    found = grouped.size().reset_index(name="steps")
    count, total = len(found), summed(group, time, len(found))
    untold = summed(group, np.asarray(steps["tokens"].isna(), np.int64), count) > 0
    tokens = summed(group, np.asarray(steps["tokens"].fillna(0), np.int64), count)
    gpu = spread(group, time, count)
    host, busy = (
        spread(group, np.asarray(steps[name], np.int64), count).quantile(0.5) for name in ("host_ns", "busy_ns")
    )
    return found.assign(
        tokens=pd.arrays.IntegerArray(tokens, untold),
        gpu_time_ns=total,
        share=share(total, int(total.sum())),
        gpu_ns_per_token=ratio(total, np.where(untold, 0, tokens)),
        gpu_median_ns=gpu.quantile(0.5),
        gpu_mean_ns=gpu.mean(),
        gpu_p95_ns=gpu.quantile(0.95),
        busy_median_ns=busy,
        host_median_ns=host,
    )

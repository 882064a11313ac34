"""What do steps of each kind and batch size cost: prefill against decode, small batches against large ones?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tracekit.analyses import steps as steps_by_time
from tracekit.analyses.spread import ratio, share, spread
from tracekit.arrays.groups import sums

if TYPE_CHECKING:
    from tracekit.dataset.opening import Dataset

NAME = "phases"

_KEYS = ["kind", "batch_size"]


def frame(dataset: Dataset) -> pd.DataFrame:
    """Steps by kind and batch size, sorted by both.

    Returns:
        A row per kind and batch size (null where steps do not have one): ``kind``, ``batch_size``, ``steps``,
        ``tokens`` (null if those of any step are unknown), ``gpu_time_ns``, ``share`` (of the GPU time of all steps),
        ``gpu_ns_per_token`` (NaN without tokens), and over the steps ``gpu_median_ns``, ``gpu_mean_ns``,
        ``gpu_p95_ns``, ``busy_median_ns`` and ``host_median_ns``.
    """
    steps = steps_by_time.frame(dataset)
    groups = steps.groupby(_KEYS, dropna=False, sort=True)
    answer = groups.size().reset_index(name="steps")
    group, count = np.asarray(groups.ngroup(), np.int64), len(answer)
    time = np.asarray(steps["gpu_time_ns"], np.int64)
    total, gpu = sums(group, time, count), spread(group, time, count)
    no_tokens = sums(group, np.asarray(steps["tokens"].isna(), np.int64), count) > 0
    tokens = sums(group, np.asarray(steps["tokens"].fillna(0), np.int64), count)
    medians = {
        name: spread(group, np.asarray(steps[f"{name}_ns"], np.int64), count).quantile(0.5) for name in ("busy", "host")
    }
    return answer.assign(
        tokens=pd.arrays.IntegerArray(tokens, no_tokens),
        gpu_time_ns=total,
        share=share(total, int(total.sum())),
        gpu_ns_per_token=ratio(total, np.where(no_tokens, 0, tokens)),
        gpu_median_ns=gpu.quantile(0.5),
        gpu_mean_ns=gpu.mean(),
        gpu_p95_ns=gpu.quantile(0.95),
        busy_median_ns=medians["busy"],
        host_median_ns=medians["host"],
    )

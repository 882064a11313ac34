"""What did each step cost: on the host, on the device and per token?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from tracekit.aggregates.each_report import rows_of_each
from tracekit.aggregates.spread import ratio
from tracekit.aggregates.weighted_kernels import DEVICE_TIMES, axis, served_kernels, union
from tracekit.arrays.codes import positions
from tracekit.arrays.groups import counts, sums
from tracekit.arrays.types import Columns
from tracekit.dataset.opening import REPORT, Dataset
from tracekit.schema.tables import Steps

NAME = "steps"
ANSWER = ("report", "index", "kind", "batch_size", "host_ns", "gpu_time_ns", "gpu_ns_per_token")

_NULLABLE = ("rank", "batch_size", "tokens")

_SIZE = ("step_id", "kind", "index", "batch_size", "tokens")
_ORIGIN = ("rank", "pid", "name")


def frame(dataset: Dataset) -> pd.DataFrame:
    """Steps in their order; of a subtree, the steps in which one of its modules was called or had work.

    Returns:
        A row per step: ``report`` (only in a dataset of several), ``step_id``, ``kind``, ``index``, ``batch_size``,
        ``tokens``; ``host_ns`` (from its start to its end on the host, without compilation), ``gpu_time_ns`` (sum of
        the work launched in it, for a subtree with its portions of fused kernels), ``busy_ns`` (time in which a device
        ran any of it, over all devices), ``gpu_ns_per_token`` (NaN if its tokens are unknown), ``kernels``,
        ``compile_ns`` (host time in which its process compiled models); ``rank``, ``pid``, ``name``.
    """
    return rows_of_each(dataset, _of_report)


def _of_report(dataset: Dataset) -> pd.DataFrame:
    size = (REPORT, *_SIZE) if dataset.reports else _SIZE
    steps, figures = with_figures(dataset, [*size, *_ORIGIN])
    return pd.DataFrame({**_columns(steps, size), **figures, **_columns(steps, _ORIGIN)})


def with_figures(dataset: Dataset, names: Sequence[str]) -> tuple[Steps, Columns]:
    """The steps of one report, or of a subtree of it, with these columns, and what each of them cost."""
    columns = dict.fromkeys([*names, "step_id", "tokens", "start_ns", "end_ns", "compile_ns"])
    steps = dataset.whole.rows(Steps, [*columns])
    work = served_kernels(dataset, ["step_id", "dur_ns", *DEVICE_TIMES])
    step = positions(work.step_id, steps.step_id)
    on_axis, count = axis(dataset, work), len(steps)
    time = sums(step, work.dur_ns, count)
    figures = {
        "host_ns": steps.end_ns - steps.start_ns - steps.compile_ns,
        "gpu_time_ns": time,
        "busy_ns": union(step, on_axis.start, on_axis.end, count),
        "gpu_ns_per_token": ratio(time, np.maximum(steps.tokens, 0)),
        "kernels": counts(step, count),
        "compile_ns": steps.compile_ns,
    }
    if dataset.root is None:
        return steps, figures
    called = dataset.rows(Steps, ["step_id"]).step_id
    inside = np.isin(steps.step_id, called) | (figures["kernels"] > 0)
    return steps.filter(inside), {name: values[inside] for name, values in figures.items()}


def _columns(steps: Steps, names: Sequence[str]) -> dict[str, pd.Series]:
    types: dict[str, Any] = {"step_id": "int64", "index": "int64", "pid": "int64", **dict.fromkeys(_NULLABLE, "Int64")}
    values = {name: pd.Series(steps.table.column(name).to_pylist(), dtype=object) for name in names}
    return {name: column.astype(types.get(name, "object")) for name, column in values.items()}

"""Which process of which rank used which device, and how much of that was communication?"""

from __future__ import annotations

import numpy as np
import pandas as pd

from tracekit.aggregates.weighted_kernels import report_codes, served_kernels
from tracekit.arrays.columns import together, with_nulls
from tracekit.arrays.groups import sums_by
from tracekit.arrays.types import Columns, Ints
from tracekit.dataset.opening import Dataset
from tracekit.ranks.collectives import communication
from tracekit.schema.tables import Kernels

NAME = "processes"
ANSWER = ("report", "rank", "pid", "device", "gpu_time_ns", "communication_ns")

_IDS = ("rank", "pid", "device")
_READ = [*_IDS, "module_id", "dur_ns"]
#: In place of ids that are not known, which come last.
_LAST = 2**61


def frame(dataset: Dataset) -> pd.DataFrame:
    """Device work by report, rank, process and device, in that order, unknown keys last.

    Returns:
        A row for each combination that has work: ``report`` (null for a dataset of one report), ``rank``, ``pid``,
        ``device`` (null if unknown), ``kernels``, ``gpu_time_ns`` (sum), ``known`` (the share of that time that was
        attributed to modules), ``communication_ns`` (the part of it spent in NCCL kernels; the rank that the others
        wait for has the least) and ``exposed_ns`` (the part of that in which nothing else ran on the device).
    """
    # Texts stay objects.
    return pd.DataFrame({name: pd.array(values, dtype=values.dtype) for name, values in columns(dataset).items()})


def columns(dataset: Dataset) -> Columns:
    """The columns of :func:`frame`, made without pandas, with one report in memory at a time."""
    parts = []
    for part in dataset.by_report():
        work, communicates, exposed = communication(part, _READ)
        times = {"communication_ns": np.where(communicates, work.dur_ns, 0), "exposed_ns": exposed}
        parts.append(_of_one(part, work, times))
    return together(parts)


def attributed(dataset: Dataset) -> Columns:
    """The columns up to ``known``: half the work."""
    return together([_of_one(part, served_kernels(part, _READ), {}) for part in dataset.by_report()])


def _of_one(dataset: Dataset, work: Kernels, more: dict[str, Ints]) -> Columns:
    figures = {"kernels": np.ones(len(work), np.int64), "gpu_time_ns": work.dur_ns}
    figures |= {"known": np.where(work.module_id >= 0, work.dur_ns, 0), **more}
    ids = (ids.astype(np.int64) for ids in (work.rank, work.pid, work.device))
    keys = report_codes(dataset, work.table), *(np.where(each < 0, _LAST, each) for each in ids)
    (report, *known), sums = sums_by(keys, [*figures.values()])
    answer = {"report": np.array([dataset.names[at] for at in report.tolist()], object)}
    answer |= {name: np.where(key == _LAST, -1, key) for name, key in zip(_IDS, known, strict=True)}
    answer |= dict(zip(figures, sums, strict=True))
    answer["known"] = answer["known"] / np.maximum(answer["gpu_time_ns"], 1)
    return with_nulls(answer, _IDS)

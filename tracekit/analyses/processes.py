"""Which process of which rank used which device, and how much of that was communication?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pyarrow as pa

from tracekit.analyses.communication import communication
from tracekit.analyses.each_report import rows_of_each
from tracekit.analyses.subtrees import hierarchy
from tracekit.arrays.columns import integers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.dataset.opening import Dataset

NAME = "processes"

_KEYS = ["report", "rank", "pid", "device"]
_SUMMED = ("dur_ns", "known_ns", "communication_ns", "exposed_ns")


def frame(dataset: Dataset) -> pd.DataFrame:
    """Device work by report, rank, process and device, in that order, unknown keys last.

    Returns:
        A row for each combination that has work: ``report`` (null for a dataset of one report), ``rank``, ``pid``,
        ``device`` (null if unknown), ``kernels``, ``gpu_time_ns`` (sum), ``known`` (the share of that time that was
        attributed to modules), ``communication_ns`` (the part of it spent in NCCL kernels; the rank that the others
        wait for has the least) and ``exposed_ns`` (the part of that in which nothing else ran on the device).
    """
    return rows_of_each(dataset, _of_one)


def _of_one(dataset: Dataset) -> pd.DataFrame:
    """The rows of one report."""
    sums = (
        _work(dataset)
        .group_by(_KEYS, use_threads=False)
        .aggregate([("dur_ns", "count"), *((name, "sum") for name in _SUMMED)])
    )
    answer = pd.DataFrame({name: sums.column(name).to_pylist() for name in _KEYS}, dtype=object)
    time, known, in_nccl, exposed = (np.asarray(sums.column(f"{name}_sum")) for name in _SUMMED)
    answer["kernels"] = np.asarray(sums.column("dur_ns_count"))
    answer["gpu_time_ns"] = time
    answer["known"] = known / np.maximum(time, 1)
    answer["communication_ns"] = in_nccl
    answer["exposed_ns"] = exposed
    return answer.iloc[_order(answer, dataset.reports)].reset_index(drop=True)


def _order(answer: pd.DataFrame, reports: Sequence[str]) -> list[int]:
    """The rows by report, rank, process and device, null after all numbers."""
    place = {name: at for at, name in enumerate(reports)}
    keys = [
        (place.get(report, 0), *((key is None, key or 0) for key in rest))
        for report, *rest in answer[_KEYS].itertuples(index=False)
    ]
    return sorted(range(len(keys)), key=keys.__getitem__)


def _work(dataset: Dataset) -> pa.Table:
    """A dataset's device work: its keys, and the times to add up."""
    table, is_nccl, exposed = communication(dataset, ["rank", "pid", "device", "module_id", "dur_ns"])
    time, attributed = integers(table, "dur_ns"), np.asarray(table.column("module_id").is_valid())
    reports = table.column("report").cast(pa.string()) if dataset.reports else pa.nulls(table.num_rows, pa.string())
    times = (time, np.where(attributed, time, 0), np.where(is_nccl, time, 0), exposed)
    work = table.select(["rank", "pid", "device"]).append_column("report", reports)
    for name, values in zip(_SUMMED, times, strict=True):
        work = work.append_column(name, pa.array(values, pa.int64()))
    return work if dataset.root is None else work.filter(pa.array(hierarchy(dataset).rows(table) >= 0))

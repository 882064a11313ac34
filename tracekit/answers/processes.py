"""Which process of which rank used which device, and how much of that was communication?"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa

from tracekit.aggregates.subtrees import hierarchy
from tracekit.aggregates.weighted_kernels import kernels
from tracekit.arrays.columns import selected, together
from tracekit.arrays.types import Columns, Ints
from tracekit.dataset.opening import Dataset
from tracekit.ranks.collectives import communication
from tracekit.schema.tables import Kernels

NAME = "processes"
ANSWER = ("report", "rank", "pid", "device", "gpu_time_ns", "communication_ns")

_KEYS = ["report", "rank", "pid", "device"]
_READ = [*_KEYS[1:], "module_id", "dur_ns"]


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
    return together([_of_one(part, kernels(part, _READ), {}) for part in dataset.by_report()])


def _of_one(dataset: Dataset, own: Kernels, more: dict[str, Ints]) -> Columns:
    table = own.table
    times = {"gpu_time_ns": own.dur_ns, "known": np.where(own.module_id >= 0, own.dur_ns, 0), **more}
    reports = table.column("report").cast(pa.string()) if dataset.reports else pa.nulls(len(own), pa.string())
    work = table.select(_KEYS[1:]).append_column("report", reports)
    for name, values in times.items():
        work = work.append_column(name, pa.array(values, pa.int64()))
    if dataset.root is not None:
        work = work.filter(hierarchy(dataset).rows_of(own.module_id) >= 0)
    groups = work.group_by(_KEYS, use_threads=False)
    sums = groups.aggregate([("gpu_time_ns", "count"), *((name, "sum") for name in times)])
    keys = [sums.column(name).to_pylist() for name in _KEYS]
    answer = {name: np.array(values, dtype=object) for name, values in zip(_KEYS, keys, strict=True)}
    answer["kernels"] = np.asarray(sums.column("gpu_time_ns_count"))
    answer |= {name: np.asarray(sums.column(f"{name}_sum")) for name in times}
    answer["known"] = answer["known"] / np.maximum(answer["gpu_time_ns"], 1)
    place = {name: at for at, name in enumerate(dataset.names)}
    by = [(place[report], *((key is None, key or 0) for key in row)) for report, *row in zip(*keys, strict=True)]
    return selected(answer, np.array(sorted(range(len(by)), key=by.__getitem__), np.int64))

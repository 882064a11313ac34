"""Which process of which rank used which device, and how much of that was communication?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from tracekit.aggregates.subtrees import hierarchy
from tracekit.aggregates.weighted_kernels import kernels
from tracekit.arrays.columns import selected, together
from tracekit.arrays.types import Columns, Ints, Rows
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
    return _columns(dataset, _communication)


def attributed(dataset: Dataset) -> Columns:
    """The columns up to ``known``: half the work."""
    return _columns(dataset, lambda part: (kernels(part, _READ), {}))


def _columns(dataset: Dataset, work: Callable[[Dataset], tuple[Kernels, dict[str, Ints]]]) -> Columns:
    return together([_of_one(part, *work(part)) for part in dataset.by_report()])


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
    return selected(answer, _order(list(zip(*keys, strict=True)), dataset.reports))


def _communication(dataset: Dataset) -> tuple[Kernels, dict[str, Ints]]:
    work, communicates, exposed = communication(dataset, _READ)
    return work, {"communication_ns": np.where(communicates, work.dur_ns, 0), "exposed_ns": exposed}


def _order(keys: list[tuple[Any, ...]], reports: Sequence[str]) -> Rows:
    place = {name: at for at, name in enumerate(reports)}
    by = [(place.get(report, 0), *((key is None, key or 0) for key in rest)) for report, *rest in keys]
    return np.array(sorted(range(len(by)), key=by.__getitem__), dtype=np.int64)

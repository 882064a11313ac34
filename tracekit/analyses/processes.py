"""Which process of which rank used which device, and how much of that was communication?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from tracekit.analyses.communication import communication
from tracekit.analyses.subtrees import hierarchy
from tracekit.arrays.columns import integers
from tracekit.arrays.types import Rows
from tracekit.dataset.opening import Dataset

NAME = "processes"
ANSWER = ("report", "rank", "pid", "device", "gpu_time_ns", "communication_ns")

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
    # Texts stay objects.
    return pd.DataFrame({name: pd.array(values, dtype=values.dtype) for name, values in columns(dataset).items()})


def columns(dataset: Dataset) -> dict[str, np.ndarray[Any, Any]]:
    """The columns of :func:`frame`, made without pandas, with one report in memory at a time."""
    parts = [_of_one(part) for part in dataset.by_report()]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _of_one(dataset: Dataset) -> dict[str, np.ndarray[Any, Any]]:
    sums = (
        _work(dataset)
        .group_by(_KEYS, use_threads=False)
        .aggregate([("dur_ns", "count"), *((name, "sum") for name in _SUMMED)])
    )
    keys = [sums.column(name).to_pylist() for name in _KEYS]
    time, known, in_nccl, exposed = (np.asarray(sums.column(f"{name}_sum")) for name in _SUMMED)
    answer = {
        **{name: np.array(values, dtype=object) for name, values in zip(_KEYS, keys, strict=True)},
        "kernels": np.asarray(sums.column("dur_ns_count")),
        "gpu_time_ns": time,
        "known": known / np.maximum(time, 1),
        "communication_ns": in_nccl,
        "exposed_ns": exposed,
    }
    order = _order(list(zip(*keys, strict=True)), dataset.reports)
    return {name: values[order] for name, values in answer.items()}


def _order(keys: list[tuple[Any, ...]], reports: Sequence[str]) -> Rows:
    place = {name: at for at, name in enumerate(reports)}
    by = [(place.get(report, 0), *((key is None, key or 0) for key in rest)) for report, *rest in keys]
    return np.array(sorted(range(len(by)), key=by.__getitem__), dtype=np.int64)


def _work(dataset: Dataset) -> pa.Table:
    table, is_nccl, exposed = communication(dataset, ["rank", "pid", "device", "module_id", "dur_ns"])
    time, attributed = integers(table, "dur_ns"), np.asarray(table.column("module_id").is_valid())
    reports = table.column("report").cast(pa.string()) if dataset.reports else pa.nulls(table.num_rows, pa.string())
    times = (time, np.where(attributed, time, 0), np.where(is_nccl, time, 0), exposed)
    work = table.select(["rank", "pid", "device"]).append_column("report", reports)
    for name, values in zip(_SUMMED, times, strict=True):
        work = work.append_column(name, pa.array(values, pa.int64()))
    return work if dataset.root is None else work.filter(pa.array(hierarchy(dataset).rows(table) >= 0))

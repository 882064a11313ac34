"""Which process of which rank spent how much of which device, and how much of it in communication."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pyarrow as pa

from tracekit.analyses.communication import talk
from tracekit.analyses.subtrees import hierarchy, integers

if TYPE_CHECKING:
    from tracekit.dataset.opening import Dataset

NAME = "processes"

_KEYS = ["report", "rank", "pid", "device"]
_SUMMED = ("dur_ns", "known_ns", "talking_ns", "exposed_ns")


def frame(dataset: Dataset) -> pd.DataFrame:
    """Device work by report, rank, process and device, in that order, what is not known last.

    Returns:
        A row for each that did some: ``report`` (null if the dataset is of a single one), ``rank``, ``pid``,
        ``device`` (null where not known), ``kernels``, ``gpu_time_ns`` (sum), ``known`` (the share of that time that
        has a module), ``communication_ns`` (the part of it in which NCCL's kernels ran; the rank that the others wait
        for has the least) and ``exposed_ns`` (the part of that beside which nothing else ran).
    """
    kernels = _work(dataset)
    sums = kernels.group_by(_KEYS, use_threads=False).aggregate(
        [("dur_ns", "count"), *((name, "sum") for name in _SUMMED)]
    )
    found = pd.DataFrame({name: sums.column(name).to_pylist() for name in _KEYS}, dtype=object)
    time, known, talking, exposed = (np.asarray(sums.column(f"{name}_sum")) for name in _SUMMED)
    found["kernels"] = np.asarray(sums.column("dur_ns_count"))
    found["gpu_time_ns"] = time
    found["known"] = known / np.maximum(time, 1)
    found["communication_ns"] = talking
    found["exposed_ns"] = exposed
    place = {name: at for at, name in enumerate(dataset.reports)}
    keys = [
        (place.get(report, 0), *((key is None, key or 0) for key in rest))
        for report, *rest in found[_KEYS].itertuples(index=False)
    ]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    return found.iloc[order].reset_index(drop=True)


def _work(dataset: Dataset) -> pa.Table:
    """A dataset's device work: its keys, and what is added up of it."""
    columns = ["rank", "pid", "device", "module_id", "dur_ns"]
    table, talking, exposed = talk(dataset, columns)
    names = table.column("report").cast(pa.string()) if dataset.reports else None
    time = integers(table, "dur_ns")
    owner = hierarchy(dataset).rows(table)
    summed = {
        "dur_ns": time,
        "known_ns": np.where(np.asarray(table.column("module_id").is_valid()), time, 0),
        "talking_ns": np.where(talking, time, 0),
        "exposed_ns": exposed,
    }
    work = table.select(["rank", "pid", "device"]).append_column(
        "report", pa.nulls(table.num_rows, pa.string()) if names is None else names
    )
    for name, values in summed.items():
        work = work.append_column(name, pa.array(values, pa.int64()))
    return work if dataset.root is None else work.filter(pa.array(owner >= 0))

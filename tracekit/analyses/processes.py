"""Which process of which rank spent how much of which device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pyarrow as pa

from tracekit.schema import CATEGORY

if TYPE_CHECKING:
    from tracekit.dataset import Dataset

NAME = "processes"

_KEYS = ["report", "rank", "pid", "device"]


def frame(dataset: Dataset) -> pd.DataFrame:
    """Device work by report, rank, process and device, in that order, what is not known last.

    Returns:
        A row for each that did some: ``report`` (null if the dataset is of a single one), ``rank``, ``pid``,
        ``device`` (null where not known), ``kernels``, ``gpu_time_ns`` (sum) and ``known`` (the share of that time
        that has a module).
    """
    columns = [name for name in _KEYS if name != "report" or dataset.reports]
    kernels = dataset.table("kernels", [*columns, "module_id", "dur_ns"])
    if "report" not in columns:
        kernels = kernels.append_column("report", pa.nulls(kernels.num_rows, CATEGORY))
    known = np.where(
        np.asarray(kernels.column("module_id").is_valid()), np.asarray(kernels.column("dur_ns")), 0
    )
    kernels = kernels.append_column("known_ns", pa.array(known, pa.int64()))
    report = kernels.column("report").cast(pa.string())
    kernels = kernels.set_column(kernels.column_names.index("report"), "report", report)
    sums = kernels.group_by(_KEYS, use_threads=False).aggregate(
        [("dur_ns", "count"), ("dur_ns", "sum"), ("known_ns", "sum")]
    )
    found = pd.DataFrame({name: sums.column(name).to_pylist() for name in _KEYS}, dtype=object)
    time = np.asarray(sums.column("dur_ns_sum"))
    found["kernels"] = np.asarray(sums.column("dur_ns_count"))
    found["gpu_time_ns"] = time
    found["known"] = np.asarray(sums.column("known_ns_sum")) / np.maximum(time, 1)
    place = {name: at for at, name in enumerate(dataset.reports)}
    keys = [
        (place.get(report, 0), *((key is None, key or 0) for key in rest))
        for report, *rest in found[_KEYS].itertuples(index=False)
    ]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    return found.iloc[order].reset_index(drop=True)

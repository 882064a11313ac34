"""What was copied or set in memory, by which module, how many bytes and how fast?"""

from __future__ import annotations

import numpy as np
import pandas as pd

from tracekit.aggregates.each_report import Totals
from tracekit.aggregates.spread import ratio, share
from tracekit.aggregates.subtrees import hierarchy
from tracekit.aggregates.weighted_kernels import served_kernels
from tracekit.dataset.opening import Dataset

NAME = "copies"
ANSWER = ("kind", "copy_kind", "path", "moved_bytes", "gb_per_s", "gpu_time_ns")

_SUMMED = ("copies", "gpu_time_ns", "moved_bytes", "unsized")


def frame(dataset: Dataset) -> pd.DataFrame:
    """Copies and sets of memory by direction and module, the most time first.

    Returns:
        A row per kind, direction and module: ``kind``, ``copy_kind`` (null if not recorded), ``path`` (null if the
        copies could not be attributed), ``copies`` (how many), ``gpu_time_ns``, ``share`` (of all GPU time),
        ``moved_bytes`` (null if the size of any of them was not recorded) and ``gb_per_s`` (10^9 bytes per second of
        their own time).
    """
    modules, sums, whole_ns = hierarchy(dataset), Totals(("kind", "copy_kind", "module"), _SUMMED), 0
    for part in dataset.by_report():
        work = served_kernels(part, ["kind", "copy_kind", "module_id", "dur_ns", "bytes"])
        whole_ns += int(work.dur_ns.sum())
        copies = work.filter(work.kind.among("memcpy", "memset"))
        sums.add(
            {
                "kind": copies.kind,
                "copy_kind": copies.copy_kind,
                "module": modules.rows_of(copies.module_id),
                "copies": np.ones(len(copies), np.int64),
                "gpu_time_ns": copies.dur_ns,
                "moved_bytes": np.maximum(copies.bytes, 0),
                "unsized": copies.bytes < 0,
            }
        )
    groups = sums.frame()
    time, moved = groups["gpu_time_ns"].to_numpy(), groups["moved_bytes"].astype("Int64").mask(groups["unsized"] > 0)
    answer = pd.DataFrame(
        {
            "kind": groups["kind"],
            "copy_kind": groups["copy_kind"],
            "path": modules.paths(groups["module"].to_numpy()),
            "copies": groups["copies"],
            "gpu_time_ns": time,
            "share": share(time, whole_ns),
            "moved_bytes": moved.array,
            # A byte in a nanosecond is 10^9 bytes in a second.
            "gb_per_s": ratio(moved.to_numpy("float64", na_value=np.nan), time),
        }
    )
    return answer.sort_values("gpu_time_ns", ascending=False, kind="stable", ignore_index=True)

"""What was copied or set in memory, by which module, how many bytes and how fast?"""

from __future__ import annotations

import numpy as np
import pandas as pd

from tracekit.aggregates.each_report import Totals, Words
from tracekit.aggregates.spread import ratio, share
from tracekit.aggregates.subtrees import hierarchy
from tracekit.aggregates.weighted_kernels import kernels
from tracekit.dataset.opening import Dataset

NAME = "copies"
ANSWER = ("kind", "copy_kind", "path", "moved_bytes", "gb_per_s", "gpu_time_ns")

_KEYS = ["kind", "direction", "module"]


def frame(dataset: Dataset) -> pd.DataFrame:
    """Copies and sets of memory by direction and module, the most time first.

    Returns:
        A row per kind, direction and module: ``kind``, ``copy_kind`` (null if not recorded), ``path`` (null if the
        copies could not be attributed), ``copies`` (how many), ``gpu_time_ns``, ``share`` (of all GPU time),
        ``moved_bytes`` (null if the size of any of them was not recorded) and ``gb_per_s`` (10^9 bytes per second of
        their own time).
    """
    modules, kinds, directions, whole_ns = hierarchy(dataset), Words(), Words(), 0
    sums = Totals(_KEYS, dict.fromkeys(("ns", "moved", "size", "unsized"), "sum"))
    for part in dataset.by_report():
        work = kernels(part, ["kind", "copy_kind", "module_id", "dur_ns", "bytes"])
        whole_ns += int(work.dur_ns.sum())
        rows = np.flatnonzero(work.kind.among("memcpy", "memset"))
        size = work.bytes[rows]
        sums.add(
            {
                "kind": kinds.codes(work.kind)[rows],
                "direction": directions.codes(work.copy_kind)[rows],
                "module": modules.rows_of(work.module_id)[rows],
                "ns": work.dur_ns[rows],
                "moved": np.maximum(size, 0),
                "size": np.ones(rows.size, np.int64),
                "unsized": (size < 0).astype(np.int64),
            }
        )
    groups = sums.frame()
    time, moved = groups["ns"].to_numpy(), groups["moved"].astype("Int64").mask(groups["unsized"] > 0)
    answer = pd.DataFrame(
        {
            "kind": kinds.named(groups["kind"]),
            "copy_kind": directions.named(groups["direction"]),
            "path": modules.paths(groups["module"].to_numpy()),
            "copies": groups["size"].to_numpy(),
            "gpu_time_ns": time,
            "share": share(time, whole_ns),
            "moved_bytes": moved.array,
            # A byte in a nanosecond is 10^9 bytes in a second.
            "gb_per_s": ratio(moved.to_numpy("float64", na_value=np.nan), time),
        }
    )
    return answer.sort_values("gpu_time_ns", ascending=False, kind="stable", ignore_index=True)

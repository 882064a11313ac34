"""What was copied and set: bytes, time and bandwidth."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tracekit.analyses.devices import kernels
from tracekit.analyses.spread import ratio, share
from tracekit.analyses.subtrees import hierarchy, integers
from tracekit.arrays.labels import labels

if TYPE_CHECKING:
    from tracekit.dataset.opening import Dataset

NAME = "copies"

_KEYS = ["kind", "direction", "module"]


def frame(dataset: Dataset) -> pd.DataFrame:
    """Copies and sets of memory by direction and module, the most time first.

    Returns:
        A row per kind, direction and module: ``kind``, ``copy_kind`` (null where not told), ``path`` (null where no
        module owns them), ``copies`` (how many), ``gpu_time_ns``, ``share`` (of all GPU time), ``moved_bytes`` (null
        if the size of one of them is not told) and ``gb_per_s`` (10^9 bytes in a second of their time).
    """
    table = kernels(dataset, ["kind", "copy_kind", "module_id", "dur_ns", "bytes"])
    whole = int(integers(table, "dur_ns").sum())
    kinds = labels(table, "kind")
    rows = np.flatnonzero(np.isin(kinds.code, kinds.of("memcpy", "memset")))
    modules, directions = hierarchy(dataset), labels(table, "copy_kind")
    work = pd.DataFrame(
        {
            "kind": kinds.code[rows],
            "direction": directions.code[rows],
            "module": modules.rows(table)[rows],
            "ns": integers(table, "dur_ns")[rows],
            "moved": integers(table, "bytes", missing=0)[rows],
            "untold": np.asarray(table.column("bytes").is_null())[rows],
        }
    )
    found = work.groupby(_KEYS).agg(
        size=("ns", "size"), ns=("ns", "sum"), moved=("moved", "sum"), untold=("untold", "any")
    )
    found = found.reset_index()
    moved = found["moved"].astype("Int64").mask(found["untold"])
    time = np.asarray(found["ns"], np.int64)
    answer = pd.DataFrame(
        {
            "kind": kinds.named(found["kind"]),
            "copy_kind": directions.named(found["direction"]),
            "path": modules.paths(found["module"].to_numpy()),
            "copies": found["size"].to_numpy(),
            "gpu_time_ns": time,
            "share": share(time, whole),
            "moved_bytes": moved.array,
            # A byte in a nanosecond is 10^9 bytes in a second.
            "gb_per_s": ratio(moved.to_numpy("float64", na_value=np.nan), time),
        }
    )
    return answer.sort_values("gpu_time_ns", ascending=False, kind="stable", ignore_index=True)

"""What was copied or set in memory, by which module, how many bytes and how fast?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tracekit.analyses.devices import kernels
from tracekit.analyses.spread import ratio, share
from tracekit.analyses.subtrees import hierarchy
from tracekit.arrays.columns import integers
from tracekit.arrays.labels import labels

if TYPE_CHECKING:
    from tracekit.dataset.opening import Dataset

NAME = "copies"

_KEYS = ["kind", "direction", "module"]


def frame(dataset: Dataset) -> pd.DataFrame:
    """Copies and sets of memory by direction and module, the most time first.

    Returns:
        A row per kind, direction and module: ``kind``, ``copy_kind`` (null if not recorded), ``path`` (null if the
        copies could not be attributed), ``copies`` (how many), ``gpu_time_ns``, ``share`` (of all GPU time),
        ``moved_bytes`` (null if the size of any of them was not recorded) and ``gb_per_s`` (10^9 bytes per second of
        their own time).
    """
    table = kernels(dataset, ["kind", "copy_kind", "module_id", "dur_ns", "bytes"])
    modules, kinds, directions = hierarchy(dataset), labels(table, "kind"), labels(table, "copy_kind")
    rows = np.flatnonzero(np.isin(kinds.code, kinds.of("memcpy", "memset")))
    copies = pd.DataFrame(
        {
            "kind": kinds.code[rows],
            "direction": directions.code[rows],
            "module": modules.rows(table)[rows],
            "ns": integers(table, "dur_ns")[rows],
            "moved": integers(table, "bytes", null=0)[rows],
            "unsized": np.asarray(table.column("bytes").is_null())[rows],
        }
    )
    groups = _grouped(copies)
    answer = pd.DataFrame(
        {
            "kind": kinds.named(groups["kind"]),
            "copy_kind": directions.named(groups["direction"]),
            "path": modules.paths(groups["module"].to_numpy()),
            "copies": groups["size"].to_numpy(),
            **_figures(groups, int(integers(table, "dur_ns").sum())),
        }
    )
    return answer.sort_values("gpu_time_ns", ascending=False, kind="stable", ignore_index=True)


def _grouped(copies: pd.DataFrame) -> pd.DataFrame:
    """Number, time and bytes of the copies of each kind, direction and module."""
    sums = {"size": ("ns", "size"), "ns": ("ns", "sum"), "moved": ("moved", "sum"), "unsized": ("unsized", "any")}
    return copies.groupby(_KEYS).agg(**sums).reset_index()


def _figures(groups: pd.DataFrame, whole_ns: int) -> dict[str, object]:
    """Time, bytes and bandwidth of each group."""
    moved = groups["moved"].astype("Int64").mask(groups["unsized"])
    time = np.asarray(groups["ns"], np.int64)
    return {
        "gpu_time_ns": time,
        "share": share(time, whole_ns),
        "moved_bytes": moved.array,
        # A byte in a nanosecond is 10^9 bytes in a second.
        "gb_per_s": ratio(moved.to_numpy("float64", na_value=np.nan), time),
    }

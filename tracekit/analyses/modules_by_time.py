"""Where the GPU's time went: every module's own time and that of its whole subtree."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pyarrow.compute as pc

if TYPE_CHECKING:
    import pyarrow as pa

    from tracekit.arrays import Ints
    from tracekit.dataset import Dataset

NAME = "modules"


def frame(dataset: Dataset) -> pd.DataFrame:
    """Modules by the GPU time of their subtree, the most expensive first.

    Returns:
        A row per module: ``path``, ``class_name``, ``depth``, ``calls``, ``kernels`` (of the module itself),
        ``self_ns``, ``inclusive_ns`` (self plus all below) and ``share`` (of all GPU time, known or not).
    """
    modules = dataset.table("modules", ["path", "class_name", "depth", "subtree_end_id"])
    count = modules.num_rows
    kernels = dataset.table("kernels", ["module_id", "dur_ns"])
    owned = _by_module(kernels, "dur_ns", "sum", count)
    running = np.concatenate(([0], np.cumsum(owned)))
    inclusive = running[np.asarray(modules.column("subtree_end_id"))] - running[:-1]
    whole = pc.sum(kernels.column("dur_ns")).as_py() or 0
    found = pd.DataFrame(
        {
            "path": modules.column("path").to_pylist(),
            "class_name": modules.column("class_name").to_pylist(),
            "depth": np.asarray(modules.column("depth")),
            "calls": _by_module(
                dataset.table("calls", ["module_id", "call_id"]), "call_id", "count", count
            ),
            "kernels": _by_module(kernels, "dur_ns", "count", count),
            "self_ns": owned,
            "inclusive_ns": inclusive,
            "share": inclusive / whole if whole else np.zeros(count),
        }
    )
    return found.sort_values("inclusive_ns", ascending=False, kind="stable", ignore_index=True)


def _by_module(table: pa.Table, column: str, function: str, modules: int) -> Ints:
    """One aggregate per module, 0 where it has no rows."""
    grouped = (
        table.filter(table.column("module_id").is_valid())
        .group_by("module_id")
        .aggregate([(column, function)])
    )
    total = np.zeros(modules, dtype=np.int64)
    total[np.asarray(grouped.column("module_id"))] = np.asarray(
        grouped.column(f"{column}_{function}")
    )
    return total

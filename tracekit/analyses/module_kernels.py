"""Which module spent how much in which kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from tracekit.analyses.devices import kernels
from tracekit.analyses.spread import ratio, share
from tracekit.analyses.subtrees import hierarchy, integers
from tracekit.arrays.labels import labels

if TYPE_CHECKING:
    from tracekit.dataset.opening import Dataset

NAME = "module_kernels"

_KEYS = ["module", "name", "kind"]


def frame(dataset: Dataset) -> pd.DataFrame:
    """Time by module (without those below it) and kernel, the most expensive pair first.

    Returns:
        A row per pair: ``path`` (null for work that no module owns), ``class_name``, ``name``, ``kind``, ``kernels``
        (how many), ``gpu_time_ns``, ``share`` (of all GPU time) and ``mean_ns``. The rows add up to all work.
    """
    table = kernels(dataset, ["name", "kind", "module_id", "dur_ns"])
    modules, names, kinds = hierarchy(dataset), labels(table, "name"), labels(table, "kind")
    work = pd.DataFrame(
        {
            "module": modules.rows(table),
            "name": names.code,
            "kind": kinds.code,
            "ns": integers(table, "dur_ns"),
        }
    )
    found = work.groupby(_KEYS)["ns"].agg(["size", "sum"]).reset_index()
    time, rows = found["sum"].to_numpy(), found["module"].to_numpy()
    classes = [*modules.class_name, None]
    answer = pd.DataFrame(
        {
            "path": modules.paths(rows),
            "class_name": [classes[row] for row in rows.tolist()],
            "name": names.named(found["name"]),
            "kind": kinds.named(found["kind"]),
            "kernels": found["size"].to_numpy(),
            "gpu_time_ns": time,
            "share": share(time, int(time.sum())),
            "mean_ns": ratio(time, found["size"].to_numpy()),
        }
    )
    return answer.sort_values("gpu_time_ns", ascending=False, kind="stable", ignore_index=True)

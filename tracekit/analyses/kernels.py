"""Which kernels took the time, and which modules they ran for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tracekit.analyses.devices import kernels
from tracekit.analyses.spread import ratio, share, spread
from tracekit.analyses.subtrees import hierarchy, integers
from tracekit.arrays.labels import labels

if TYPE_CHECKING:
    from tracekit.dataset.opening import Dataset

NAME = "kernels"


def frame(dataset: Dataset) -> pd.DataFrame:
    """Kernels by name, the most expensive first.

    Returns:
        A row per name and kind of work: ``name`` (null where the report tells none), ``kind``, ``kernels`` (how often
        it ran), ``gpu_time_ns``, ``share`` (of all GPU time), ``mean_ns``, ``median_ns``, ``max_ns``, ``modules`` (how
        many ran it), ``module`` (the one that spent most on it; null where no module did) and ``module_share`` (of
        its time, spent by that module).
    """
    table = kernels(dataset, ["name", "kind", "module_id", "dur_ns"])
    modules, names, kinds = hierarchy(dataset), labels(table, "name"), labels(table, "kind")
    work = pd.DataFrame(
        {
            "name": names.code,
            "kind": kinds.code,
            "module": modules.rows(table),
            "ns": integers(table, "dur_ns"),
        }
    )
    grouped = work.groupby(["name", "kind"], sort=False)
    found = grouped.agg(kernels=("ns", "size"), gpu_time_ns=("ns", "sum"), max_ns=("ns", "max"))
    spreads = spread(np.asarray(grouped.ngroup(), np.int64), integers(table, "dur_ns"), len(found))
    users = _users(work).reindex(found.index)
    time = found["gpu_time_ns"].to_numpy()
    answer = pd.DataFrame(
        {
            "name": names.named(found.index.get_level_values("name")),
            "kind": kinds.named(found.index.get_level_values("kind")),
            "kernels": found["kernels"].to_numpy(),
            "gpu_time_ns": time,
            "share": share(time, int(time.sum())),
            "mean_ns": ratio(time, found["kernels"].to_numpy()),
            "median_ns": spreads.quantile(0.5),
            "max_ns": found["max_ns"].to_numpy(),
            "modules": users["modules"].fillna(0).to_numpy("int64"),
            "module": modules.paths(users["module"].fillna(-1).to_numpy("int64")),
            "module_share": ratio(users["ns"].to_numpy("float64", na_value=float("nan")), time),
        }
    )
    return answer.sort_values("gpu_time_ns", ascending=False, kind="stable", ignore_index=True)


def _users(work: pd.DataFrame) -> pd.DataFrame:
    """For each name and kind the number of modules that ran it, and which spent most on it and how much."""
    known = work[work["module"] >= 0]
    times = known.groupby(["name", "kind", "module"])["ns"].sum().reset_index()
    most = times.sort_values("ns", ascending=False, kind="stable").drop_duplicates(["name", "kind"])
    counted = times.groupby(["name", "kind"]).agg(modules=("module", "size"))
    return counted.join(most.set_index(["name", "kind"]))

"""Which kernels took the time, and which modules ran them?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tracekit.analyses.devices import kernels
from tracekit.analyses.fused import whom_they_serve
from tracekit.analyses.portions import portions
from tracekit.analyses.spread import ratio, share, spread
from tracekit.analyses.subtrees import hierarchy
from tracekit.arrays.columns import integers
from tracekit.arrays.labels import labels

if TYPE_CHECKING:
    from tracekit.analyses.spread import Spread
    from tracekit.analyses.subtrees import Hierarchy
    from tracekit.arrays.labels import Labels
    from tracekit.dataset.opening import Dataset

NAME = "kernels"

_KEYS = ["name", "kind"]


def frame(dataset: Dataset) -> pd.DataFrame:
    """Kernels by name, the most GPU time first.

    Returns:
        A row per name and kind of work: ``name`` (null if the report does not name it), ``kind``, ``kernels`` (how many
        ran), ``gpu_time_ns``, ``share`` (of all GPU time), ``mean_ns``, ``median_ns``, ``max_ns``, ``modules`` (how
        many modules ran it), ``module`` (the one that spent the most time on it; null if none could be attributed),
        ``module_share`` (the share of the kernel's time that this module spent) and ``serves`` (of fused kernels the
        modules that they serve, with ``*`` for the numbers of layers, and their shares; null of all others).
    """
    table = kernels(dataset, ["name", "kind", "module_id", "dur_ns"])
    modules, names, kinds = hierarchy(dataset), labels(table, "name"), labels(table, "kind")
    time = integers(table, "dur_ns")
    work = pd.DataFrame({"name": names.code, "kind": kinds.code, "ns": time})
    by_name = work.groupby(_KEYS, sort=False)
    totals = by_name.agg(kernels=("ns", "size"), gpu_time_ns=("ns", "sum"), max_ns=("ns", "max"))
    name, kind = (known.named(totals.index.get_level_values(at)) for at, known in enumerate((names, kinds)))
    serves = whom_they_serve(dataset)
    answer = pd.DataFrame(
        {
            "name": name,
            "kind": kind,
            **_times(totals, spread(np.asarray(by_name.ngroup(), np.int64), time, len(totals))),
            **_users(_by_module(dataset, modules, {"name": names, "kind": kinds}), totals, modules),
            "serves": [serves.get(key) for key in zip(name, kind, strict=True)],
        }
    )
    return answer.sort_values("gpu_time_ns", ascending=False, kind="stable", ignore_index=True)


def _by_module(dataset: Dataset, modules: Hierarchy, keys: dict[str, Labels]) -> pd.DataFrame:
    """The time of names and kinds, which have codes, in each module that their kernels serve."""
    work = portions(dataset, ["name", "kind", "module_id", "dur_ns"])
    codes = {}
    for key, known in keys.items():
        place = {word: code for code, word in enumerate(known.words)}
        own = labels(work, key)
        codes[key] = np.array([*(place[word] for word in own.words), -1], dtype=np.int64)[own.code]
    return pd.DataFrame({**codes, "module": modules.rows(work), "ns": integers(work, "dur_ns")})


def _times(totals: pd.DataFrame, times: Spread) -> dict[str, object]:
    """Number and times of the kernels of each name."""
    time, count = totals["gpu_time_ns"].to_numpy(), totals["kernels"].to_numpy()
    return {
        "kernels": count,
        "gpu_time_ns": time,
        "share": share(time, int(time.sum())),
        "mean_ns": ratio(time, count),
        "median_ns": times.quantile(0.5),
        "max_ns": totals["max_ns"].to_numpy(),
    }


def _users(work: pd.DataFrame, totals: pd.DataFrame, modules: Hierarchy) -> dict[str, object]:
    """How many modules ran the kernels of each name, and which of them spent the most time on it."""
    attributed = work[work["module"] >= 0]
    times = attributed.groupby([*_KEYS, "module"])["ns"].sum().reset_index()
    main = times.sort_values("ns", ascending=False, kind="stable").drop_duplicates(_KEYS).set_index(_KEYS)
    users = times.groupby(_KEYS).agg(modules=("module", "size")).join(main).reindex(totals.index)
    spent = users["ns"].to_numpy("float64", na_value=float("nan"))
    return {
        "modules": users["modules"].fillna(0).to_numpy("int64"),
        "module": modules.paths(users["module"].fillna(-1).to_numpy("int64")),
        "module_share": ratio(spent, totals["gpu_time_ns"].to_numpy()),
    }

"""Which kernels took the time, and which modules ran them?"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from tracekit.analyses.devices import kernels
from tracekit.analyses.each_report import placed, words_at
from tracekit.analyses.fused import whom_they_serve
from tracekit.analyses.portions import portions
from tracekit.analyses.spread import ratio, share, spread
from tracekit.analyses.subtrees import hierarchy
from tracekit.arrays.columns import integers
from tracekit.arrays.labels import labels

if TYPE_CHECKING:
    import pyarrow as pa

    from tracekit.analyses.spread import Spread
    from tracekit.analyses.subtrees import Hierarchy
    from tracekit.arrays.types import Rows
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
    modules, words = hierarchy(dataset), _Words({}, {})
    parts, times_of_modules = [], []
    for part in dataset.by_report():
        table = kernels(part, [*_KEYS, "dur_ns"])
        parts.append(pd.DataFrame({**words.placed(table), "ns": integers(table, "dur_ns")}))
        times_of_modules.append(_by_module(part, modules, words))
    work = pd.concat(parts, ignore_index=True)
    by_name, time = work.groupby(_KEYS, sort=False), work["ns"].to_numpy()
    totals = by_name.agg(kernels=("ns", "size"), gpu_time_ns=("ns", "sum"), max_ns=("ns", "max"))
    name, kind = (words_at(known, totals.index.get_level_values(at).to_numpy()) for at, known in enumerate(words))
    serves = whom_they_serve(dataset)
    answer = pd.DataFrame(
        {
            "name": name,
            "kind": kind,
            **_times(totals, spread(np.asarray(by_name.ngroup(), np.int64), time, len(totals))),
            **_users(pd.concat(times_of_modules, ignore_index=True), totals, modules),
            "serves": [serves.get(key) for key in zip(name, kind, strict=True)],
        }
    )
    return answer.sort_values("gpu_time_ns", ascending=False, kind="stable", ignore_index=True)


class _Words(NamedTuple):
    """The names and kinds of work in all reports, with their places."""

    names: dict[str, int]
    kinds: dict[str, int]

    def placed(self, table: pa.Table) -> dict[str, Rows]:
        """Small numbers for the names and kinds of some work; -1 for null."""
        return {key: placed(known, labels(table, key)).astype(np.int32) for key, known in zip(_KEYS, self, strict=True)}


def _by_module(dataset: Dataset, modules: Hierarchy, words: _Words) -> pd.DataFrame:
    """The time of names and kinds in each module that their kernels serve, in one report."""
    table = portions(dataset, [*_KEYS, "module_id", "dur_ns"])
    columns = {**words.placed(table), "module": modules.rows(table), "ns": integers(table, "dur_ns")}
    work = pd.DataFrame(columns)
    return work.groupby([*_KEYS, "module"], as_index=False).sum() if len(work) else work


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

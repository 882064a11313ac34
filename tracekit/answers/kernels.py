"""Which kernels took the time, and which modules ran them?"""

from __future__ import annotations

import numpy as np
import pandas as pd

from tracekit.aggregates.each_report import Totals, Words
from tracekit.aggregates.spread import Spread, Values, ratio, share
from tracekit.aggregates.subtrees import Hierarchy, hierarchy
from tracekit.aggregates.weighted_kernels import kernels, weighted_kernels, weighted_work
from tracekit.answers.fusions import whom_they_serve
from tracekit.arrays.groups import grouped
from tracekit.arrays.types import Rows
from tracekit.dataset.opening import Dataset
from tracekit.schema.tables import Kernels

NAME = "kernels"
ANSWER = ("name", "gpu_time_ns", "share", "module", "kernels")

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
    modules, work = hierarchy(dataset), _Work()
    for part in dataset.by_report():
        work.add(part, modules)
    totals = work.totals.frame()
    name, kind = work.names.named(totals["name"]), work.kinds.named(totals["kind"])
    serves = whom_they_serve(dataset)
    answer = pd.DataFrame(
        {
            "name": name,
            "kind": kind,
            **_times(totals, work.spread(totals)),
            **_users(work.by_module.frame(), totals.set_index(_KEYS), modules),
            "serves": [serves.get(key) for key in zip(name, kind, strict=True)],
        }
    )
    return answer.sort_values("gpu_time_ns", ascending=False, kind="stable", ignore_index=True)


class _Work:
    """The work of all reports so far, by name and kind."""

    def __init__(self) -> None:
        self.names, self.kinds = Words(), Words()
        self.totals = Totals(_KEYS, {"kernels": "sum", "gpu_time_ns": "sum", "max_ns": "max"}, sort=False)
        self.by_module = Totals([*_KEYS, "module"], {"ns": "sum"})
        self._durations, self._groups = Values(), dict[tuple[int, int], int]()

    def add(self, dataset: Dataset, modules: Hierarchy) -> None:
        """Adds that of a report."""
        table = kernels(dataset, ["kernel_id", "name", "kind", "module_id", "dur_ns"])
        keys, time = self._keys(table), table.dur_ns
        ones = np.ones(time.size, np.int64)
        self.totals.add({**keys, "kernels": ones, "gpu_time_ns": time, "max_ns": time})
        self._durations.add(self._group(keys), time)
        columns = ["name", "kind", "module_id", "dur_ns"]
        work = weighted_work(dataset, table) if dataset.root is None else weighted_kernels(dataset, columns)
        owner = modules.rows_of(work.module_id)
        attributed = np.flatnonzero(owner >= 0)
        rows = {**(keys if work is table else self._keys(work)), "module": owner, "ns": work.dur_ns}
        self.by_module.add({name: values[attributed] for name, values in rows.items()})

    def spread(self, totals: pd.DataFrame) -> Spread:
        """The durations of each name and kind, in the order of the totals."""
        place = {key: at for at, key in enumerate(zip(*(totals[name].tolist() for name in _KEYS), strict=True))}
        return self._durations.spread(len(place), np.array([place[key] for key in self._groups], np.int64))

    def _keys(self, work: Kernels) -> dict[str, Rows]:
        return {"name": self.names.codes(work.name), "kind": self.kinds.codes(work.kind)}

    def _group(self, keys: dict[str, Rows]) -> Rows:
        group, first = grouped([*keys.values()])
        pairs = zip(*(codes[first].tolist() for codes in keys.values()), strict=True)
        return np.array([self._groups.setdefault(pair, len(self._groups)) for pair in pairs], np.int64)[group]


def _times(totals: pd.DataFrame, times: Spread) -> dict[str, object]:
    time, count = totals["gpu_time_ns"].to_numpy(), totals["kernels"].to_numpy()
    return {
        "kernels": count,
        "gpu_time_ns": time,
        "share": share(time, int(time.sum())),
        "mean_ns": ratio(time, count),
        "median_ns": times.quantile(0.5),
        "max_ns": totals["max_ns"].to_numpy(),
    }


def _users(times: pd.DataFrame, totals: pd.DataFrame, modules: Hierarchy) -> dict[str, object]:
    main = times.sort_values("ns", ascending=False, kind="stable").drop_duplicates(_KEYS).set_index(_KEYS)
    users = times.groupby(_KEYS).agg(modules=("module", "size")).join(main).reindex(totals.index)
    spent = users["ns"].to_numpy("float64", na_value=float("nan"))
    return {
        "modules": users["modules"].fillna(0).to_numpy("int64"),
        "module": modules.paths(users["module"].fillna(-1).to_numpy("int64")),
        "module_share": ratio(spent, totals["gpu_time_ns"].to_numpy()),
    }

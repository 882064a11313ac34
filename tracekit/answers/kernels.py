"""Which kernels took the time, and which modules ran them?"""

from __future__ import annotations

import numpy as np
import pandas as pd

from tracekit.aggregates.each_report import Totals
from tracekit.aggregates.spread import Values, ratio, share
from tracekit.aggregates.subtrees import hierarchy
from tracekit.aggregates.weighted_kernels import served_kernels, weighted_kernels, weighted_work
from tracekit.answers.fusions import Named, whom_they_serve
from tracekit.arrays.groups import grouped
from tracekit.arrays.types import Rows
from tracekit.dataset.opening import Dataset
from tracekit.schema.tables import Kernels

NAME = "kernels"
ANSWER = ("name", "gpu_time_ns", "share", "module", "kernels")

_COLUMNS = ["name", "kind", "module_id", "dur_ns"]


def frame(dataset: Dataset) -> pd.DataFrame:
    """Kernels by name, the most GPU time first.

    Returns:
        A row per name and kind of work: ``name`` (null if the report does not name it), ``kind``, ``kernels`` (how many
        ran), ``gpu_time_ns``, ``share`` (of all GPU time), ``mean_ns``, ``median_ns``, ``max_ns``, ``modules`` (how
        many modules ran it), ``module`` (the one that spent the most time on it; null if none could be attributed),
        ``module_share`` (the share of the kernel's time that this module spent) and ``serves`` (of fused kernels the
        modules that they serve, with ``*`` for the numbers of layers, and their shares; null of all others). Of a
        subtree, times of fused kernels are the portions for its modules.
    """
    modules, groups, durations = hierarchy(dataset), dict[Named, int](), Values()
    by_module = Totals(("kernel", "module"), ("ns",))
    for part in dataset.by_report():
        table = served_kernels(part, ["kernel_id", *_COLUMNS])
        kernel = _numbers(groups, table)
        durations.add(kernel, table.dur_ns)
        work = weighted_work(part, table) if part.root is None else weighted_kernels(part, _COLUMNS)
        owner = modules.rows_of(work.module_id)
        rows = {"kernel": kernel if work is table else _numbers(groups, work), "module": owner, "ns": work.dur_ns}
        by_module.add({name: values[owner >= 0] for name, values in rows.items()})
    each, pairs, serves = durations.spread(len(groups)), by_module.frame(), whom_they_serve(dataset)
    by_kernel = pairs.groupby("kernel")["ns"]
    main = pairs.loc[by_kernel.idxmax()].set_index("kernel").assign(modules=by_kernel.size())
    users, time = main.reindex(range(len(groups))), each.total()
    answer = pd.DataFrame(
        {
            "name": [name for name, _ in groups],
            "kind": [kind for _, kind in groups],
            "kernels": each.size,
            "gpu_time_ns": time,
            "share": share(time, int(time.sum())),
            "mean_ns": each.mean(),
            "median_ns": each.quantile(0.5),
            "max_ns": each.greatest(),
            "modules": users["modules"].fillna(0).to_numpy("int64"),
            "module": modules.paths(users["module"].fillna(-1).to_numpy("int64")),
            "module_share": ratio(users["ns"].to_numpy("float64", na_value=np.nan), time),
            "serves": [*map(serves.get, groups)],
        }
    )
    return answer.sort_values("gpu_time_ns", ascending=False, kind="stable", ignore_index=True)


def _numbers(groups: dict[Named, int], work: Kernels) -> Rows:
    """The number of each kernel's name and kind, in the order in which these are met."""
    names, kinds = work.name, work.kind
    group, first = grouped((names.code, kinds.code))
    keys = [*zip(names.named(names.code[first]), kinds.named(kinds.code[first]), strict=True)]
    for at in np.argsort(first).tolist():
        groups.setdefault(keys[at], len(groups))
    return np.array([groups[key] for key in keys], np.int64)[group]

"""How much NCCL time is exposed, and how much of it overlaps other kernels?"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from tracekit.analyses.each_report import Totals, Words
from tracekit.analyses.spread import share
from tracekit.analyses.subtrees import Hierarchy, hierarchy
from tracekit.analyses.weighted_kernels import DEVICE_TIMES, Axis, axis, kernels
from tracekit.arrays.codes import labels
from tracekit.arrays.columns import integers
from tracekit.arrays.intervals import covered
from tracekit.arrays.types import Flags, Ints
from tracekit.dataset.opening import Dataset

NAME = "communication"
ANSWER = ("path", "exposed_ns", "overlapped_ns", "gpu_time_ns", "name")

_KEYS = ["name", "module"]
_NCCL = "nccl"


def frame(dataset: Dataset) -> pd.DataFrame:
    """NCCL kernels by name and module, the most exposed time first.

    A kernel belongs to NCCL if its name shows it, or if the innermost range around its launch is in NCCL's domain.

    Returns:
        A row per name and module: ``name``, ``path`` (null if the kernels could not be attributed), ``kernels``,
        ``gpu_time_ns``, ``share`` (of all GPU time), ``exposed_ns`` (the part of that time in which the device ran no
        other kernel; copies and NCCL's own kernels do not count) and ``overlapped_ns`` (the rest).
    """
    modules, names, whole_ns = hierarchy(dataset), Words(), 0
    sums = Totals(_KEYS, dict.fromkeys(("ns", "exposed", "kernels"), "sum"))
    for part in dataset.by_report():
        columns, time_ns = _of_one(part, modules, names)
        sums.add(columns)
        whole_ns += time_ns
    totals = sums.frame()
    answer = pd.DataFrame(
        {
            "name": names.named(totals["name"]),
            "path": modules.paths(totals["module"].to_numpy()),
            "kernels": totals["kernels"],
            "gpu_time_ns": totals["ns"],
            "share": share(totals["ns"].to_numpy(), whole_ns),
            "exposed_ns": totals["exposed"],
            "overlapped_ns": totals["ns"] - totals["exposed"],
        }
    )
    return answer.sort_values("exposed_ns", ascending=False, kind="stable", ignore_index=True)


def _of_one(dataset: Dataset, modules: Hierarchy, words: Words) -> tuple[dict[str, Ints], int]:
    table, is_nccl, exposed = communication(dataset, ["name", "module_id", "dur_ns"])
    names, owner, time = labels(table, "name"), modules.rows(table), integers(table, "dur_ns")
    in_root = np.ones(owner.size, bool) if dataset.root is None else owner >= 0
    rows = np.flatnonzero(is_nccl & in_root)
    columns = {
        "name": words.codes(names)[rows],
        "module": owner[rows],
        "ns": time[rows],
        "exposed": exposed[rows],
        "kernels": np.ones(rows.size, np.int64),
    }
    return columns, int(time[in_root].sum())


class Communication(NamedTuple):
    """All work, which is of NCCL, and of that the time in which its device computed nothing else."""

    table: pa.Table
    is_nccl: Flags
    exposed_ns: Ints


def communication(dataset: Dataset, columns: list[str]) -> Communication:
    """The communication of the whole dataset, also outside its root, with some columns of ``kernels``."""
    whole = dataset.whole
    table = kernels(whole, list(dict.fromkeys([*columns, "name", "kind", "range_id", *DEVICE_TIMES])))
    is_nccl, kinds = nccl_work(whole, table), labels(table, "kind")
    copies = np.isin(kinds.code, kinds.of("memcpy", "memset"))
    return Communication(table, is_nccl, _exposed(axis(whole, table), is_nccl, ~copies & ~is_nccl))


def nccl_work(dataset: Dataset, table: pa.Table) -> Flags:
    """Which rows are kernels of NCCL, by their names or by the domain of the range around their launch.

    The table has ``kind``, ``name`` and ``range_id``.
    """
    kinds, names = labels(table, "kind"), labels(table, "name")
    on_device = ~np.isin(kinds.code, kinds.of("cpu_op"))
    by_name: Flags = on_device & np.isin(names.code, names.containing(_NCCL))
    ranges = dataset.table("ranges", ["range_id", "domain"])
    domains = labels(ranges, "domain")
    in_domain = np.isin(domains.code, domains.of("NCCL"))
    if not in_domain.any():
        return by_name
    by_range: Flags = np.isin(integers(table, "range_id"), integers(ranges, "range_id")[in_domain])
    return by_name | (on_device & by_range)


def _exposed(work: Axis, is_nccl: Flags, computes: Flags) -> Ints:
    computing = covered(work.start[computes], work.end[computes])
    start, end = work.start[is_nccl], work.end[is_nccl]
    exposed = np.zeros(work.start.size, dtype=np.int64)
    exposed[is_nccl] = (end - start) - (computing.until(end) - computing.until(start))
    return exposed

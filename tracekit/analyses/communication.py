"""What ranks said to each other, and how much of it other work did not hide."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from tracekit.analyses.devices import WHERE, axis, covered, kernels
from tracekit.analyses.spread import share
from tracekit.analyses.subtrees import hierarchy, integers
from tracekit.arrays.labels import labels

if TYPE_CHECKING:
    import pyarrow as pa

    from tracekit.analyses.devices import Axis
    from tracekit.arrays.labels import Labels
    from tracekit.arrays.types import Flags, Ints
    from tracekit.dataset.opening import Dataset

NAME = "communication"

_KEYS = ["name", "module"]
_NCCL = "nccl"


def frame(dataset: Dataset) -> pd.DataFrame:
    """Kernels of NCCL by name and module, the most time that nothing hides first.

    A kernel is NCCL's if its name says so, or the innermost range around its launch is of NCCL's domain.

    Returns:
        A row per name and module: ``name``, ``path`` (null where no module owns them), ``kernels``, ``gpu_time_ns``,
        ``share`` (of all GPU time), ``exposed_ns`` (part of that time in which its device ran no other kernel that is
        not NCCL's; copies hide nothing) and ``overlapped_ns`` (the rest).
    """
    table, talking, exposed = talk(dataset, ["name", "module_id", "dur_ns"])
    modules, names = hierarchy(dataset), labels(table, "name")
    owner = modules.rows(table)
    asked = np.ones(owner.size, bool) if dataset.root is None else owner >= 0
    time = integers(table, "dur_ns")
    rows = np.flatnonzero(talking & asked)
    work = pd.DataFrame(
        {
            "name": names.code[rows],
            "module": owner[rows],
            "ns": time[rows],
            "exposed": exposed[rows],
        }
    )
    found = work.groupby(_KEYS).agg(size=("ns", "size"), ns=("ns", "sum"), exposed=("exposed", "sum"))
    found = found.reset_index()
    spent = found["ns"].to_numpy()
    answer = pd.DataFrame(
        {
            "name": names.named(found["name"]),
            "path": modules.paths(found["module"].to_numpy()),
            "kernels": found["size"].to_numpy(),
            "gpu_time_ns": spent,
            "share": share(spent, int(time[asked].sum())),
            "exposed_ns": found["exposed"].to_numpy(),
            "overlapped_ns": spent - found["exposed"].to_numpy(),
        }
    )
    return answer.sort_values("exposed_ns", ascending=False, kind="stable", ignore_index=True)


class Talk(NamedTuple):
    """All work of a dataset, of whatever module, and which of it is communication.

    Attributes:
        table: Columns of ``kernels``.
        talking: Which rows are NCCL's.
        exposed: For each of these how much of it nothing hides, in ns; 0 for the others.
    """

    table: pa.Table
    talking: Flags
    exposed: Ints


def talk(dataset: Dataset, columns: list[str]) -> Talk:
    """What of a dataset's work, also outside of its root, is communication.

    Args:
        dataset: The dataset, or a subtree of it.
        columns: Which of ``kernels`` the table must have.
    """
    whole = dataset.whole
    table = kernels(whole, list(dict.fromkeys([*columns, "name", "kind", "range_id", *WHERE])))
    talking = _is_nccl(whole, table, labels(table, "name"))
    return Talk(table, talking, _exposed(axis(whole, table), talking, _computing(table) & ~talking))


def _is_nccl(dataset: Dataset, table: pa.Table, names: Labels) -> Flags:
    kinds = labels(table, "kind")
    on_device = ~np.isin(kinds.code, kinds.of("cpu_op"))
    by_name: Flags = on_device & np.isin(names.code, names.containing(_NCCL))
    ranges = dataset.table("ranges", ["range_id", "domain"])
    domains = labels(ranges, "domain")
    nccl = np.isin(domains.code, domains.of("NCCL"))
    if not nccl.any():
        return by_name
    around = integers(table, "range_id", missing=-1)
    inside: Flags = np.isin(around, integers(ranges, "range_id")[nccl])
    return by_name | (on_device & inside)


def _computing(table: pa.Table) -> Flags:
    kinds = labels(table, "kind")
    found: Flags = ~np.isin(kinds.code, kinds.of("memcpy", "memset"))
    return found


def _exposed(on: Axis, talking: Flags, computing: Flags) -> Ints:
    """How much of each piece of work that talks has no computing beside it; 0 for the others."""
    hiding = covered(on.start[computing], on.end[computing])
    start, end = on.start[talking], on.end[talking]
    exposed = np.zeros(on.start.size, dtype=np.int64)
    exposed[talking] = (end - start) - (hiding.until(end) - hiding.until(start))
    return exposed

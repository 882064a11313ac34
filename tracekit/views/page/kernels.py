"""Kernels on the page: those of the most time, and how much each module and line spent on each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from tracekit.analyses import kernels as kernels_by_time, module_kernels as kernels_by_module
from tracekit.views.page import limits
from tracekit.views.page.limits import clipped

if TYPE_CHECKING:
    from tracekit.analyses.subtrees import Hierarchy
    from tracekit.arrays.types import Ints, Rows
    from tracekit.dataset.opening import Dataset
    from tracekit.views.page.nodes import Nodes

#: Work whose module is not on the page, nor one above it; -1 is work of no module.
_ELSEWHERE = -2
_FIGURES = ("kernels", "gpu_time_ns", "mean_ns", "median_ns", "max_ns", "modules")


def kernels(dataset: Dataset, modules: Hierarchy, nodes: Nodes) -> dict[str, Any]:
    """Kernels by time, with their pairs.

    Returns:
        ``name``, ``kind`` and figures of each kernel; ``left_out`` kernels and ``left_out_ns``; and two lists of pairs,
        ``of_modules`` and ``of_lines``, with the columns ``node`` (-1 for work of no module, -2 for work of a module
        that is not on the page), ``kernel``, ``kernels`` and ``gpu_time_ns``. Work of a module that is not on the page
        belongs to the nearest one above it that is. Kernels that are on the page have all their pairs.
    """
    found = kernels_by_time.frame(dataset)
    pairs = kernels_by_module.frame(dataset)
    kernel, owner = _kernel_of(found, pairs), _owner_of(modules, pairs)
    sides = {
        name: _pairs(pairs, kernel, _placed(owner, place))
        for name, place in (("of_modules", nodes.module), ("of_lines", nodes.line))
    }
    count = min(len(found), limits.KERNELS, *(_fitting(side) for side in sides.values()))
    shown, rest = found.head(count), found.iloc[count:]
    values = shown[list(_FIGURES)].astype(object)
    return {
        "name": [None if name is None else clipped(name) for name in shown["name"]],
        "kind": shown["kind"].tolist(),
        **{name: values[name].tolist() for name in _FIGURES},
        "left_out": len(rest),
        "left_out_ns": int(rest["gpu_time_ns"].sum()),
        **{name: _columns(side[side["kernel"] < count]) for name, side in sides.items()},
    }


def _kernel_of(found: pd.DataFrame, pairs: pd.DataFrame) -> Ints:
    """The row of the kernel of each pair."""
    keys = pd.MultiIndex.from_frame(found[["name", "kind"]].fillna(""))
    wanted = pd.MultiIndex.from_frame(pairs[["name", "kind"]].fillna(""))
    return np.asarray(keys.get_indexer(wanted), np.int64)


def _owner_of(modules: Hierarchy, pairs: pd.DataFrame) -> Rows:
    """The row of the module of each pair, -1 for none."""
    row = {path: at for at, path in enumerate(modules.path)}
    return np.array([row.get(path, -1) for path in pairs["path"]], dtype=np.int64)


def _placed(owner: Rows, place: Rows) -> Rows:
    known = owner >= 0
    found = np.full(owner.size, -1, dtype=np.int64)
    found[known] = np.where(place[owner[known]] >= 0, place[owner[known]], _ELSEWHERE)
    return found


def _pairs(pairs: pd.DataFrame, kernel: Ints, node: Rows) -> pd.DataFrame:
    work = pairs[["kernels", "gpu_time_ns"]].assign(node=node, kernel=kernel)
    return work.groupby(["kernel", "node"], sort=True).sum().reset_index()


def _fitting(pairs: pd.DataFrame) -> int:
    """How many kernels, from the first on, have no more pairs than fit."""
    together = np.cumsum(np.bincount(pairs["kernel"])) if len(pairs) else np.empty(0)
    return int(np.searchsorted(together, limits.PAIRS, side="right"))


def _columns(pairs: pd.DataFrame) -> dict[str, list[int]]:
    return {str(name): pairs[name].tolist() for name in ("node", "kernel", "kernels", "gpu_time_ns")}

"""Kernels on the page: those with the most time, how much of it each module and line has, and how durations spread."""

from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from tracekit.aggregates.phase_times import PHASES
from tracekit.aggregates.subtrees import Hierarchy
from tracekit.answers import kernels as kernels_by_time, module_kernels as kernels_by_module
from tracekit.answers.fusions import Fused, fused
from tracekit.answers.lines import by_module as lines_by_module
from tracekit.arrays.codes import lookup, positions
from tracekit.arrays.types import Ints, Rows
from tracekit.dataset.opening import Dataset
from tracekit.schema.tables import Calls, Kernels
from tracekit.views.formatting import lists_of
from tracekit.views.page import limits
from tracekit.views.page.limits import clipped
from tracekit.views.page.nodes import Nodes

#: Node of work whose module and ancestors are not on the page; -1 is the node of work without a module.
_ELSEWHERE = -2
_FIGURES = ("kernels", "gpu_time_ns", "mean_ns", "median_ns", "max_ns", "modules")
_OF_LINES = ("node", "source", "kernels", "gpu_ns")
#: Bins of a power of ten while counting, each 5 % longer than the one before; up to a thousand seconds.
_FINE, _POWERS = 48, 12
_BINS = _FINE * _POWERS
_LEAST_COUNT = 8


def kernels(dataset: Dataset, modules: Hierarchy, nodes: Nodes, phases: list[str]) -> dict[str, Any]:
    """Kernels by time, and pairs of a node of the tree and a kernel that ran for it.

    Returns:
        ``name``, ``kind``, figures of each kernel and, if it is fused, whom it ``serves``; ``durations`` (histograms);
        ``left_out`` kernels and ``left_out_ns``; and two lists of pairs, ``of_modules`` and ``of_lines``, with the
        columns ``node`` (-1 for work without a module, -2 for work of a module that is not on the page), ``kernel``,
        ``kernels``, ``gpu_time_ns`` and, if there are any, ``phase`` (its place in ``phases``, or -1). Work of a module
        that is not on the page counts for its nearest ancestor that is. Kernels on the page have all their pairs. A
        fused kernel is one of each module that it serves, and one of each subtree: what holds several of these modules
        takes the others back.
    """
    by_time = kernels_by_time.frame(dataset)
    pairs = kernels_by_module.frame(dataset, phases=True) if phases else kernels_by_module.frame(dataset)
    places = {name: at for at, name in enumerate(phases)}
    pairs["phase"] = [places.get(name, -1) for name in pairs["phase"]] if phases else -1
    row_of = {path: row for row, path in enumerate(modules.path)}
    owner = np.array([row_of.get(path, -1) for path in pairs["path"]], np.int64)
    kernel, shared, by_node = _kernel_of(by_time, pairs), fused(dataset), {}
    for name, place in (("modules", nodes.module), ("lines", nodes.line)):
        repeats = _repeats(shared, by_time, place, nodes.data[name]["parent"])
        repeats["phase"] = [places.get(PHASES[phase], -1) for phase in repeats["phase"]]
        work = pd.concat([pairs.assign(node=_placed(owner, place), kernel=kernel)[repeats.columns], repeats])
        by_node[f"of_{name}"] = work.groupby(["kernel", "node", "phase"], sort=True).sum().reset_index()
    count = min(len(by_time), limits.KERNELS, *map(_fitting, by_node.values()))
    shown, rest = by_time.head(count), by_time.iloc[count:]
    columns = ["node", "kernel", "kernels", "gpu_time_ns", *(["phase"] if phases else [])]
    keys = [(name if isinstance(name, str) else None, kind) for name, kind in shown[["name", "kind"]].to_numpy()]
    return {
        "durations": _durations(dataset, modules, nodes, keys),
        "name": _texts(shown["name"], limits.NAME),
        "kind": shown["kind"].tolist(),
        **lists_of(shown[[*_FIGURES]]),
        "serves": _texts(shown["serves"], limits.TEXT),
        "left_out": len(rest),
        "left_out_ns": int(rest["gpu_time_ns"].sum()),
        **{name: lists_of(sums.loc[sums["kernel"] < count, columns]) for name, sums in by_node.items()},
    }


def lines(dataset: Dataset, modules: Hierarchy, nodes: Nodes) -> dict[str, Any]:
    """The lines of Python that launched the work with the most time, and how much of it for each node of the tree.

    Returns:
        ``texts``; and two lists of pairs, ``of_modules`` and ``of_lines``, with the columns ``node``, ``source`` (a row
        of the texts), ``kernels`` and ``gpu_ns``, as of kernels.
    """
    texts, pairs = lines_by_module(dataset, modules)
    pairs = pairs[pairs["source"] >= 0].rename(columns={"module": "owner"})
    by_time = pairs.groupby("source")["gpu_ns"].sum().sort_values(ascending=False, kind="stable").index
    rank = np.empty(len(texts), np.int64)
    rank[by_time] = np.arange(len(by_time))
    pairs["source"] = rank[pairs["source"]]
    data: dict[str, Any] = {"texts": [clipped(texts[row], limits.NAME) for row in by_time[: limits.LINES].tolist()]}
    for name, place in (("modules", nodes.module), ("lines", nodes.line)):
        listed = pairs.assign(node=_placed(pairs["owner"].to_numpy(), place))[pairs["source"] < limits.LINES]
        sums = listed.groupby(["source", "node"])[["kernels", "gpu_ns"]].sum().reset_index().head(limits.PAIRS)
        data[f"of_{name}"] = lists_of(sums[[*_OF_LINES]])
    return data


def _texts(column: pd.Series, most: int) -> list[str | None]:
    return [clipped(text, most) if isinstance(text, str) else None for text in column]


def _kernel_of(by_time: pd.DataFrame, pairs: pd.DataFrame) -> Ints:
    kernels, of_pairs = (pd.MultiIndex.from_frame(frame[["name", "kind"]].fillna("")) for frame in (by_time, pairs))
    return np.asarray(kernels.get_indexer(of_pairs), np.int64)


def _placed(owner: Rows, place: Rows) -> Rows:
    node = lookup(place, owner)
    return np.where((owner >= 0) & (node < 0), _ELSEWHERE, node)


def _repeats(shared: list[Fused], by_time: pd.DataFrame, place: Rows, parent: list[int]) -> pd.DataFrame:
    """Pairs without time, and a negative number of kernels: fused ones that a subtree would count more than once."""
    rows = [
        (*row.kernel, row.phase, _around(node, later, parent), -row.kernels, 0)
        for row in shared
        for node, later in pairwise(sorted(place[list(row.modules)].tolist()))
    ]
    repeats = pd.DataFrame(rows, columns=["name", "kind", "phase", "node", "kernels", "gpu_time_ns"])
    repeats["kernel"] = _kernel_of(by_time, repeats)
    return repeats.drop(columns=["name", "kind"])


def _around(node: int, other: int, parent: list[int]) -> int:
    while node != other:
        node, other = (parent[node], other) if node > other else (node, parent[other])
    return node if node >= 0 else _ELSEWHERE


def _fitting(pairs: pd.DataFrame) -> int:
    """How many kernels, from the first on, have no more pairs than the page has room for."""
    running = np.cumsum(np.bincount(pairs["kernel"])) if len(pairs) else np.empty(0)
    return int(np.searchsorted(running, limits.PAIRS, side="right"))


def _durations(
    dataset: Dataset, modules: Hierarchy, nodes: Nodes, kernels: list[tuple[str | None, str]]
) -> dict[str, list[dict[str, Any]]]:
    """Histograms of ``kernels`` (by name and kind) and of the ``modules`` and ``lines`` on the page.

    Returns:
        Lists of ``of`` (a place among the kernels, modules or lines), ``from_ns`` and ``until_ns`` (the edges of the
        bins, of which each is longer than the one before by the same factor) and ``counts``. Calls without device
        work, and calls during graph captures, whose work is that of all replays, are not counted; nor is there a
        histogram of few values, or of values that hardly differ.
    """
    place = positions(np.arange(len(modules.path)), nodes.rows)
    of_kernels = _Histograms(len(kernels))
    of_modules, of_lines = (_Histograms(len(nodes.data[name]["name"])) for name in ("modules", "lines"))
    at = {key: row for row, key in enumerate(kernels)}
    for part in dataset.by_report():
        work = part.rows(Kernels, ["name", "kind", "dur_ns"])
        names, kinds = work.name, work.kind
        listed = [at.get((name, kind), -1) for name in (*names.words, None) for kind in kinds.words]
        code = np.where(names.code < 0, len(names.words), names.code) * len(kinds.words) + kinds.code
        of_kernels.add(np.array([*listed, -1], np.int64)[code], work.dur_ns)
        calls = part.rows(Calls, ["module_id", "gpu_time_ns", "phase"])
        counted = ~calls.phase.among("capture")
        module, time = modules.rows_of(calls.module_id)[counted], calls.gpu_time_ns[counted]
        of_modules.add(place[module], time)
        of_lines.add(nodes.line[module], time)
    return {"kernels": of_kernels.rows(), "modules": of_modules.rows(), "lines": of_lines.rows()}


class _Histograms:
    def __init__(self, groups: int) -> None:
        self._counts = np.zeros((groups, _BINS), dtype=np.int64)

    def add(self, group: Rows, ns: Ints) -> None:
        counted = (group >= 0) & (ns > 0)
        group, ns = group[counted], ns[counted]
        fine = np.minimum(np.log10(ns) * _FINE, _BINS - 1).astype(np.int64)
        number = np.bincount(group * _BINS + fine, minlength=self._counts.size)
        self._counts += number.reshape(self._counts.shape)

    def rows(self) -> list[dict[str, Any]]:
        enough = np.flatnonzero(self._counts.sum(axis=1) >= _LEAST_COUNT).tolist()
        rows = [_histogram(group, self._counts[group]) for group in enough if np.count_nonzero(self._counts[group]) > 1]
        time = self._counts @ 10 ** (np.arange(_BINS) / _FINE)
        return sorted(rows, key=lambda row: -time[row["of"]])[: limits.HISTOGRAMS]


def _histogram(group: int, counts: Ints) -> dict[str, Any]:
    used = np.flatnonzero(counts)
    first, end = int(used[0]), int(used[-1]) + 1
    wide = -(-(end - first) // limits.BINS)
    coarse = np.add.reduceat(counts[first:end], np.arange(0, end - first, wide))
    edges = [round(10 ** (fine / _FINE)) for fine in (first, first + wide * coarse.size)]
    return {"of": group, "from_ns": edges[0], "until_ns": edges[1], "counts": coarse.tolist()}

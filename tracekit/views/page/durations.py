"""How durations spread: those of each kernel, and the device time of the calls of each module and line of the tree."""

from typing import Any

import numpy as np

from tracekit.aggregates.subtrees import Hierarchy
from tracekit.arrays.codes import positions
from tracekit.arrays.types import Ints, Rows
from tracekit.dataset.opening import Dataset
from tracekit.schema.tables import Calls, Kernels
from tracekit.views.page import limits
from tracekit.views.page.nodes import Nodes

#: Bins of a power of ten while counting, each 5 % longer than the one before; up to a thousand seconds.
_FINE, _POWERS = 48, 12
_BINS = _FINE * _POWERS
_LEAST_COUNT = 8
_CAPTURE = "capture"


def durations(
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
        of_kernels.add(*_work(part, at))
        module, time = _calls(part, modules)
        of_modules.add(place[module], time)
        of_lines.add(nodes.line[module], time)
    return {"kernels": of_kernels.rows(), "modules": of_modules.rows(), "lines": of_lines.rows()}


def _work(dataset: Dataset, at: dict[tuple[str | None, str], int]) -> tuple[Rows, Ints]:
    work = dataset.rows(Kernels, ["name", "kind", "dur_ns"])
    names, kinds = work.name, work.kind
    listed = [at.get((name, kind), -1) for name in (*names.words, None) for kind in kinds.words]
    code = np.where(names.code < 0, len(names.words), names.code) * len(kinds.words) + kinds.code
    return np.array([*listed, -1], np.int64)[code], work.dur_ns


def _calls(dataset: Dataset, modules: Hierarchy) -> tuple[Rows, Ints]:
    calls = dataset.rows(Calls, ["module_id", "gpu_time_ns", "phase"])
    counted = ~calls.phase.among(_CAPTURE)
    return modules.rows_of(calls.module_id)[counted], calls.gpu_time_ns[counted]


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
        rows = [_row(group, self._counts[group]) for group in enough if np.count_nonzero(self._counts[group]) > 1]
        time = self._counts @ 10 ** (np.arange(_BINS) / _FINE)
        return sorted(rows, key=lambda row: -time[row["of"]])[: limits.HISTOGRAMS]


def _row(group: int, counts: Ints) -> dict[str, Any]:
    used = np.flatnonzero(counts)
    first, end = int(used[0]), int(used[-1]) + 1
    wide = -(-(end - first) // limits.BINS)
    coarse = np.add.reduceat(counts[first:end], np.arange(0, end - first, wide))
    edges = [round(10 ** (fine / _FINE)) for fine in (first, first + wide * coarse.size)]
    return {"of": group, "from_ns": edges[0], "until_ns": edges[1], "counts": coarse.tolist()}

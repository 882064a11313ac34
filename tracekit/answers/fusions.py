"""Which modules' work was fused into one kernel, and what crossed the borders of modules?"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from tracekit.aggregates.phase_times import phase_rows
from tracekit.aggregates.spread import ratio, share
from tracekit.aggregates.subtrees import Hierarchy, hierarchy, patterns, series
from tracekit.aggregates.weighted_kernels import divided, first_of_kernel, kernels, shared_kernels, weighted_kernels
from tracekit.arrays.codes import codes, joint
from tracekit.arrays.groups import counts, sums_by
from tracekit.arrays.text import percent
from tracekit.dataset.opening import Dataset
from tracekit.schema.tables import KernelModules

NAME = "fusions"
ANSWER = ("fused", "within", "share", "crosses", "gpu_time_ns")

_COLUMNS = (
    *("within", "fused", "share", "crosses", "gpu_time_ns", "kernels", "name", "mean_ns"),
    *("kind", "sets", "example"),
)
#: What is crossed: numbered siblings, other siblings or roots, a module and what is inside it.
_LAYERS, _SIBLINGS, _INSIDE = "layers", "siblings", "inside"
#: A kernel by its name and kind.
Named = tuple[str | None, str | None]
#: What rows of the answer differ in, with patterns of modules: kernel, ``within``, ``fused`` and ``crosses``.
_Key = tuple[Named, str | None, frozenset[str], str]
#: How many modules a text names.
_MOST_NAMED = 6


class Fused(NamedTuple):
    """Kernels of one name and phase that serve the same modules: the rows and time of each, and how many kernels."""

    kernel: Named
    phase: int
    modules: tuple[int, ...]
    time_ns: tuple[int, ...]
    kernels: int


def fused(dataset: Dataset) -> list[Fused]:
    """The fused kernels of a whole dataset, by name, kind, phase and the modules that they serve."""
    modules: Hierarchy | None = None
    found: dict[tuple[Named, int, tuple[int, ...]], Fused] = {}
    for part in dataset.by_report():
        shared = shared_kernels(part)
        if len(shared):
            modules = hierarchy(dataset) if modules is None else modules
            for row in _of_report(part, shared, modules):
                key = row.kernel, row.phase, row.modules
                before = found.get(key, row._replace(time_ns=(0,) * len(row.modules), kernels=0))
                time_ns = tuple(map(sum, zip(before.time_ns, row.time_ns, strict=True)))
                found[key] = row._replace(time_ns=time_ns, kernels=before.kernels + row.kernels)
    return [*found.values()]


def _of_report(dataset: Dataset, shared: KernelModules, modules: Hierarchy) -> list[Fused]:
    work = kernels(dataset, ["kernel_id", "name", "kind", "module_id", "dur_ns", "phase"])
    inside = np.isin(work.kernel_id, shared.kernel_id)
    work = divided(work.filter(inside), shared)
    kernel = work.kernel_id
    first = np.flatnonzero(first_of_kernel(kernel))
    names, kinds = work.name, work.kind
    module, phase = modules.rows_of(work.module_id), phase_rows(work.phase)[first]
    sets = pa.ListArray.from_arrays(pa.array(np.append(first, module.size), pa.int32()), pa.array(module))
    alike = joint((names.code[first] + 1, kinds.code[first] + 1, phase, codes(sets)))
    _, example, group = np.unique(alike, return_index=True, return_inverse=True)
    number = counts(group, example.size)
    size = np.diff(np.append(first, kernel.size))
    (of, inner), (time,) = sums_by((np.repeat(group, size), module), (work.dur_ns,))
    ends = np.searchsorted(of, np.arange(example.size + 1))
    named = zip(names.named(names.code[first[example]]), kinds.named(kinds.code[first[example]]), strict=True)
    rows = zip(named, phase[example].tolist(), pairwise(ends.tolist()), number.tolist(), strict=True)
    return [
        Fused(name, of_phase, tuple(inner[low:high].tolist()), tuple(time[low:high].tolist()), count)
        for name, of_phase, (low, high), count in rows
    ]


def whom_they_serve(dataset: Dataset) -> dict[Named, str]:
    """Whom fused kernels of each name serve: ``top.layers.*.norm 75.0 %, top.layers.* 25.0 %``."""
    known = patterns(hierarchy(dataset.whole))
    time: dict[Named, dict[str, int]] = {}
    for row in fused(dataset.whole):
        of_kernel = time.setdefault(row.kernel, {})
        for module, spent in zip(row.modules, row.time_ns, strict=True):
            of_kernel[known[module]] = of_kernel.get(known[module], 0) + spent
    return {kernel: _shares_text(of_kernel) for kernel, of_kernel in time.items()}


def _shares_text(time: dict[str, int]) -> str:
    whole = sum(time.values())
    ranked = sorted(time.items(), key=lambda item: -item[1])
    texts = [f"{name} {percent(spent / whole)}" if whole else name for name, spent in ranked]
    more = len(texts) - _MOST_NAMED
    return ", ".join([*texts[:_MOST_NAMED], *([f"{more:,} more"] if more > 0 else [])])


def frame(dataset: Dataset) -> pd.DataFrame:
    """Fused kernels by the modules that they serve, the most time first. Layers that are alike share a row.

    Args:
        dataset: The dataset, or a subtree of one: then only kernels that serve a module of it, with only its time.

    Returns:
        A row per kernel and modules: ``within`` (the innermost module that all of them are, or are part of; null if
        there is none), ``fused`` (these modules, below ``within``, with their shares of the time; ``*`` stands for the
        numbers of layers that share the row), ``share`` (of all GPU time), ``crosses`` (which borders were crossed:
        ``layers`` between numbered siblings, as the addition at the end of one layer and the norm of the next, whatever
        else was; ``siblings`` between others; ``inside`` between a module and one inside it), ``gpu_time_ns``,
        ``kernels`` (how many), ``name``, ``mean_ns``, ``kind``, ``sets`` (how many different sets of modules share the
        row) and ``example`` (the paths of one of them). The times add up to those of all work that serves several
        modules.
    """
    modules = hierarchy(dataset.whole)
    inside = np.isin(modules.path, hierarchy(dataset).path).tolist()
    borders = _Borders(modules)
    lines: dict[_Key, list[tuple[Fused, int]]] = {}
    for found in fused(dataset.whole):
        if any(inside[row] for row in found.modules):
            own = sum(spent for row, spent in zip(found.modules, found.time_ns, strict=True) if inside[row])
            lines.setdefault(borders.key(found), []).append((found, own))
    answer = pd.DataFrame([borders.line(key, rows) for key, rows in lines.items()], columns=_COLUMNS)
    time = answer["gpu_time_ns"] = answer["gpu_time_ns"].astype("int64")
    number = answer["kernels"] = answer["kernels"].astype("int64")
    whole = sum(int(weighted_kernels(part, ("module_id", "dur_ns")).dur_ns.sum()) for part in dataset.by_report())
    answer["share"] = share(np.asarray(time, np.int64), whole)
    answer["mean_ns"] = ratio(np.asarray(time), np.asarray(number))
    return answer.sort_values("gpu_time_ns", ascending=False, kind="stable", ignore_index=True)


class _Borders:
    def __init__(self, modules: Hierarchy) -> None:
        self._modules, self._series, self._patterns = modules, series(modules), patterns(modules)
        self._parent, self._end = modules.parent.tolist(), modules.end.tolist()

    def key(self, found: Fused) -> _Key:
        within = self._around(found.modules)
        crosses = self._crossed(within, found.modules)
        pattern = self._patterns[within] if within >= 0 else None
        return found.kernel, pattern, frozenset(self._patterns[row] for row in found.modules), crosses

    def line(self, key: _Key, rows: list[tuple[Fused, int]]) -> dict[str, object]:
        """A row of the answer: kernels that are alike, each with its own time."""
        (name_of_kernel, kind), _, _, crosses = key
        sets = {found.modules for found, _ in rows}
        # Numbers identify the layers of modules without others like them.
        names = self._patterns if len(sets) > 1 else self._modules.path
        within = self._around(rows[0][0].modules)
        above = names[within] if within >= 0 else None
        time: dict[str, int] = {}
        for found, _ in rows:
            for row, spent in zip(found.modules, found.time_ns, strict=True):
                name = names[row]
                if above is not None:
                    name = "(itself)" if name == above else name.removeprefix(f"{above}.")
                time[name] = time.get(name, 0) + spent
        return {
            "within": above,
            "fused": _shares_text(time),
            "crosses": crosses,
            "name": name_of_kernel,
            "kernels": sum(found.kernels for found, _ in rows),
            "gpu_time_ns": sum(own for _, own in rows),
            "kind": kind,
            "sets": len(sets),
            "example": [self._modules.path[row] for row in rows[0][0].modules],
        }

    def _around(self, rows: tuple[int, ...]) -> int:
        top = rows[0]
        while top >= 0 and self._end[top] <= rows[-1]:
            top = self._parent[top]
        return top

    def _crossed(self, within: int, rows: tuple[int, ...]) -> str:
        parts: dict[int, set[int]] = {}
        for inner in rows:
            row = inner
            while row != within:
                parts.setdefault(self._parent[row], set()).add(row)
                row = self._parent[row]
        if any(len({self._series[row] or row for row in siblings}) < len(siblings) for siblings in parts.values()):
            return _LAYERS
        return _SIBLINGS if len(parts.get(within, ())) > 1 else _INSIDE

"""Which modules' work was fused into one kernel, and what crossed the borders of modules?"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from tracekit.analyses.fused import fused, shares_text
from tracekit.analyses.portions import portions
from tracekit.analyses.series import patterns, series
from tracekit.analyses.spread import ratio, share
from tracekit.analyses.subtrees import hierarchy
from tracekit.arrays.columns import integers

if TYPE_CHECKING:
    from tracekit.analyses.fused import Fused, Named
    from tracekit.analyses.subtrees import Hierarchy
    from tracekit.dataset.opening import Dataset

NAME = "fusions"

#: What stands for the module that all others are part of.
_ITSELF = "(itself)"
#: What is crossed: numbered siblings, other siblings or roots, a module and what is inside it.
_LAYERS, _SIBLINGS, _INSIDE = "layers", "siblings", "inside"
_SEVERAL = 2
_TIMES = ("module_id", "dur_ns")
_COLUMNS = (
    *("within", "fused", "share", "crosses", "gpu_time_ns", "kernels", "name", "mean_ns"),
    *("kind", "sets", "example"),
)


def frame(dataset: Dataset) -> pd.DataFrame:
    """Fused kernels by the modules that they serve, the most time first. Layers that are alike share a row.

    Args:
        dataset: The dataset, or a subtree of one: then only kernels that serve a module of it, with its time alone.

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
    whole = sum(int(integers(portions(part, _TIMES), "dur_ns").sum()) for part in dataset.by_report())
    answer["share"] = share(np.asarray(time, np.int64), whole)
    answer["mean_ns"] = ratio(np.asarray(time), np.asarray(number))
    return answer.sort_values("gpu_time_ns", ascending=False, kind="stable", ignore_index=True)


class _Key(NamedTuple):
    """What rows of the answer differ in; modules by their paths with ``*`` for numbers."""

    kernel: Named
    within: str | None
    modules: frozenset[str]
    crosses: str


class _Borders:
    """Which borders of modules kernels cross."""

    def __init__(self, modules: Hierarchy) -> None:
        self._modules, self._series, self._patterns = modules, series(modules), patterns(modules)
        self._parent, self._end = modules.parent.tolist(), modules.end.tolist()

    def key(self, found: Fused) -> _Key:
        """The row of the answer that a kernel counts for."""
        within = self._around(found.modules)
        crosses = self._crossed(within, found.modules)
        pattern = self._patterns[within] if within >= 0 else None
        return _Key(found.kernel, pattern, frozenset(self._patterns[row] for row in found.modules), crosses)

    def line(self, key: _Key, rows: list[tuple[Fused, int]]) -> dict[str, object]:
        """A row of the answer: kernels that are alike, each with its own time."""
        sets = {found.modules for found, _ in rows}
        # Of modules without others like them, numbers say which layers they are.
        names = self._patterns if len(sets) > 1 else self._modules.path
        within = self._around(rows[0][0].modules)
        above = names[within] if within >= 0 else None
        time: dict[str, int] = {}
        for found, _ in rows:
            for row, spent in zip(found.modules, found.time_ns, strict=True):
                name = _below(names[row], above)
                time[name] = time.get(name, 0) + spent
        return {
            "within": above,
            "fused": shares_text(time),
            "crosses": key.crosses,
            "name": key.kernel[0],
            "kernels": sum(found.kernels for found, _ in rows),
            "gpu_time_ns": sum(own for _, own in rows),
            "kind": key.kernel[1],
            "sets": len(sets),
            "example": [self._modules.path[row] for row in rows[0][0].modules],
        }

    def _around(self, rows: tuple[int, ...]) -> int:
        """The innermost module that all of some, in pre-order, are or are part of; or -1."""
        top = rows[0]
        while top >= 0 and self._end[top] <= rows[-1]:
            top = self._parent[top]
        return top

    def _crossed(self, within: int, rows: tuple[int, ...]) -> str:
        """What lies between some modules, of which all are part of one, or are it."""
        parts: dict[int, set[int]] = {}
        for inner in rows:
            row = inner
            while row != within:
                parts.setdefault(self._parent[row], set()).add(row)
                row = self._parent[row]
        if any(self._are_layers(part) for part in parts.values()):
            return _LAYERS
        return _SIBLINGS if len(parts.get(within, ())) >= _SEVERAL else _INSIDE

    def _are_layers(self, siblings: set[int]) -> bool:
        """Whether any of some modules below one module are numbered alike."""
        return len({self._series[row] or row for row in siblings}) < len(siblings)


def _below(path: str, above: str | None) -> str:
    """What follows the path of a module above."""
    if path == above:
        return _ITSELF
    return path.removeprefix(f"{above}.") if above is not None else path

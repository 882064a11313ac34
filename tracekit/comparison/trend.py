"""How the times of modules went over many runs, and which changed for good: ``tracekit trend``.

``runs`` reads a series of runs and keeps medians; what changed is judged by :mod:`~tracekit.comparison.noise`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress
from typing import NamedTuple

import numpy as np
import pandas as pd

from tracekit.aggregates.nodes import noun
from tracekit.arrays.types import Flags, Floats, Ints
from tracekit.comparison import noise
from tracekit.comparison.difference import MIN_SHARE, THRESHOLD, percent
from tracekit.comparison.noise import LEAST_RUNS, common_shifts
from tracekit.comparison.runs import COLUMNS, WHOLE, Run, Series, listed
from tracekit.comparison.step_metrics import step_name
from tracekit.dataset.patterns import Pattern
from tracekit.errors import UsageError
from tracekit.progress import Progress, no_progress
from tracekit.storage.locations import Given

#: A run is named as an outlier if so many modules and so large a part of them are off.
_LEAST_OFF, _SHARE_OFF = 2, 0.05


class Module(NamedTuple):
    """A module in steps of one kind and size: its medians over steps, run by run; NaN where it had no work.

    ``share`` is that of its own time in such steps, in the run where that is most.
    """

    step: str
    path: str
    subtree_ns: Floats
    own_ns: Floats
    share: float


class Change(NamedTuple):
    """A module whose own time changed for good: in every later run it is beyond what runs differ.

    Attributes:
        module: The module.
        run: The place of the first run after the change.
        before_ns: The median of its own time in the runs before, as if the clocks of all runs were those of most.
        after_ns: The same of this run and those after it.
        confidence: How sure it is that not one change would be found if no module had changed.
    """

    module: Module
    run: int
    before_ns: float
    after_ns: float
    confidence: float

    @property
    def change(self) -> float:
        """The change as a share of the time before."""
        return self.after_ns / self.before_ns - 1


class Trend(NamedTuple):
    """The times of modules over runs.

    Attributes:
        runs: The runs in their order.
        factors: By how much all modules together are slower in each run than in most of its machine: clocks.
        noise: How much the time of most modules varies between runs, as a share, beside these factors.
        modules: Modules by kind and size of step, those with the most time first.
        changes: What changed, the largest change of time first.
        notes: What a reader must know, in sentences.
        node: What is compared: ``module``, ``range``, ``operator`` or ``node``.
        patterns: For the paths of modules the same with a star for the numbers of siblings: ``top.layers.*.mlp``.
    """

    runs: list[Run]
    factors: Floats
    noise: float
    modules: list[Module]
    changes: list[Change]
    notes: list[str]
    node: str
    patterns: dict[str, str]


def trend(given: Sequence[Given], *, strip_root: bool = False, progress: Progress = no_progress) -> Trend:
    """Reads runs, and finds which modules changed for good by more than noise between runs.

    Args:
        given: Datasets, folders of such, or patterns; paths or URLs.
        strip_root: Whether to ignore the first part of every path.
        progress: Called with the share of runs that were read.

    Raises:
        DatasetError: If a dataset cannot be read, or cannot be compared with the others.
    """
    series = Series(given, strip_root=strip_root)
    frames = [*series.medians(progress)]
    table = {name: pd.concat([frame[name] for frame in frames], axis=1, keys=range(len(frames))) for name in COLUMNS}
    tested = table["subtree_ns"].index.get_level_values("path") != WHOLE
    subtree, own, trimmed = (columns.to_numpy(np.float64) for columns in table.values())
    own = np.where(np.isnan(own) & ~np.isnan(subtree), 0.0, own)
    with np.errstate(divide="ignore"):
        logarithms = np.log(np.where(tested[:, None] & (trimmed > 0), trimmed, np.nan))
    machines = [run.machine for run in series.runs]
    machine = np.array([machines.index(one) for one in machines], np.int64)
    shifts, differing = common_shifts(logarithms, machine, THRESHOLD)
    values = logarithms - shifts
    scale = noise.scales(values, machine)
    off = noise.outliers(values, scale, machine, THRESHOLD)
    modules = _modules(table["subtree_ns"].index.to_list(), subtree, own)
    usual = float(np.median(scale))
    found = noise.changes(np.where(off, np.nan, values), shifts, usual, machine, THRESHOLD, differing)
    changed = [_change(modules[one.row], one, shifts, off[one.row]) for one in found]
    judged = (~np.isnan(values)).sum(axis=1)
    notes = series.notes + _of_judgement(series.runs, judged[judged > 0])
    notes += _of_outliers(series.runs, modules, values, off) if len(series.runs) >= LEAST_RUNS else []
    notes += _of_clocks(series.runs, machine, shifts, differing) + _of_presence(series.runs, modules.values())
    return Trend(
        series.runs,
        np.exp(shifts),
        float(np.median(scale[judged >= LEAST_RUNS])) if (judged >= LEAST_RUNS).any() else 0.0,
        sorted(modules.values(), key=lambda module: -float(np.nanmax(module.subtree_ns))),
        sorted(changed, key=lambda change: -abs(change.after_ns - change.before_ns)),
        notes,
        noun(series.first),
        series.patterns,
    )


def part_of(trend: Trend, path: str | None, min_share: float) -> Trend:
    """The modules at or below a path or pattern, and the changes of those with some share of the time.

    Raises:
        UsageError: If there is no such module.
    """
    modules = trend.modules
    if path is not None:
        modules = [*compress(modules, Pattern(path).inside(module.path for module in modules))]
    if not modules and trend.modules:
        raise UsageError(f"no dataset has a {trend.node} {path}")
    kept = {(one.step, one.path) for one in modules if one.share >= min_share}
    changed = [one for one in trend.changes if (one.module.step, one.module.path) in kept]
    return trend._replace(modules=modules, changes=changed)


def slower_than(trend: Trend, share: float, min_share: float = MIN_SHARE) -> list[Change]:
    """The changes by more than a share to slower, without modules of little time."""
    return [one for one in trend.changes if one.change > share and one.module.share >= min_share]


def _modules(index: list[tuple[str, str]], subtree: Floats, own: Floats) -> dict[int, Module]:
    """The modules by their rows."""
    whole = {alike: row for row, (alike, path) in enumerate(index) if path == WHOLE}
    modules = {}
    for row, (alike, path) in enumerate(index):
        if path != WHOLE:
            share = np.nan_to_num(own[row] / subtree[whole[alike]]).max()
            modules[row] = Module(step_name(alike), path, subtree[row], own[row], float(share))
    return modules


def _change(module: Module, found: noise.Change, shifts: Floats, off: Flags) -> Change:
    times = np.where(off | (module.own_ns == 0), np.nan, module.own_ns)
    times = times / np.exp(shifts * (1 + found.follow))
    before, after = (round(float(np.nanmedian(part)), 3) for part in np.split(times, [found.column]))
    return Change(module, found.column, before, after, 1 - found.chance)


def _of_judgement(runs: list[Run], known: Ints) -> list[str]:
    if len(runs) < LEAST_RUNS:
        count = f"{len(runs)} run{'s' * (len(runs) > 1)}"
        return [f"{count}: noise between runs is learned from {LEAST_RUNS} or more, so no change is judged."]
    few = int((known < LEAST_RUNS).sum())
    return [f"{few} of {known.size} rows are in fewer than {LEAST_RUNS} runs and are not judged."] if few else []


def _of_outliers(runs: list[Run], modules: dict[int, Module], values: Floats, off: Flags) -> list[str]:
    """Notes on runs in which several modules, or one by far, are beyond all other runs."""
    notes = []
    for run in np.flatnonzero(off.any(axis=0)).tolist():
        rows = np.flatnonzero(off[:, run])
        if rows.size < max(_LEAST_OFF, _SHARE_OFF * len(modules)):
            continue
        others = np.nanmedian(np.delete(values[rows], run, axis=1), axis=1)
        away = percent(abs(float(np.expm1(np.median(values[rows, run] - others)))))
        stays = "no later run shows whether it stays" if run == len(runs) - 1 else "no change, as it came back"
        names = listed([modules[row].path for row in rows.tolist()])
        notes.append(f"{runs[run].name} is an outlier: {names} by {away}; {stays}.")
    return notes


def _of_clocks(runs: list[Run], machine: Ints, shifts: Floats, differing: list[int]) -> list[str]:
    notes = []
    if several := len(set(machine.tolist())) - 1:
        notes.append(f"Runs are of {several + 1} machines or models of GPU, each compared with its own alone.")
    if differing:
        names = listed([runs[at].name for at in differing])
        notes.append(f"Most modules changed, each by another factor, from {names} on: another model, size or device?")
    for columns in (np.flatnonzero(machine == one) for one in np.unique(machine)):
        for run, change in zip(columns[1:].tolist(), np.expm1(np.diff(shifts[columns])).tolist(), strict=True):
            if abs(change) > THRESHOLD:
                away = f"{percent(abs(change))} {'slower' if change > 0 else 'faster'}"
                notes.append(f"All together are {away} from {runs[run].name} on: clocks, no change of a module.")
    return notes


def _of_presence(runs: list[Run], modules: Iterable[Module]) -> list[str]:
    """Notes on modules that come with a run or are gone from one on."""
    present: dict[str, Flags] = {}
    for module in modules:
        present[module.path] = present.get(module.path, False) | ~np.isnan(module.subtree_ns)
    known = np.flatnonzero(np.any([*present.values()], axis=0)) if present else np.zeros(0, np.int64)
    turns: dict[tuple[int, bool], list[str]] = {}
    for path, flags in present.items():
        changed = np.flatnonzero(np.diff(flags[known]))
        if changed.size == 1:
            run = int(known[changed[0] + 1])
            turns.setdefault((run, bool(flags[run])), []).append(path)
    return [
        f"{'New' if comes else 'Gone'} from {runs[run].name} on: {listed(paths)}."
        for (run, comes), paths in sorted(turns.items())
    ]

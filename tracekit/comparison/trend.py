"""How the times of modules went over many runs, and which changed for good: ``tracekit trend``.

A series of runs is read in order of their start, one in memory at a time, and medians are kept of each; what changed is
judged by :mod:`~tracekit.comparison.noise`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from typing import NamedTuple

import numpy as np
import pandas as pd

from tracekit.aggregates.each_report import Words
from tracekit.aggregates.nodes import noun
from tracekit.aggregates.subtrees import Hierarchy, Pairs, hierarchy, subtree_pairs
from tracekit.aggregates.weighted_kernels import weighted_kernels
from tracekit.arrays.codes import Labels, positions
from tracekit.arrays.columns import integers
from tracekit.arrays.groups import grouped, sums_by
from tracekit.arrays.text import listed, percent
from tracekit.arrays.types import Flags, Floats, Ints, Rows
from tracekit.comparison import comparable, noise
from tracekit.comparison.difference import MIN_SHARE
from tracekit.comparison.medians import medians
from tracekit.comparison.noise import LEAST_RUNS, THRESHOLD, common_shifts
from tracekit.comparison.step_metrics import PROPERTIES, STEP, common_properties, step_kinds, step_name
from tracekit.dataset.manifest import MANIFEST
from tracekit.dataset.opening import SUFFIX, Dataset, load
from tracekit.dataset.patterns import Pattern
from tracekit.errors import DatasetError, UsageError
from tracekit.progress import Progress, no_progress
from tracekit.storage.locations import Given, Location, expanded, reachable

#: What stands for the path of the whole step, and of work without a module.
_WHOLE, _UNATTRIBUTED = "", "(no module)"
#: What identifies a row: steps of like kind and size, and a module.
_KEYS = ["alike", "path"]
_COLUMNS = ["subtree_ns", "own_ns", "trimmed_ns"]
#: A run is named as an outlier if so many modules and so large a part of them are off.
_LEAST_OFF, _SHARE_OFF = 2, 0.05


class Run(NamedTuple):
    """A run of a series; ``name`` is that of its dataset, its place where two have one name.

    ``machine`` are its models of GPU, and its hosts if they have enough runs: runs of one machine are compared.
    """

    name: str
    started_utc_ns: int | None
    place: Location
    steps: bool
    machine: tuple[tuple[str, ...], ...]


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

    ``run`` is the place of the first run after the change. Before and after are the medians of its own time in these
    runs, as if the clocks of all were those of most; ``confidence`` is how sure it is that not one change would be
    found if no module had changed.
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
    """The times of modules over runs, and notes on them in sentences.

    Attributes:
        factors: By how much all modules together are slower in each run than in most of its machine: clocks.
        noise: How much the time of most modules varies between runs, as a share, beside these factors.
        modules: Modules by kind and size of step, those with the most time first.
        changes: What changed, the largest change of time first.
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

    ``given`` are datasets, folders of such, or patterns; ``strip_root`` ignores the first part of every path.

    Raises:
        DatasetError: If a dataset cannot be read, or cannot be compared with the others.
    """
    series = Series(given, strip_root=strip_root)
    frames = [*series.medians(progress)]
    table = {name: pd.concat([frame[name] for frame in frames], axis=1, keys=range(len(frames))) for name in _COLUMNS}
    tested = table["subtree_ns"].index.get_level_values("path") != _WHOLE
    subtree, own, trimmed = (columns.to_numpy(np.float64) for columns in table.values())
    own = np.where(np.isnan(own) & ~np.isnan(subtree), 0.0, own)
    with np.errstate(divide="ignore"):
        logarithms = np.log(np.where(tested[:, None] & (trimmed > 0), trimmed, np.nan))
    machines = [run.machine for run in series.runs]
    machine = np.array([machines.index(one) for one in machines], np.int64)
    shifts, differing = common_shifts(logarithms, machine)
    values = logarithms - shifts
    scale = noise.scales(values, machine)
    off = noise.outliers(values, scale, machine)
    modules = _modules(table["subtree_ns"].index.to_list(), subtree, own)
    usual = float(np.median(scale)) if scale.size else 0.0
    found = noise.changes(np.where(off, np.nan, values), shifts, usual, machine, differing)
    changed = [_change(modules[one.row], one, shifts, off[one.row]) for one in found]
    judged = (~np.isnan(values)).sum(axis=1)
    notes = series.notes + ([] if modules else ["No run has any work to compare."])
    notes += _of_judgement(series.runs, judged[judged > 0])
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
    whole = {alike: row for row, (alike, path) in enumerate(index) if path == _WHOLE}
    modules = {}
    for row, (alike, path) in enumerate(index):
        if path != _WHOLE:
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


class Series:
    """Runs that can be compared, in order of their start; ``first`` is the one that others are compared with.

    ``notes`` are on their order and what is left out. ``patterns`` are those of the paths of modules met so far.
    """

    def __init__(self, given: Sequence[Given], *, strip_root: bool) -> None:
        self._strip_root, self._properties = strip_root, PROPERTIES
        self.notes: list[str] = []
        self.patterns: dict[str, str] = {}
        compared: comparable.Run | None = None
        runs = []
        for place in datasets_in(given):
            dataset = load(place)
            run = comparable.run_of(dataset)
            compared = compared or run
            comparable.check_devices(compared, run)
            comparable.check_hierarchies(compared.dataset, dataset)
            if run.with_steps:
                self._properties &= common_properties(dataset)
            runs.append(_run(dataset, place, steps=run.with_steps))
        assert compared is not None, "patterns that match nothing are refused"
        self.first = compared.dataset
        # Runs of one name are named by their places; hosts with few runs count as one machine if their GPUs are alike.
        names, machines = Counter(run.name for run in runs), Counter(run.machine for run in runs)
        runs = [run if names[run.name] == 1 else run._replace(name=str(run.place)) for run in runs]
        runs = [run if machines[run.machine] >= LEAST_RUNS else run._replace(machine=run.machine[:1]) for run in runs]
        unknown = [run.name for run in runs if run.started_utc_ns is None]
        if unknown and len(runs) > 1:
            self.notes.append(f"{listed(unknown)}: no start is recorded, so runs are in the order given.")
        else:
            runs.sort(key=lambda run: run.started_utc_ns or 0)
        self.runs = runs
        self._with_steps = any(one.steps for one in runs)
        if not self._with_steps:
            self.notes.append("No run has steps: totals are compared.")
        elif without := [run.name for run in self.runs if not run.steps]:
            self.notes.append(f"{listed(without)}: no work in steps, so left out.")

    def medians(self, progress: Progress) -> Iterator[pd.DataFrame]:
        """The medians over the steps of each run: a row for each kind and size of steps and module.

        ``subtree_ns`` and ``own_ns`` are medians, ``trimmed_ns`` is the mean of the own time without outliers.
        """
        roots = set()
        for at, run in enumerate(self.runs):
            progress("comparing runs", at / len(self.runs))
            dataset = load(run.place)
            (_, names), matched = comparable.names_of(self.first, dataset, strip_root=self._strip_root)
            roots.update([run.name] if matched else [])
            self.patterns |= comparable.patterns_of(dataset, names)
            if run.steps or not self._with_steps:
                yield self._medians_of(dataset, names)
            else:
                yield pd.DataFrame(
                    columns=_COLUMNS, index=pd.MultiIndex.from_arrays([[], []], names=_KEYS), dtype=float
                )
        if roots:
            self.notes.append(f"{listed(sorted(roots))}: the root has another name than in {self.first.folder.name}.")

    def _medians_of(self, dataset: Dataset, names: list[str]) -> pd.DataFrame:
        modules, paths = hierarchy(dataset), sorted({*names, _UNATTRIBUTED, _WHOLE})
        place = {path: at for at, path in enumerate(paths)}
        code = np.array([place[name] for name in [*names, _UNATTRIBUTED, _WHOLE]], np.int64)
        alikes, parts = Words(), []
        for part in dataset.by_report():
            own, path, step, ns = _times(part, modules, code, steps=self._with_steps)
            alike = np.zeros_like(step)
            if self._with_steps:
                kinds = step_kinds(part, self._properties)
                at = positions(step, np.asarray(kinds.index, np.int64))
                alike = alikes.codes(Labels(at, kinds["alike"].tolist()))
            parts.append((own, path, alike, step, ns))
        *keys, ns = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        (own, path, alike, _), (ns,) = sums_by(keys, (ns,))
        key, first = grouped((own, path, alike))
        rows = medians(pd.DataFrame({"key": key, "ns": ns, "kernels": 1, "sizes": 0, "partly": False}))
        rows["alike"] = alikes.named(alike[first]) if self._with_steps else f"{STEP} {{}}"
        rows["path"] = [paths[at] for at in path[first].tolist()]
        is_own, rows = own[first] == 1, rows.set_index(_KEYS)
        medians_of_run: pd.DataFrame = rows.loc[~is_own, ["ns"]].rename(columns={"ns": "subtree_ns"})
        return medians_of_run.join(rows[is_own].rename(columns={"ns": "own_ns"})[_COLUMNS[1:]])


def _times(dataset: Dataset, modules: Hierarchy, code: Rows, *, steps: bool) -> tuple[Ints, Ints, Ints, Ints]:
    """For a report: 1 for own times and 0 for those with modules below, numbers of names, steps, and times.

    After the modules, ``code`` has the numbers for work without one, and for all.
    """
    work = weighted_kernels(dataset, ["module_id", "step_id", "dur_ns"]).table
    step = integers(work, "step_id").astype(np.int64) if steps else np.zeros(work.num_rows, np.int64)
    rows = np.flatnonzero(step >= 0)
    module, step, ns = modules.rows(work)[rows], step[rows], integers(work, "dur_ns")[rows].astype(np.int64)
    known = module >= 0
    own = Pairs(module[known], step[known], ns[known])
    without = Pairs(np.full((~known).sum(), code.size - 2), step[~known], ns[~known])
    whole = Pairs(np.full(step.size, code.size - 1), step, ns)
    groups = [subtree_pairs(modules.parent, modules.depth, own), without, whole, own, without]
    is_own = np.repeat([0, 0, 0, 1, 1], [group.node.size for group in groups])
    node, step, ns = (np.concatenate(columns) for columns in zip(*groups, strict=True))
    (is_own, path, step), (ns,) = sums_by((is_own, code[node], step), (ns,))
    return is_own, path, step, ns


def datasets_in(given: Sequence[Given]) -> list[Location]:
    """The datasets at some places, each of which is one or a folder of such; a place without any stays as it is."""
    found: list[Location] = []
    for place in expanded(given, DatasetError):
        with reachable(place, DatasetError):
            inside: list[Location] = []
            if not (place / MANIFEST).exists():
                inside = sorted((file.parent for file in place.glob(f"*/{MANIFEST}")), key=str)
        found += [one for one in inside if not one.name.startswith(".")] or [place]
    return list(dict.fromkeys(found))


def _run(dataset: Dataset, place: Location, *, steps: bool) -> Run:
    entries = dataset.entries
    starts = [start for entry in entries if (start := entry["source"].get("started_utc_ns")) is not None]
    models = {device.get("name") or "" for entry in entries for device in entry.get("devices", [])}
    hosts = {entry["source"].get("host") or "" for entry in entries}
    name = (place.name or str(place)).removesuffix(SUFFIX)
    return Run(name, min(starts, default=None), place, steps, (tuple(sorted(models)), tuple(sorted(hosts))))

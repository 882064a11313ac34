"""A series of runs in order of their start, and the medians of each: one run is in memory at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from tracekit.aggregates.each_report import Words
from tracekit.aggregates.subtrees import Hierarchy, Pairs, hierarchy, subtree_pairs
from tracekit.aggregates.weighted_kernels import weighted_kernels
from tracekit.arrays.codes import Labels, positions
from tracekit.arrays.columns import integers
from tracekit.arrays.groups import grouped, sums_by
from tracekit.arrays.types import Ints, Rows
from tracekit.comparison.comparable import (
    Run as Compared,
    check_devices,
    check_hierarchies,
    names_of,
    patterns_of,
    work_summary,
)
from tracekit.comparison.medians import medians
from tracekit.comparison.noise import LEAST_RUNS
from tracekit.comparison.step_metrics import PROPERTIES, STEP, common_properties, step_kinds
from tracekit.dataset.manifest import MANIFEST
from tracekit.dataset.opening import SUFFIX, Dataset, load
from tracekit.errors import DatasetError
from tracekit.progress import Progress
from tracekit.storage.locations import Given, Location, expanded, reachable

#: What stands for the path of the whole step, and of work without a module.
WHOLE, UNATTRIBUTED = "", "(no module)"
#: What identifies a row: steps of like kind and size, and a module.
KEYS = ["alike", "path"]
COLUMNS = ["subtree_ns", "own_ns", "trimmed_ns"]
#: How many runs a note names.
_MOST_NAMED = 3


class Run(NamedTuple):
    """A run of a series.

    Attributes:
        name: The name of its dataset; its place where two have one name.
        started_utc_ns: When it began, if that is recorded; of several reports the first.
        place: Where its dataset is.
        steps: Whether it has work in steps.
        machine: Its models of GPU, and its hosts if they have enough runs: runs of one machine are compared.
    """

    name: str
    started_utc_ns: int | None
    place: Location
    steps: bool
    machine: tuple[tuple[str, ...], ...]


class Series:
    """Runs that can be compared, in order of their start.

    Attributes:
        runs: The runs.
        notes: What a reader must know about the order and what is left out, in sentences.
        patterns: For the paths of modules met so far the same with a star for the numbers of siblings.
        first: The run that the others are compared with.
    """

    def __init__(self, given: Sequence[Given], *, strip_root: bool) -> None:
        """Looks at all runs.

        Raises:
            DatasetError: If a dataset cannot be read, or cannot be compared with the others.
        """
        self._strip_root, self._properties = strip_root, PROPERTIES
        self.notes: list[str] = []
        self.patterns: dict[str, str] = {}
        compared: Compared | None = None
        runs = []
        for place in datasets_in(given):
            dataset = load(place)
            run = Compared(dataset, work_summary(dataset))
            compared = compared or run
            check_devices(compared, run)
            check_hierarchies(compared.dataset, dataset)
            if run.work.steps:
                self._properties &= common_properties(dataset)
            runs.append(_run(run, place))
        assert compared is not None, "patterns that match nothing are refused"
        self.first = compared.dataset
        self.runs = self._in_order(_told_apart(runs))
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
            (_, names), matched = names_of(self.first, dataset, strip_root=self._strip_root)
            roots.update([run.name] if matched else [])
            self.patterns |= patterns_of(dataset, names)
            if run.steps or not self._with_steps:
                yield self._medians_of(dataset, names)
            else:
                yield pd.DataFrame(columns=COLUMNS, index=pd.MultiIndex.from_arrays([[], []], names=KEYS), dtype=float)
        if roots:
            self.notes.append(f"{listed(sorted(roots))}: the root has another name than in {self.first.folder.name}.")

    def _medians_of(self, dataset: Dataset, names: list[str]) -> pd.DataFrame:
        modules, paths = hierarchy(dataset), sorted({*names, UNATTRIBUTED, WHOLE})
        place = {path: at for at, path in enumerate(paths)}
        code = np.array([place[name] for name in [*names, UNATTRIBUTED, WHOLE]], np.int64)
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
        is_own, rows = own[first] == 1, rows.set_index(KEYS)
        medians_of_run: pd.DataFrame = rows.loc[~is_own, ["ns"]].rename(columns={"ns": "subtree_ns"})
        return medians_of_run.join(rows[is_own].rename(columns={"ns": "own_ns"})[COLUMNS[1:]])

    def _in_order(self, runs: list[Run]) -> list[Run]:
        unknown = [run.name for run in runs if run.started_utc_ns is None]
        if unknown and len(runs) > 1:
            self.notes.append(f"{listed(unknown)}: no start is recorded, so runs are in the order given.")
            return runs
        return sorted(runs, key=lambda run: run.started_utc_ns or 0)


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


def _run(run: Compared, place: Location) -> Run:
    entries = run.dataset.entries
    starts = [start for entry in entries if (start := entry["source"].get("started_utc_ns")) is not None]
    models = {device.get("name") or "" for entry in entries for device in entry.get("devices", [])}
    hosts = {entry["source"].get("host") or "" for entry in entries}
    name = (place.name or str(place)).removesuffix(SUFFIX)
    return Run(name, min(starts, default=None), place, run.work.steps, (tuple(sorted(models)), tuple(sorted(hosts))))


def _told_apart(runs: list[Run]) -> list[Run]:
    """Runs of one name by their places; hosts with few runs count as one machine if their models of GPU are equal."""
    names, machines = Counter(run.name for run in runs), Counter(run.machine for run in runs)
    runs = [run if names[run.name] == 1 else run._replace(name=str(run.place)) for run in runs]
    return [run if machines[run.machine] >= LEAST_RUNS else run._replace(machine=run.machine[:1]) for run in runs]


def listed(names: Sequence[str]) -> str:
    """The first of some names, and how many more there are."""
    more = f" and {len(names) - _MOST_NAMED:,} more" if len(names) > _MOST_NAMED else ""
    return f"{', '.join(names[:_MOST_NAMED])}{more}"

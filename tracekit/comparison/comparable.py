"""What makes two datasets comparable: the work they hold, and the steps and modules they share."""

from collections import Counter
from typing import NamedTuple

import numpy as np

from tracekit.aggregates.nodes import hierarchy_keys
from tracekit.aggregates.phase_times import TRAINING
from tracekit.aggregates.subtrees import hierarchy, patterns
from tracekit.comparison.step_metrics import KeyTimes, common_properties
from tracekit.comparison.step_times import StepTimes, step_times
from tracekit.dataset.opening import Dataset
from tracekit.errors import DatasetError

_OPERATOR, _COMPILED = "cpu_op", "compiled"
#: Phases of training other than forward.
_TRAINING = {name.removesuffix("_ns") for name in TRAINING}
#: Work between steps is compared over all steps if it follows at least this share of one side's steps; otherwise only
#: over the steps that it follows.
_OFTEN = 0.5


class Run(NamedTuple):
    """A dataset to compare, and what its device work is.

    Whether there is any, whether it is that of operators on a CPU, and whether any of it is of a phase of training
    beyond forward, has its modules by a kernel map of a compiled graph, or is in a step.
    """

    dataset: Dataset
    worked: bool
    on_cpu: bool
    trains: bool
    compiled: bool
    with_steps: bool


def run_of(dataset: Dataset) -> Run:
    """A dataset and its work, all reports together."""
    words: dict[str, set[str]] = {"kind": set(), "phase": set(), "method": set()}
    with_steps = False
    for part in dataset.by_report():
        work = part.table("kernels", [*words, "step_id"])
        for name, found in words.items():
            found.update(work.column(name).unique().to_pylist())
        with_steps |= work.column("step_id").null_count < work.num_rows
    kinds, phases, methods = words.values()
    trains = not phases.isdisjoint(_TRAINING)
    return Run(dataset, bool(kinds - {None}), _OPERATOR in kinds, trains, _COMPILED in methods, with_steps)


def check_devices(before: Run, after: Run) -> None:
    """Refuses to compare a run on a CPU with one on a GPU."""
    if before.worked and after.worked and before.on_cpu != after.on_cpu:
        devices = ["a CPU" if run.on_cpu else "a GPU" for run in (before, after)]
        problem = f"was recorded on {devices[1]}, but {before.dataset.folder} on {devices[0]}"
        raise DatasetError(after.dataset.folder, problem, "compare runs on the same kind of device")


def check_hierarchies(before: Dataset, after: Dataset) -> None:
    """Refuses to compare modules with ranges or operators."""
    keys = [hierarchy_keys(side).keys() for side in (before, after)]
    if all(keys) and not keys[0] & keys[1]:
        first, second = (" and ".join(by) for by in keys)
        problem = f"its hierarchy is keyed by {second}, that of {before.folder} by {first}"
        raise DatasetError(after.folder, problem, "parse both with the same --rows")


def _parts(dataset: Dataset) -> tuple[list[str], list[str], list[str]]:
    """Each module's path, that of its root, and what follows, with a dot in front, as names may hold dots, too."""
    modules = hierarchy(dataset)
    roots: list[str] = []
    below: list[str] = []
    for path, parent in zip(modules.path, modules.parent.tolist(), strict=True):
        roots.append(path if parent < 0 else roots[-1])
        # Paths below a root without a name do not begin with it.
        rest = path.removeprefix(roots[-1])
        below.append(rest if parent < 0 or (path != rest and rest.startswith(".")) else f".{path}")
    return modules.path, roots, below


def names_of(before: Dataset, after: Dataset, *, strip_root: bool) -> tuple[tuple[list[str], list[str]], list[str]]:
    """The names by which the modules of each dataset are compared, and a note if roots of other names are matched."""
    (paths, roots, below), (later_paths, later_roots, later_below) = _parts(before), _parts(after)
    if strip_root:
        first, second = ([path.removeprefix(".") or "." for path in parts] for parts in (below, later_below))
        return (first, second), []
    one_root_each = len({*roots}) == len({*later_roots}) == 1 and roots[0] != later_roots[0]
    if not one_root_each or not ({*below} & {*later_below}) - {""}:
        return (paths, later_paths), []
    first, second = ([roots[0] + path for path in parts] for parts in (below, later_below))
    note = f"The root {later_roots[0]} of the second dataset is matched with {roots[0]} of the first."
    return (first, second), [note]


def patterns_of(dataset: Dataset, names: list[str]) -> dict[str, str]:
    """For the name of each module the pattern of its line in the tree: ``top.layers.*.mlp``."""
    return dict(zip(names, patterns(hierarchy(dataset), names), strict=True))


def measured(
    runs: tuple[Run, Run], names: tuple[list[str], list[str]], *, steps: bool, shapes: bool
) -> tuple[StepTimes, StepTimes]:
    """The times of both runs, over what can be compared; by phase, too, if either is a training.

    Modules inside compiled graphs record no shapes, so where either run has such, shapes are not distinguished.
    """
    shapes &= not any(run.compiled for run in runs)
    phases = any(run.trains for run in runs)
    properties = common_properties(*(run.dataset for run in runs))
    given = zip((run.dataset for run in runs), names, strict=True)
    before, after = _comparable(*step_times(given, steps=steps, shapes=shapes, properties=properties, phases=phases))
    return (
        _without(before, _never_called(runs[0], names[0], before, after)),
        _without(after, _never_called(runs[1], names[1], after, before)),
    )


def _never_called(run: Run, names: list[str], side: StepTimes, other: StepTimes) -> set[str]:
    """Modules of compiled graphs that only hold others, such as lists of layers: eager, nothing calls them."""
    if not run.compiled:
        return set()
    modules = hierarchy(run.dataset)
    calls = (modules.rows(part.table("calls", ["module_id"])) for part in run.dataset.by_report())
    called = {names[row] for rows in calls for row in np.unique(rows).tolist()}
    with_own = {side.times.keys[at][1] for at in side.kernels["key"].unique().tolist()}
    known = called | with_own | {path for _, path, _ in other.times.present_keys()}
    return {path for what, path, _ in side.times.present_keys() if what == "module"} - known


def _without(side: StepTimes, paths: set[str]) -> StepTimes:
    if not paths:
        return side
    phases = {name: _without(part, paths) for name, part in side.phases.items()}
    return side._replace(times=side.times.of(lambda key: key[1] not in paths), phases=phases)


def _comparable(before: StepTimes, after: StepTimes) -> tuple[StepTimes, StepTimes]:
    """Both without the sizes of kinds of steps that have only one, and with work between steps; each phase, too."""
    present = before.times.present_keys() | after.times.present_keys()
    sizes = Counter(kind for what, kind, size in present if what == "step" and size)
    sides = before, after
    times = [side.times.of(lambda key: not (key[0] == "step" and key[2] and sizes[key[1]] == 1)) for side in sides]
    if between := _between_steps(before, after):
        times = [of_steps.followed_by(more) for of_steps, more in zip(times, between, strict=True)]
    phases = {name: _comparable(part, after.phases[name]) for name, part in before.phases.items()}
    first, second = (
        side._replace(times=times[at], phases={name: both[at] for name, both in phases.items()})
        for at, side in enumerate(sides)
    )
    return first, second


def _between_steps(before: StepTimes, after: StepTimes) -> list[KeyTimes] | None:
    """The times between steps to compare: of all steps if work is frequent, otherwise of steps with some; or None."""
    between = [side.between for side in (before, after) if side.between.ns.size]
    with_work = [times.ns > 0 for times in between]
    if len(between) < 2 or not any(steps.any() for steps in with_work):  # noqa: PLR2004 - two sides
        return None
    often = not all(steps.any() for steps in with_work) or max(steps.mean() for steps in with_work) >= _OFTEN
    if often:
        return between
    return [times.at(np.flatnonzero(steps)) for times, steps in zip(between, with_work, strict=True)]

"""What of two datasets can be compared: the names of modules, the sizes of steps, and the work between steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from tracekit.analyses.step_kinds import common_properties
from tracekit.analyses.step_times import step_times

if TYPE_CHECKING:
    from tracekit.analyses.step_times import StepTimes
    from tracekit.dataset.opening import Dataset

#: Work between steps is compared over all steps if it follows at least this share of one side's steps; otherwise only
#: over the steps that it follows.
_OFTEN = 0.5


class Naming:
    """Gives modules the names by which they are compared: with another root, or without it."""

    def __init__(self, root: str | None, *, strip: bool) -> None:
        self._root, self._strip = root, strip

    def __call__(self, paths: list[str]) -> list[str]:
        """The names of modules, by their paths."""
        if self._strip:
            return [path.partition(".")[2] or "." for path in paths]
        if self._root is None:
            return paths
        return [f"{self._root}{dot}{rest}" for _, dot, rest in (p.partition(".") for p in paths)]


def names_of(before: Dataset, after: Dataset, *, strip_root: bool) -> tuple[tuple[Naming, Naming], list[str]]:
    """The names of the modules of each dataset, and a note if roots with different names are matched."""
    paths = [side.table("modules", ["path"]).column("path").to_pylist() for side in (before, after)]
    roots = [sorted({path.partition(".")[0] for path in of_side}) for of_side in paths]
    below = [{path.partition(".")[2] for path in of_side} - {""} for of_side in paths]
    one_root_each = len(roots[0]) == len(roots[1]) == 1 and roots[0] != roots[1]
    unchanged = Naming(None, strip=strip_root)
    if strip_root or not one_root_each or not below[0] & below[1]:
        return (unchanged, unchanged), []
    note = f"The root {roots[1][0]} of the second dataset is matched with {roots[0][0]} of the first."
    return (unchanged, Naming(roots[0][0], strip=False)), [note]


def measured(
    datasets: tuple[Dataset, Dataset], names: tuple[Naming, Naming], *, steps: bool, shapes: bool
) -> tuple[StepTimes, StepTimes]:
    """The times of both datasets, over what can be compared."""
    properties = common_properties(*datasets)
    before, after = (
        step_times(dataset, naming, steps=steps, shapes=shapes, properties=properties)
        for dataset, naming in zip(datasets, names, strict=True)
    )
    return _comparable(before, after)


def _comparable(before: StepTimes, after: StepTimes) -> tuple[StepTimes, StepTimes]:
    """Both sides with work between steps, if any, and with sizes of steps only for kinds that have several."""
    sides = (before, after)
    steps = pd.concat([side.times[side.times["what"] == "step"] for side in sides])
    sizes = steps.groupby("path")["shapes"].nunique()
    single = sizes.index[sizes < 2]  # noqa: PLR2004 - one size is all of its kind
    times = [_without_sizes(side.times, single) for side in sides]
    between = _between_steps(before, after)
    if between is not None:
        times = [pd.concat(parts, ignore_index=True) for parts in zip(times, between, strict=True)]
    return before._replace(times=times[0]), after._replace(times=times[1])


def _without_sizes(times: pd.DataFrame, kinds: pd.Index) -> pd.DataFrame:
    """The times without those of single sizes of some kinds of steps."""
    of_size = (times["what"] == "step") & times["shapes"].notna()
    return times[~(of_size & times["path"].isin(kinds))]


def _between_steps(before: StepTimes, after: StepTimes) -> list[pd.DataFrame] | None:
    """The times between steps to compare: of every step if there is often work, else of steps with some; or None."""
    between = [side.between for side in (before, after) if side.between is not None and len(side.between)]
    with_work = [times["ns"] > 0 for times in between]
    if len(between) < 2 or not any(steps.any() for steps in with_work):  # noqa: PLR2004 - two sides
        return None
    often = not all(steps.any() for steps in with_work) or max(steps.mean() for steps in with_work) >= _OFTEN
    return between if often else [times[steps] for times, steps in zip(between, with_work, strict=True)]

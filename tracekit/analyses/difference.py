"""What changed between two datasets: modules by path and shapes of their inputs, and the kernels inside.

What is compared is the median over steps of the GPU time in a step, over those steps in which a module had work. A
change counts if the median moved by more than a threshold, and by more than the spread between steps explains: the
intervals in which the two medians surely lie do not overlap. Such an interval reaches from one value of the sorted
steps to another, 2.5 standard deviations of a binomial distribution to each side of the middle (the usual
distribution-free confidence interval of a median), so that outliers, warm-up and steps of two speeds do no harm. Of few
steps that is all of them, and one slow step would hide every change; so from five steps on it reaches no further from
the median than four standard errors, taken from the median absolute deviation. Of a single step it is that step, and
the threshold alone decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from tracekit.analyses.step_times import KEYS, has_steps, step_times
from tracekit.errors import DatasetError

if TYPE_CHECKING:
    from tracekit.analyses.step_times import StepTimes
    from tracekit.arrays import Floats, Ints
    from tracekit.dataset import Dataset

#: Changes of less than this share are none, unless told otherwise.
THRESHOLD = 0.01
_DEVIATIONS = 2.5
#: How many standard errors of a median its interval reaches at most, and from how many steps on these are known.
_MOST_ERRORS, _ERRORS_FROM = 4.0, 5
#: Of a normal distribution: its standard deviation, in median absolute deviations; the standard error of its median, in
#: standard deviations over the root of the number of values.
_PER_MAD, _PER_DEVIATION = 1.4826, 1.2533
_FEW_STEPS = 5
_OPERATOR = "cpu_op"


class Options(NamedTuple):
    """How to compare.

    Attributes:
        threshold: The share of its time by which a median must move to count as changed.
        strip_root: Whether to leave out the first part of every path, so that ``top.layers`` is
            ``LlamaForCausalLM.layers``. It is left out by itself where each dataset has one root, their names differ
            and a module below has the same path.
        shapes: Whether calls of a module with inputs of other shapes are compared apart.
    """

    threshold: float = THRESHOLD
    strip_root: bool = False
    shapes: bool = True


class Difference(NamedTuple):
    """What changed.

    Attributes:
        rows: See :func:`frame`.
        kernels: A row per changed module and kernel of its own that changed: ``what``, ``path``, ``shapes``, ``name``,
            and per step ``before_kernels``, ``after_kernels``, ``before_ns``, ``after_ns``, ``change_ns``.
        notes: What to know of the comparison, in sentences.
    """

    rows: pd.DataFrame
    kernels: pd.DataFrame
    notes: list[str]


def frame(before: Dataset, after: Dataset, options: Options | None = None) -> pd.DataFrame:
    """Everything compared, the largest change of time first.

    Returns:
        A row per ``what`` (``step``: whole steps by kind; ``module``; ``unknown``: work without a module), ``path`` and
        ``shapes`` (as JSON; null where not told apart). ``status`` is ``added``, ``gone``, ``faster``, ``slower`` or
        ``same``; ``change_ns`` and ``change`` (a share of before) are of the medians, ``own_change_ns`` is of the mean
        of a module's own kernels, without those of modules below. Of each side: the median per
        step of the subtree's time ``before_ns``, the interval in which it lies ``before_low_ns`` to
        ``before_high_ns``, the median number of kernels ``before_kernels``, and in how many steps ``before_steps``;
        the same with ``after``.

    Raises:
        DatasetError: If one is of a run on a CPU and the other of one on a GPU.
    """
    return compare(before, after, options or Options()).rows


def compare(before: Dataset, after: Dataset, options: Options) -> Difference:
    """Everything compared, with the kernels that changed.

    Raises:
        DatasetError: If one is of a run on a CPU and the other of one on a GPU.
    """
    _check_alike(before, after)
    steps = has_steps(before) and has_steps(after)
    names, notes = _names(before, after, options)
    one, other = (
        step_times(dataset, naming, steps=steps, shapes=options.shapes)
        for dataset, naming in zip((before, after), names, strict=True)
    )
    rows = judge(one, other, options.threshold)
    notes += _notes(one, other, steps=steps) + _undecided(rows, options.threshold)
    return Difference(rows, _inside(_own(one, other), rows), notes)


def slower_than(rows: pd.DataFrame, share: float) -> pd.DataFrame:
    """The rows that became slower by more than a share, beyond the spread between steps.

    What was seen in one step of several has no spread, and is left out.
    """
    return rows[(rows["status"] == "slower") & (rows["change"] > share) & ~_alone(rows)]


def _alone(rows: pd.DataFrame) -> pd.Series[bool]:
    """What is in one step of a side whose other things are in more."""
    both = rows["before_ns"].notna() & rows["after_ns"].notna()
    found: pd.Series[bool] = both & False
    for side in (rows["before_steps"], rows["after_steps"]):
        found |= both & (side == 1) & (side.max() > 1)
    return found


def _check_alike(before: Dataset, after: Dataset) -> None:
    kinds = [
        set(one.table("kernels", ["kind"]).column("kind").unique().to_pylist())
        for one in (before, after)
    ]
    on_cpu = [_OPERATOR in its for its in kinds]
    if all(kinds) and on_cpu[0] != on_cpu[1]:
        there = ["a CPU" if cpu else "a GPU" for cpu in on_cpu]
        problem = f"is of a run on {there[1]}, and {before.folder} of one on {there[0]}"
        raise DatasetError(after.folder, problem, "compare runs on the same kind of device")


class _Naming:
    """Gives modules the names by which they are compared."""

    def __init__(self, root: str | None, *, strip: bool) -> None:
        self._root, self._strip = root, strip

    def __call__(self, paths: list[str]) -> list[str]:
        if self._strip:
            return [path.partition(".")[2] or "." for path in paths]
        if self._root is None:
            return paths
        return [f"{self._root}{dot}{rest}" for _, dot, rest in (p.partition(".") for p in paths)]


def _names(
    before: Dataset, after: Dataset, options: Options
) -> tuple[tuple[_Naming, _Naming], list[str]]:
    """What to call the modules of each dataset, and a note if the roots' names differ."""
    paths = [one.table("modules", ["path"]).column("path").to_pylist() for one in (before, after)]
    one, other = (sorted({path.partition(".")[0] for path in its}) for its in paths)
    below = [{path.partition(".")[2] for path in its} - {""} for its in paths]
    alike = len(one) == len(other) == 1 and one != other and (below[0] & below[1])
    same = _Naming(None, strip=options.strip_root)
    if options.strip_root or not alike:
        return (same, same), []
    note = f"{other[0]} of the second is taken for {one[0]} of the first."
    return (same, _Naming(one[0], strip=False)), [note]


def judge(before: StepTimes, after: StepTimes, threshold: float = THRESHOLD) -> pd.DataFrame:
    """Times of two datasets side by side, and which of them changed; see :func:`frame`."""
    sides = [
        _medians(side.times).add_prefix(f"{name}_")
        for name, side in (("before", before), ("after", after))
    ]
    rows = sides[0].join(sides[1], how="outer")
    rows["change_ns"] = rows["after_ns"].fillna(0) - rows["before_ns"].fillna(0)
    rows["change"] = (rows["change_ns"] / rows["before_ns"]).where(rows["before_ns"] > 0)
    rows["own_change_ns"] = _own(before, after)["change_ns"].groupby(level=KEYS).sum()
    rows["own_change_ns"] = rows["own_change_ns"].fillna(0.0)
    rows.insert(0, "status", _status(rows, threshold))
    for name in ("before_steps", "after_steps"):
        rows[name] = rows[name].fillna(0).astype(np.int64)
    rows = rows.reset_index()
    rows["shapes"] = rows["shapes"].where(rows["shapes"] != "", None)
    keys = pd.DataFrame({"whole": rows["what"] != "step", "size": -rows["change_ns"].abs()})
    order = np.lexsort((rows["path"], keys["size"], keys["whole"]))
    return rows.iloc[order].reset_index(drop=True)


def _moved(rows: pd.DataFrame, threshold: float) -> pd.Series[bool]:
    """Which medians moved by more than a share."""
    return rows["change_ns"].abs() > threshold * rows["before_ns"]


def _status(rows: pd.DataFrame, threshold: float) -> list[str]:
    moved = _moved(rows, threshold)
    conditions = [
        rows["before_ns"].isna(),
        rows["after_ns"].isna(),
        moved & (rows["after_low_ns"] > rows["before_high_ns"]),
        moved & (rows["after_high_ns"] < rows["before_low_ns"]),
    ]
    found: list[str] = np.select(conditions, ["added", "gone", "slower", "faster"], "same").tolist()
    return found


def _medians(times: pd.DataFrame) -> pd.DataFrame:
    """Of every thing the median over its steps, and between which values it lies."""
    times = times.assign(shapes=times["shapes"].fillna(""))
    grouped = times.groupby(KEYS, sort=True)
    found = grouped.agg(ns=("ns", "median"), kernels=("kernels", "median"), steps=("ns", "size"))
    low, high = _interval(found["steps"].to_numpy())
    first = np.cumsum(found["steps"].to_numpy()) - found["steps"].to_numpy()
    ordered = times.sort_values([*KEYS, "ns"], kind="stable")["ns"].to_numpy()
    lowest, highest = (ordered[first + rank] if len(ordered) else rank for rank in (low, high))
    reach = _reach(times, found)
    found.insert(1, "low_ns", np.maximum(lowest, np.floor(found["ns"] - reach)))
    found.insert(2, "high_ns", np.minimum(highest, np.ceil(found["ns"] + reach)))
    return found.astype({"low_ns": np.int64, "high_ns": np.int64})


def _reach(times: pd.DataFrame, found: pd.DataFrame) -> Floats:
    """How far from each median, in ns, the true one may be by the spread of the values around it."""
    away = (times["ns"] - times.groupby(KEYS)["ns"].transform("median")).abs()
    spread = away.groupby([times[key] for key in KEYS], sort=True).median().to_numpy()
    steps = found["steps"].to_numpy()
    errors = _MOST_ERRORS * _PER_DEVIATION * _PER_MAD * spread / np.sqrt(steps)
    return np.where(steps < _ERRORS_FROM, np.inf, errors)


def _interval(steps: Ints) -> tuple[Ints, Ints]:
    """The ranks between which the median of so many values lies."""
    reach = _DEVIATIONS * np.sqrt(steps) / 2
    middle = (steps - 1) / 2
    low = np.maximum(np.floor(middle - reach), 0).astype(np.int64)
    high = np.minimum(np.ceil(middle + reach), steps - 1).astype(np.int64)
    return low, high


def _own(before: StepTimes, after: StepTimes) -> pd.DataFrame:
    """Kernels of every module itself, by name: how many and how long, per step in which the module had work."""
    sides = []
    for name, side in (("before", before), ("after", after)):
        own = side.kernels.assign(shapes=side.kernels["shapes"].fillna(""))
        steps = side.times.assign(shapes=side.times["shapes"].fillna("")).groupby(KEYS).size()
        own = own.set_index(KEYS).join(steps.rename("steps"))
        for value in ("kernels", "ns"):
            own[f"{name}_{value}"] = own[value] / own["steps"]
        own = own.set_index("name", append=True)
        sides.append(own[[f"{name}_kernels", f"{name}_ns"]])
    found = sides[0].join(sides[1], how="outer").fillna(0.0)
    found["change_ns"] = found["after_ns"] - found["before_ns"]
    return found


def _inside(own: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Kernels of changed modules that run another number of times or another time per step."""
    changed = rows.loc[rows["status"] != "same", KEYS].assign(shapes=rows["shapes"].fillna(""))
    found = own[(own["change_ns"] != 0) | (own["before_kernels"] != own["after_kernels"])]
    found = found.reset_index().merge(changed, on=KEYS)
    found["shapes"] = found["shapes"].where(found["shapes"] != "", None)
    order = np.argsort(-found["change_ns"].abs().to_numpy(), kind="stable")
    return found.iloc[order].reset_index(drop=True)


def _undecided(rows: pd.DataFrame, threshold: float) -> list[str]:
    """Says how many medians moved, but may have by the spread, since a few steps do not tell how large that is."""
    both = rows["before_ns"].notna() & rows["after_ns"].notna()
    found = []
    if alone := int((_alone(rows) & rows["status"].isin(("slower", "faster"))).sum()):
        found.append(
            f"{alone} of the changes were seen in a single step of one side, which has no spread: --fail-over leaves "
            "them out. With --ignore-shapes modules are compared over all steps."
        )
    few = rows[["before_steps", "after_steps"]].min(axis=1) < _FEW_STEPS
    undecided = int((both & few & _moved(rows, threshold) & (rows["status"] == "same")).sum())
    if not undecided:
        return found
    share = f"{threshold:.2%}".rstrip("0%").rstrip(".")
    return [
        *found,
        f"{undecided} of {len(rows)} things compared moved by more than {share} %, but in fewer than {_FEW_STEPS} "
        f"steps of one side: too few to tell that from noise; they count as same. Record {_FEW_STEPS} steps or more.",
    ]


def _notes(before: StepTimes, after: StepTimes, *, steps: bool) -> list[str]:
    if not steps:
        return [
            "There are no steps on both sides: totals are compared, and the spread is not known."
        ]
    notes = []
    for name, side in (("first", before), ("second", after)):
        if side.outside_ns:
            notes.append(f"{side.outside_ns:,} ns of the {name} are of no step and left out.")
        if side.steps < _FEW_STEPS:
            few = f"The {name} has {side.steps} {'step' if side.steps == 1 else 'steps'}"
            notes.append(f"{few}: its spread is hardly known; record {_FEW_STEPS} or more.")
    return notes

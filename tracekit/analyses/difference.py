"""What changed between two datasets: modules by path and shapes of their inputs, and the kernels inside.

What is compared is the median over steps of the GPU time in a step, over those steps in which a module had work, and
of these only such as both have: of like kind, batch size and tokens, where both tell them. Where these are of several
sizes, as many steps of each are compared as both have, and times are first divided by the median of their size (the
middle of both sides' medians; for the eye they are multiplied by the mean of those). Another mix of steps is no change.
A change counts if the median moved by more than a threshold, and by more than the spread between steps explains: the
intervals in which the two medians surely lie do not overlap. Such an interval reaches from one value of the sorted
steps to another, 2.5 standard deviations of a binomial distribution to each side of the middle (the usual
distribution-free confidence interval of a median), so that outliers, warm-up and steps of two speeds do no harm. Of few
steps that is all of them, and one slow step would hide every change; so from five steps on it reaches no further from
the median than four standard errors, taken from the median absolute deviation. Of a single step it is that step, and
the threshold alone decides.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from tracekit.analyses.difference_notes import of_mix, of_sides, undecided, without_steps
from tracekit.analyses.medians import like, medians
from tracekit.analyses.step_kinds import mix, told_by_all
from tracekit.analyses.step_times import KEYS, has_steps, step_times
from tracekit.errors import DatasetError

if TYPE_CHECKING:
    from tracekit.analyses.medians import Like
    from tracekit.analyses.step_times import StepTimes
    from tracekit.arrays.types import Flags
    from tracekit.dataset.opening import Dataset

#: Changes of less than this share are none, unless told otherwise.
THRESHOLD = 0.01
_OPERATOR = "cpu_op"
#: Work between steps is compared after every step if it came after as many of one side's, else where there is some.
_OFTEN = 0.5


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
        A row per ``what`` (``step``: whole steps by kind, and by size where a kind has several; ``module``;
        ``unknown``: work without a module; ``between``: work between steps), ``path`` and
        ``shapes`` (as JSON; null where not told apart; of steps their size). ``status`` is ``added``, ``gone``,
        ``faster``, ``slower``, ``same``, or ``unlike``: only in steps of kinds or sizes that the other lacks, so not
        compared. ``change_ns`` and ``change`` (a share of before) are of the medians, ``own_change_ns`` is of the mean
        of a module's own kernels, without those of modules below. Of each side: the median per
        step of the subtree's time ``before_ns``, the interval in which it lies ``before_low_ns`` to
        ``before_high_ns`` (null where steps of several sizes are too few to tell), the median number of kernels
        ``before_kernels``, and in how many steps ``before_steps`` (of several sizes, as many of each as both have);
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
    there = [has_steps(dataset) for dataset in (before, after)]
    steps = all(there)
    told = told_by_all(before, after)
    names, notes = _names(before, after, options)
    one, other = _comparable(
        *(
            step_times(dataset, naming, steps=steps, shapes=options.shapes, told=told)
            for dataset, naming in zip((before, after), names, strict=True)
        )
    )
    rows = judge(one, other, options.threshold)
    if steps:
        notes += of_sides(one, other) + of_mix(mix(*map(_steps, (one, other))))
    else:
        notes.append(without_steps(there))
    notes += undecided(rows, _moved(rows, options.threshold), _alone(rows), options.threshold)
    own = _own(like(one.times, other.times), one, other)
    return Difference(rows, _inside(own, rows), notes)


def slower_than(rows: pd.DataFrame, share: float) -> pd.DataFrame:
    """The rows that became slower by more than a share, beyond the spread between steps.

    And kinds of steps that came or went, since what they took cannot be compared with anything. What was seen in one
    step of several has no spread, and is left out; but work between steps that was seen once counts where it alone
    makes all steps together slower by more than the share.
    """
    if not math.isfinite(share):
        return rows.iloc[:0]
    slower = (rows["status"] == "slower") & ((rows["change"] > share) | (rows["before_ns"] == 0))
    whole = _kinds(rows)
    total = (rows["before_ns"] * rows["before_steps"])[whole].sum()
    once = (rows["what"] == "between") & (rows["change_ns"] > share * total)
    kinds = whole & rows["status"].isin(("added", "gone"))
    found: pd.DataFrame = rows[(slower & (~_alone(rows) | once)) | kinds]
    return found


def _alone(rows: pd.DataFrame) -> pd.Series[bool]:
    """What is in one step of a side whose other things are in more."""
    both = rows["before_ns"].notna() & rows["after_ns"].notna()
    found: pd.Series[bool] = both & False
    for side in (rows["before_steps"], rows["after_steps"]):
        found |= both & (side == 1) & (side.max() > 1)
    return found


def _kinds(rows: pd.DataFrame) -> pd.Series[bool]:
    """Which rows are of whole steps of a kind, of all sizes."""
    return (rows["what"] == "step") & rows["shapes"].isna()


def _steps(side: StepTimes) -> pd.DataFrame:
    return side.times[_kinds(side.times)]


def _comparable(before: StepTimes, after: StepTimes) -> tuple[StepTimes, StepTimes]:
    """Both with work between steps if there is some, and sizes of steps only of kinds that have several."""
    sides = (before, after)
    sizes = pd.concat([side.times[side.times["what"] == "step"] for side in sides])
    several = sizes.groupby("path")["shapes"].nunique()
    single = several.index[several < 2]  # noqa: PLR2004 - one size is all of its kind
    parts = [
        side.times[~((side.times["what"] == "step") & side.times["shapes"].notna() & side.times["path"].isin(single))]
        for side in sides
    ]
    gaps = [side.between for side in sides if side.between is not None and len(side.between)]
    some = [gap["ns"] > 0 for gap in gaps]
    if len(gaps) == len(sides) and any(its.any() for its in some):
        always = not all(its.any() for its in some) or max(its.mean() for its in some) >= _OFTEN
        gaps = gaps if always else [gap[its] for gap, its in zip(gaps, some, strict=True)]
        parts = [pd.concat(pair, ignore_index=True) for pair in zip(parts, gaps, strict=True)]
    return before._replace(times=parts[0]), after._replace(times=parts[1])


def _check_alike(before: Dataset, after: Dataset) -> None:
    kinds = [set(one.table("kernels", ["kind"]).column("kind").unique().to_pylist()) for one in (before, after)]
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


def _names(before: Dataset, after: Dataset, options: Options) -> tuple[tuple[_Naming, _Naming], list[str]]:
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
    pairs = like(before.times, after.times)
    sides = [
        medians(times).add_prefix(f"{name}_") for name, times in zip(("before", "after"), pairs.times, strict=True)
    ]
    rows = sides[0].join(sides[1], how="outer").reindex(range(len(pairs.keys)))
    rows = rows.set_index(pd.MultiIndex.from_frame(pairs.keys))
    rows["change_ns"] = rows["after_ns"].fillna(0) - rows["before_ns"].fillna(0)
    rows["change"] = (rows["change_ns"] / rows["before_ns"]).where(rows["before_ns"] > 0)
    rows["own_change_ns"] = _own(pairs, before, after)["change_ns"].groupby(level=KEYS).sum()
    rows["own_change_ns"] = rows["own_change_ns"].fillna(0.0)
    rows.insert(0, "status", _status(rows, threshold, pairs.unlike))
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


def _status(rows: pd.DataFrame, threshold: float, unlike: Flags) -> list[str]:
    moved = _moved(rows, threshold)
    conditions = [
        rows["before_ns"].isna(),
        rows["after_ns"].isna(),
        unlike,
        moved & (rows["after_low_ns"] > rows["before_high_ns"]),
        moved & (rows["after_high_ns"] < rows["before_low_ns"]),
    ]
    found: list[str] = np.select(
        [np.asarray(one) for one in conditions],
        ["added", "gone", "unlike", "slower", "faster"],
        "same",
    ).tolist()
    return found


def _own(pairs: Like, before: StepTimes, after: StepTimes) -> pd.DataFrame:
    """Kernels of every thing itself, by name: how many and how long, per step in which it had work.

    That is the mean by kind and size, each of the same weight on both sides.
    """
    sides = []
    by = [*KEYS, "alike"]
    for at, (name, side) in enumerate((("before", before), ("after", after))):
        share = pd.Series(pairs.share[at], pd.MultiIndex.from_frame(pairs.cells), name="share")
        own = side.kernels.assign(shapes=side.kernels["shapes"].fillna("")).set_index(by)
        own = own.join(share.dropna(), how="inner")
        for value in ("kernels", "ns"):
            own[f"{name}_{value}"] = own[value] * own["share"]
        own = own.set_index("name", append=True)[[f"{name}_kernels", f"{name}_ns"]]
        sides.append(own.groupby(level=[*KEYS, "name"]).sum())
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

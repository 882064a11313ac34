"""What changed between two datasets: modules by path and input shapes, and the kernels inside.

The median over steps of a module's GPU time in a step is compared, over the steps in which it had work, and only over
steps that both sides have: of like kind, batch size and tokens, if both datasets know these. If these steps have
several sizes, as many of each size are compared as both sides have, and times are first divided by the median of their
size (the mean of both sides' medians; for display they are multiplied by the mean of those). Another mix of steps is
therefore no change.

A change counts if the median moved by more than a threshold, and by more than the spread between steps explains: the
intervals that contain the two true medians do not overlap. An interval reaches from one value of the sorted steps to
another, 2.5 standard deviations of a binomial distribution to each side of the middle (the usual distribution-free
confidence interval of a median), so that outliers, warm-up and steps of two speeds do no harm. With few steps that
covers all of them, and one slow step would hide every change; from five steps on it therefore reaches no further from
the median than four standard errors, by the median absolute deviation. With a single step it is that step, and the
threshold alone decides.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from tracekit.analyses.comparable import Run, measured, names_of, patterns_of
from tracekit.analyses.difference_notes import of_compiled, of_mix, of_sides, undecided, without_steps
from tracekit.analyses.key_times import KEYS, in_blocks
from tracekit.analyses.medians import like, medians
from tracekit.analyses.nodes import keyed_by, noun
from tracekit.analyses.phase_times import PHASES
from tracekit.analyses.present import present
from tracekit.analyses.step_kinds import mix
from tracekit.errors import DatasetError

if TYPE_CHECKING:
    from tracekit.analyses.key_times import KeyTimes
    from tracekit.analyses.medians import Like
    from tracekit.analyses.step_times import StepTimes
    from tracekit.arrays.types import Flags
    from tracekit.dataset.opening import Dataset

#: Smaller changes than this share do not count by default.
THRESHOLD = 0.01


class Options(NamedTuple):
    """How to compare.

    Attributes:
        threshold: The share by which a median must move to count as changed.
        strip_root: Whether to ignore the first part of every path, so that ``top.layers`` matches
            ``LlamaForCausalLM.layers``. Roots are matched without it if each dataset has one, their names differ, and
            a module below has the same path.
        shapes: Whether calls of a module are told apart by their input shapes; never where modules ran in compiled
            graphs, which record none.
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
        notes: What a reader of the comparison must know, in sentences.
        phases: If either run is a training, the columns of ``rows`` up to the phases once more for the work in each
            ``phase``, judged by the same rules.
        node: What is compared beside steps: ``module``, ``range``, ``operator`` or ``node``.
        patterns: For the paths of modules the same with a star for the numbers of siblings: ``top.layers.*.mlp``.
    """

    rows: pd.DataFrame
    kernels: pd.DataFrame
    notes: list[str]
    phases: pd.DataFrame
    node: str
    patterns: dict[str, str]


def frame(before: Dataset, after: Dataset, options: Options | None = None) -> pd.DataFrame:
    """Everything compared, the largest change of time first.

    Returns:
        A row per ``what`` (``step``: whole steps by kind, and by size if a kind has several; ``module``; ``unknown``:
        work without a module; ``between``: work between steps), ``path`` and ``shapes`` (as JSON; null if not told
        apart; for steps their size). ``status`` is ``added``, ``gone``, ``faster``, ``slower``, ``same``, or
        ``unlike``: only in steps whose kind or size the other side lacks, so not compared. ``change_ns`` and
        ``change`` (a share of before) are changes of the medians; ``own_change_ns`` is the change of the mean of a
        module's own kernels, without those of modules below. For each side: ``before_ns`` (the median over steps of
        the subtree's time), ``before_low_ns`` and ``before_high_ns`` (the interval that contains it; null if there are
        too few steps of several sizes), ``before_kernels`` (the median number of kernels) and ``before_steps`` (the
        number of steps; of several sizes, as many of each as both sides have); the same with ``after``. If either run
        is a training, ``forward_change_ns``, ``backward_change_ns``, ``recompute_change_ns``, ``optimizer_change_ns``
        and ``other_change_ns`` are the changes of the medians of the work in each phase, null where it has none; these
        medians need not add up.

    Raises:
        DatasetError: If one dataset is from a CPU run and the other from a GPU run, or if one is keyed by modules and
            the other by ranges or operators.
    """
    return compare(before, after, options or Options()).rows


def compare(before: Dataset, after: Dataset, options: Options) -> Difference:
    """Compares two datasets, with the kernels that changed.

    Raises:
        DatasetError: If one dataset is from a CPU run and the other from a GPU run, or if one is keyed by modules and
            the other by ranges or operators.
    """
    runs = Run(before, present(before)), Run(after, present(after))
    _check_devices(*runs)
    _check_hierarchies(before, after)
    names, notes = names_of(before, after, strip_root=options.strip_root)
    with_steps = [run.work.steps for run in runs]
    times_before, times_after = measured(runs, names, steps=all(with_steps), shapes=options.shapes)
    rows, own = _judged(times_before, times_after, options.threshold)
    if all(with_steps):
        notes += of_sides(times_before, times_after) + of_mix(
            mix(_whole_steps(times_before), _whole_steps(times_after))
        )
    else:
        notes.append(without_steps(with_steps))
    notes += of_compiled(runs, shapes=options.shapes)
    notes += undecided(rows, _moved(rows, options.threshold), _alone(rows), options.threshold)
    phases = _by_phase(rows, times_before, times_after, options.threshold)
    patterns = patterns_of(after, names[1]) | patterns_of(before, names[0])
    return Difference(_with_phases(rows, phases), _changed_kernels(own, rows), notes, phases, noun(after), patterns)


def _by_phase(rows: pd.DataFrame, before: StepTimes, after: StepTimes, threshold: float) -> pd.DataFrame:
    """Everything compared once more, in each phase by itself; nothing where no phases are told apart."""
    nothing = rows.iloc[:0].assign(phase=pd.Series([], dtype=object))
    parts = [judge(before.phases[name], after.phases[name], threshold).assign(phase=name) for name in before.phases]
    known = [part for part in parts if len(part)]
    return pd.concat(known, ignore_index=True) if known else nothing


def _with_phases(rows: pd.DataFrame, phases: pd.DataFrame) -> pd.DataFrame:
    """The rows with their change in each phase."""
    keyed = phases.assign(shapes=phases["shapes"].fillna(""))
    changes = keyed.pivot(index=KEYS, columns="phase", values="change_ns").reindex(columns=list(PHASES))
    index = pd.MultiIndex.from_frame(rows[KEYS].assign(shapes=rows["shapes"].fillna("")))
    by_row = changes.reindex(index).astype(np.float64)
    return rows.assign(**{f"{name}_change_ns": by_row[name].to_numpy() for name in PHASES})


def slower_than(rows: pd.DataFrame, share: float) -> pd.DataFrame:
    """The rows that became slower by more than a share and by more than the spread between steps.

    Kinds of steps that appeared or disappeared are included: there is nothing to compare them with. Things seen in one
    step of several have no spread and are ignored, except work between steps that slows all steps together by more
    than the share.
    """
    if not math.isfinite(share):
        return rows.iloc[:0]
    slower = (rows["status"] == "slower") & ((rows["change"] > share) | (rows["before_ns"] == 0))
    whole = _is_kind_of_steps(rows)
    total = (rows["before_ns"] * rows["before_steps"])[whole].sum()
    once = (rows["what"] == "between") & (rows["change_ns"] > share * total)
    kinds = whole & rows["status"].isin(("added", "gone"))
    failed: pd.DataFrame = rows[(slower & (~_alone(rows) | once)) | kinds]
    return failed


def _alone(rows: pd.DataFrame) -> pd.Series[bool]:
    """Which things were seen in a single step of a side that has several steps."""
    both = rows["before_ns"].notna() & rows["after_ns"].notna()
    alone: pd.Series[bool] = both & False
    for steps in (rows["before_steps"], rows["after_steps"]):
        alone |= both & (steps == 1) & (steps.max() > 1)
    return alone


def _is_kind_of_steps(rows: pd.DataFrame) -> pd.Series[bool]:
    """Which rows are whole steps of a kind, over all sizes."""
    return (rows["what"] == "step") & rows["shapes"].isna()


def _whole_steps(side: StepTimes) -> KeyTimes:
    return side.times.of(lambda key: key[0] == "step" and not key[2])


def _check_devices(before: Run, after: Run) -> None:
    """Refuses to compare a CPU with a GPU."""
    if before.work.kinds and after.work.kinds and before.work.on_cpu != after.work.on_cpu:
        devices = ["a CPU" if run.work.on_cpu else "a GPU" for run in (before, after)]
        problem = f"was recorded on {devices[1]}, but {before.dataset.folder} on {devices[0]}"
        raise DatasetError(after.dataset.folder, problem, "compare runs on the same kind of device")


def _check_hierarchies(before: Dataset, after: Dataset) -> None:
    """Refuses to compare modules with ranges or operators: none would have a counterpart."""
    keys = [keyed_by(side).keys() for side in (before, after)]
    if all(keys) and not keys[0] & keys[1]:
        first, second = (" and ".join(by) for by in keys)
        problem = f"its hierarchy is keyed by {second}, that of {before.folder} by {first}"
        raise DatasetError(after.folder, problem, "parse both with the same --by")


def judge(before: StepTimes, after: StepTimes, threshold: float = THRESHOLD) -> pd.DataFrame:
    """Puts the times of two datasets side by side and decides which changed; see :func:`frame`."""
    return _judged(before, after, threshold)[0]


def _judged(before: StepTimes, after: StepTimes, threshold: float) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows of :func:`judge`, and the kernels of each thing itself."""
    kernels = [side.kernels.set_index([*KEYS, "alike"]) for side in (before, after)]
    blocks = [_block(like(*times), kernels, threshold) for times in in_blocks(before.times, after.times)]
    rows, own = (pd.concat(parts) for parts in zip(*blocks, strict=True))
    for name in ("before_steps", "after_steps"):
        rows[name] = rows[name].fillna(0).astype(np.int64)
    rows = rows.reset_index()
    rows["shapes"] = rows["shapes"].where(rows["shapes"] != "", None)
    keys = pd.DataFrame({"whole": rows["what"] != "step", "size": -rows["change_ns"].abs()})
    order = np.lexsort((rows["path"], keys["size"], keys["whole"]))
    return rows.iloc[order].reset_index(drop=True), own


def _block(pairs: Like, kernels: list[pd.DataFrame], threshold: float) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows about some things, and their own kernels."""
    sides = [
        medians(times).add_prefix(f"{name}_") for name, times in zip(("before", "after"), pairs.times, strict=True)
    ]
    rows = sides[0].join(sides[1], how="outer").reindex(range(len(pairs.keys)))
    rows = rows.set_index(pd.MultiIndex.from_frame(pairs.keys))
    rows["change_ns"] = rows["after_ns"].fillna(0) - rows["before_ns"].fillna(0)
    rows["change"] = (rows["change_ns"] / rows["before_ns"]).where(rows["before_ns"] > 0)
    own = _own(pairs, kernels)
    rows["own_change_ns"] = own["change_ns"].groupby(level=KEYS).sum()
    rows["own_change_ns"] = rows["own_change_ns"].fillna(0.0)
    rows.insert(0, "status", _status(rows, threshold, pairs.unlike))
    return rows, own


def _moved(rows: pd.DataFrame, threshold: float) -> pd.Series[bool]:
    """Which medians moved by more than the threshold."""
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
    status: list[str] = np.select(
        [np.asarray(condition) for condition in conditions],
        ["added", "gone", "unlike", "slower", "faster"],
        "same",
    ).tolist()
    return status


def _own(pairs: Like, kernels: list[pd.DataFrame]) -> pd.DataFrame:
    """The kernels of each thing itself by name: number and time per step in which it had work.

    These are means by kind and size of steps, with the same weights on both sides.
    """
    sides = []
    cells = pd.MultiIndex.from_frame(pairs.cells)
    for name, weight, of_side in zip(("before", "after"), pairs.share, kernels, strict=True):
        own = of_side.join(pd.Series(weight, cells, name="share").dropna(), how="inner")
        for value in ("kernels", "ns"):
            own[f"{name}_{value}"] = own[value] * own["share"]
        own = own.set_index("name", append=True)[[f"{name}_kernels", f"{name}_ns"]]
        sides.append(own.groupby(level=[*KEYS, "name"]).sum())
    both = sides[0].join(sides[1], how="outer").fillna(0.0)
    both["change_ns"] = both["after_ns"] - both["before_ns"]
    return both


def _changed_kernels(own: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """The kernels of changed modules whose number or time per step changed."""
    changed = rows.loc[rows["status"] != "same", KEYS].assign(shapes=rows["shapes"].fillna(""))
    kernels = own[(own["change_ns"] != 0) | (own["before_kernels"] != own["after_kernels"])]
    kernels = kernels.reset_index().merge(changed, on=KEYS)
    kernels["shapes"] = kernels["shapes"].where(kernels["shapes"] != "", None)
    order = np.argsort(-kernels["change_ns"].abs().to_numpy(), kind="stable")
    return kernels.iloc[order].reset_index(drop=True)

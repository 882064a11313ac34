"""What changed between two runs, by module, and what keeps them from being compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from tracekit.aggregates.nodes import noun
from tracekit.aggregates.phase_times import PHASES
from tracekit.aggregates.weighted_kernels import certainty_of_work
from tracekit.arrays.text import duration, percent
from tracekit.arrays.types import Flags, Floats
from tracekit.comparison import comparable
from tracekit.comparison.comparable import Run
from tracekit.comparison.medians import OF_MEANS, MatchedTimes, chance_of, discoveries, matched_times, medians
from tracekit.comparison.noise import BESIDE, THRESHOLD, chance_of_gap, common_shifts, scales
from tracekit.comparison.step_metrics import (
    BLOCK_MARK,
    KEYS,
    Key,
    KeyTimes,
    common_properties,
    in_blocks,
    step_kinds,
    step_name,
)
from tracekit.comparison.step_times import StepTimes
from tracekit.dataset.opening import Dataset
from tracekit.dataset.patterns import Pattern
from tracekit.errors import UsageError
from tracekit.steptime.budget import step_lengths

_FEW_STEPS = 5
_PLACE = ", and of the same place in a row of such steps,"
_SIDES, _RUNS = ("before", "after"), ("first", "second")
#: How many kinds and sizes of steps a note names.
_MOST_NAMED = 3
#: The mix of steps changed if a kind and size gained or lost more than this share of the steps.
_MIX_CHANGE = 0.01
#: How large a share of the changes may be chance.
_FALSE_DISCOVERIES = 0.05
#: That of modules that take next to no time, as a share of the time in steps.
_LEAST_WEIGHT = 1e-3
#: Degrees of freedom of the noise between baselines, whose scale is learned from all modules together.
_FREE = 5
#: Modules with a smaller share of the time in steps do not fail a comparison by default.
MIN_SHARE = 0.01


class WallClock(NamedTuple):
    """The mean over the sizes of steps that both runs have of each one's median wall clock, in ns."""

    before_ns: int
    after_ns: int


class Difference(NamedTuple):
    """What changed, and in ``notes`` what a reader of the comparison must know, in sentences.

    Attributes:
        kernels: A row per changed module and kernel of its own that changed: ``what``, ``path``, ``shapes``, ``name``,
            and per step ``before_kernels``, ``after_kernels``, ``before_ns``, ``after_ns``, ``change_ns``.
        phases: Of trainings, the columns of ``rows`` up to the phases for the work in each ``phase``.
        node: What is compared besides steps: ``module``, ``range``, ``operator`` or ``node``.
        patterns: For the paths of modules the same with a star for the numbers of siblings: ``top.layers.*.mlp``.
        wall_clocks: That of steps alike in size, by kind of step; of kinds in which a device worked.
    """

    rows: pd.DataFrame
    kernels: pd.DataFrame
    notes: list[str]
    phases: pd.DataFrame
    node: str
    patterns: dict[str, str]
    wall_clocks: dict[str, WallClock]


def frame(before: Dataset, after: Dataset, *, strip_root: bool = False, shapes: bool = True) -> pd.DataFrame:
    """Everything compared, the largest change of time first.

    Args:
        before: The dataset before the change.
        after: The dataset after it.
        strip_root: Whether to ignore the first part of every path. Without it, roots of other names are matched if each
            dataset has one and a module below has the same path.
        shapes: Whether to distinguish calls of a module by their input shapes; never where modules ran in compiled
            graphs, which record none.

    Returns:
        A row per ``what`` (``step``: whole steps by kind, and by size if a kind has several; ``module``; ``unknown``:
        work without a module; ``between``: work between steps, and its modules), ``path`` and ``shapes`` (as JSON; null
        if not distinguished; for steps their size). ``status`` is ``added``, ``gone``, ``faster``, ``slower``,
        ``same``, or ``unlike``: only in steps of kinds or sizes that the other side lacks. ``change_ns`` and
        ``change`` (a share of before) are changes of the medians; ``own_change_ns`` is the change of the mean of a
        module's own kernels, without those of modules below. For each side: ``before_ns`` (the median over steps of
        the subtree's time), ``before_low_ns`` and ``before_high_ns`` (the interval that contains it; null if there are
        too few steps of several sizes), ``before_kernels`` (the median number of kernels) and ``before_steps`` (the
        number of steps; of several sizes, as many of each as both sides have); the same with ``after``. If either run
        is a training, ``forward_change_ns``, ``backward_change_ns``, ``recompute_change_ns``, ``optimizer_change_ns``
        and ``other_change_ns`` are the changes of the medians of the work in each phase, null where it has none; these
        medians need not add up. ``chance`` is how
        likely equal runs differ as much in the mean without outliers (null for single steps): of the changes at most
        one in twenty is chance (Benjamini and Hochberg), of whole steps and of modules.

    Raises:
        DatasetError: If one dataset is from a CPU run and the other from a GPU run, or if one is keyed by modules and
            the other by ranges or operators.
    """
    return compare(before, after, strip_root=strip_root, shapes=shapes).rows


def compare(before: Dataset, after: Dataset, *, strip_root: bool = False, shapes: bool = True) -> Difference:
    """Compares two datasets, with the kernels that changed; takes and raises what :func:`frame` does."""
    runs = comparable.run_of(before), comparable.run_of(after)
    comparable.check_devices(*runs)
    comparable.check_hierarchies(before, after)
    names, notes = comparable.names_of(before, after, strip_root=strip_root)
    with_steps = [run.with_steps for run in runs]
    times_before, times_after = comparable.measured(runs, names, steps=all(with_steps), shapes=shapes)
    rows, own = judge(times_before, times_after)
    if all(with_steps):
        whole = [side.times.of(lambda key: key[0] == "step" and not key[2]) for side in (times_before, times_after)]
        notes += of_sides(times_before, times_after) + of_mix(*whole)
    else:
        lacking = [name for name, known in zip(_RUNS, with_steps, strict=True) if not known]
        which = f"The {lacking[0]} run has no" if len(lacking) == 1 else "Neither run has"
        notes.append(f"{which} steps: totals are compared, and their spread is unknown.")
    notes += of_compiled(runs, shapes=shapes)
    notes += undecided(rows)
    parts = (judge(part, times_after.phases[name])[0].assign(phase=name) for name, part in times_before.phases.items())
    none = rows.iloc[:0].assign(phase=None)
    phases = pd.concat([part for part in parts if len(part)] or [none], ignore_index=True)
    patterns = comparable.patterns_of(after, names[1]) | comparable.patterns_of(before, names[0])
    keyed = phases.assign(shapes=phases["shapes"].fillna(""))
    changes = keyed.pivot(index=KEYS, columns="phase", values="change_ns").reindex(columns=list(PHASES))
    of_rows = changes.reindex(_index(rows)).astype(np.float64).add_suffix("_change_ns").set_index(rows.index)
    kernels = _changed_kernels(own, rows)
    return Difference(rows.join(of_rows), kernels, notes, phases, noun(after), patterns, wall_clocks(before, after))


def compare_with_several(
    baselines: Sequence[Dataset], after: Dataset, *, strip_root: bool = False, shapes: bool = True
) -> Difference:
    """Compares a dataset with several of equal software, from which the noise between runs is learned.

    Each row is that of the baseline whose change is the median. It is slower or faster only if it is so in comparison
    with all baselines, by more than these differ among themselves. What modules share that have the same kernels as
    before is the machine's doing: a change beside it counts only if it is several times as large.
    """
    pairs = [compare(before, after, strip_root=strip_root, shapes=shapes) for before in baselines]
    if len(pairs) == 1:
        return pairs[0]
    rows, kernels, phases = (
        pd.concat([getattr(pair, name).assign(pair=at) for at, pair in enumerate(pairs)], ignore_index=True)
        for name in ("rows", "kernels", "phases")
    )
    rows["key"] = rows[KEYS].fillna("").agg("\0".join, axis=1)
    rows["log"] = np.log(
        (rows["after_ns"] / rows["before_ns"]).where(~rows["status"].isin(("added", "gone", "unlike")))
    )
    logs = rows.pivot(index="key", columns="pair", values="log").replace([np.inf, -np.inf], np.nan)
    order = rows.sort_values("log", na_position="last", kind="stable").groupby("key", sort=False)
    middle = (order["log"].transform("count") - 1).clip(lower=0) // 2
    chosen = rows.loc[order.cumcount().eq(middle).pipe(lambda kept: kept.index[kept])].sort_values(["pair", "key"])
    is_module = (chosen["what"] == "module").to_numpy(bool)
    alike = is_module & _with_the_same_kernels(chosen, kernels)
    between, scale, jump = _chance_between(logs.loc[chosen["key"]].to_numpy(np.float64), is_module, alike)
    chosen["chance"] = np.fmax(chosen["chance"], between)
    judged = chosen["status"].isin(("slower", "faster", "same"))
    chosen.loc[judged, "status"] = np.array(_status(chosen, ~judged.to_numpy(bool)), object)[judged]
    chosen = chosen.iloc[np.lexsort((chosen["path"], -chosen["change_ns"].abs(), chosen["what"] != "step"))]
    kernels, phases = (part.merge(chosen[[*KEYS, "pair"]]).drop(columns="pair") for part in (kernels, phases))
    notes = dict.fromkeys(note for pair in pairs for note in pair.notes)
    learned = [percent(float(np.median(part))) for part in (scale[~is_module], scale[is_module]) if part.size]
    noise = f"Noise between runs is learned from {len(pairs)} baselines: whole steps vary by "
    noise += f"{' and modules by '.join(learned)}."
    if BESIDE * abs(jump) > THRESHOLD:
        away = f"{percent(abs(math.expm1(jump)))} {'slower' if jump > 0 else 'faster'}"
        noise += f" Modules together are {away} than in each of these with the same kernels: clocks, no change of the "
        noise += f"software. What is off by more than {BESIDE} times that beside it counts."
    kept = chosen.drop(columns=["key", "pair", "log"]).reset_index(drop=True)
    clocks = pd.concat([pd.DataFrame(pair.wall_clocks) for pair in pairs]).groupby(level=0).median()
    wall_clocks = {str(kind): WallClock(*map(round, sides)) for kind, sides in clocks.items()}
    patterns = {path: pattern for pair in pairs for path, pattern in pair.patterns.items()}
    return Difference(kept, kernels, [noise, *notes], phases, pairs[0].node, patterns, wall_clocks)


def _with_the_same_kernels(rows: pd.DataFrame, kernels: pd.DataFrame) -> Flags:
    """Which rows have no modules below, and kernels of the same names and as many as in all baselines."""
    above = {path.rpartition(".")[0] for path in rows["path"]}
    other = kernels.loc[kernels[["before_kernels", "after_kernels"]].min(axis=1) == 0, "path"]
    return np.asarray(rows["before_kernels"].eq(rows["after_kernels"]) & ~rows["path"].isin([*above, *other]))


def _chance_between(logs: Floats, modules: Flags, alike: Flags) -> tuple[Floats, Floats, float]:
    """How likely equal software differs as much from all baselines, the noise, and how far clocks are beyond theirs.

    ``logs`` are those of changes since each baseline, by row; ``alike`` are the rows of modules that show the clocks.
    """
    values = np.pad(-logs, ((0, 0), (0, 1)))
    shifts, _ = common_shifts(values[alike], np.zeros(values.shape[1], np.int64))
    jump = max(float(_gap(shifts)), 0.0)
    alone, beside = _gaps(values), _gaps(values - shifts)
    chance = np.where(modules, np.minimum(1.0, 2 * np.minimum(alone[0], beside[0])), alone[0])
    chance[(jump > 0) & ~(_gap(values - shifts) > BESIDE * jump)] = 1.0
    return chance, np.where(modules, beside[1], alone[1]), math.copysign(jump, shifts[-1] - np.median(shifts))


def _gap(values: Floats) -> Floats:
    """How far the last values are beyond all before them that are known."""
    old, new = values[..., :-1], values[..., -1]
    known = np.isfinite(old)
    lowest, highest = np.where(known, old, np.inf).min(axis=-1), np.where(known, old, -np.inf).max(axis=-1)
    return np.asarray(np.maximum(new - highest, lowest - new))


def _gaps(values: Floats) -> tuple[Floats, Floats]:
    old, gap = values[:, :-1], _gap(values)
    scale = scales(old, np.zeros(old.shape[1], np.int64))
    chance = [
        1.0 if not 0 < one < math.inf else min(1.0, 2 * chance_of_gap(one, count, _FREE))
        for one, count in zip((gap / scale).tolist(), np.isfinite(old).sum(axis=1).tolist(), strict=True)
    ]
    return np.array(chance), scale


def wall_clocks(before: Dataset, after: Dataset) -> dict[str, WallClock]:
    """By kind of step, in steps of the same kind, size and place in a row of such, weighted by how many both runs have.

    It can change where the time of no module does. Kinds of which no size is in both runs are left out.
    """
    properties = common_properties(before, after)
    sides = _medians(before, properties), _medians(after, properties)
    both = sides[0].merge(sides[1], on="alike", suffixes=("_before", "_after"))
    kinds = np.array([alike.partition(" ")[0] for alike in both["alike"]], dtype=object)
    weight = both[["steps_before", "steps_after"]].min(axis=1)
    found = {}
    for kind in dict.fromkeys(kinds):
        own = kinds == kind
        means = (np.average(both[name][own], weights=weight[own]) for name in ("ns_before", "ns_after"))
        found[kind] = WallClock(*(round(float(mean)) for mean in means))
    return found


def _medians(dataset: Dataset, properties: frozenset[str]) -> pd.DataFrame:
    """Steps alike in kind and size, with their median wall clock ``ns``, and the number of ``steps``."""
    parts = []
    for part, step, ns in step_lengths(dataset.whole):
        windows = pd.DataFrame({"ns": ns}, index=step).query("ns > 0")
        parts.append(windows.join(step_kinds(part, properties, places=True)["alike"], how="inner"))
    return pd.concat(parts).groupby("alike", sort=False)["ns"].agg(ns="median", steps="size").reset_index()


def slower_than(rows: pd.DataFrame, share: float, min_share: float = MIN_SHARE) -> pd.DataFrame:
    """The rows that became slower by more than a share and by more than chance, without modules of little time.

    Kinds of steps that appeared or disappeared are included, and all kinds if no steps are alike in both runs: there is
    nothing to compare them with. Things seen in one step of several have no spread and are ignored, except work between
    steps that slows all steps together by more than the share.
    """
    if not math.isfinite(share):
        return rows.iloc[:0]
    slower = (rows["status"] == "slower") & ((rows["change"] > share) | (rows["before_ns"] == 0)) & ~_alone(rows)
    modules, time = rows["what"] == "module", share_of_time(rows)
    whole = (rows["what"] == "step") & rows["shapes"].isna()
    slower &= ~modules | (time >= min_share)
    if not slower[whole].any():
        # All modules together become slower by less than steps may: that is the clocks' doing, and no module's.
        common = max(rows["change"][modules & (time >= min_share)].median(), 0.0)
        slower &= ~modules | (rows["change"] - common > share) | (rows["before_ns"] == 0)
    total = (rows["before_ns"] * rows["before_steps"])[whole].sum()
    once = (rows["what"] == "between") & (rows["change_ns"] > share * total)
    statuses = ["added", "gone", *(["unlike"] if set(rows["status"][whole]) == {"unlike"} else [])]
    kinds = whole & rows["status"].isin(statuses)
    return rows.loc[slower | (rows["status"] == "slower") & once | kinds]


def share_of_time(rows: pd.DataFrame) -> pd.Series:
    """The share of each row in the time of steps, in the run where that is more; 1 if steps took no time."""
    whole, most = (rows["what"] == "step") & rows["shapes"].isna(), pd.Series(0.0, rows.index)
    for side in _SIDES:
        spent = (rows[f"{side}_ns"] * rows[f"{side}_steps"]).fillna(0.0)
        share = spent / spent[whole].sum() if spent[whole].any() else spent * 0 + 1
        most = most.where(most > share, share)
    return most


def part_of(difference: Difference, path: str | None, min_share: float) -> Difference:
    """The comparison of whole steps, and of modules at or below a path or pattern that have some share of the time.

    Raises:
        UsageError: If there is no such module.
    """
    rows = difference.rows
    inside = np.ones(len(rows), bool) if path is None else np.array(Pattern(path).inside(rows["path"]), bool)
    if not (inside & (rows["what"] == "module")).any() and path is not None:
        raise UsageError(f"neither dataset has a module {path}")
    kept = (rows["what"] != "module") | (share_of_time(rows) >= min_share)
    rows = rows[kept & (inside | (rows["what"] == "step"))].reset_index(drop=True)
    tables = (difference.kernels, difference.phases)
    kernels, phases = (table[_index(table).isin(_index(rows))].reset_index(drop=True) for table in tables)
    return difference._replace(rows=rows, kernels=kernels, phases=phases)


def _index(rows: pd.DataFrame) -> pd.MultiIndex:
    return pd.MultiIndex.from_frame(rows[KEYS].fillna(""))


def _alone(rows: pd.DataFrame) -> pd.Series:
    both = rows["before_ns"].notna() & rows["after_ns"].notna()
    single = [(steps == 1) & (steps.max() > 1) for steps in (rows["before_steps"], rows["after_steps"])]
    alone: pd.Series = both & (single[0] | single[1])
    return alone


def judge(before: StepTimes, after: StepTimes) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Puts the times of two datasets side by side and decides which changed, as :func:`frame`; and kernels by name."""
    kernels = [side.kernels.set_index(["key", "alike"]) for side in (before, after)]
    blocks = [_block(matched_times(*times), kernels) for times in in_blocks(before.times, after.times)]
    rows, own = (_named(pd.concat(parts), before.times.keys) for parts in zip(*blocks, strict=True))
    for name in ("before_steps", "after_steps"):
        rows[name] = rows[name].fillna(0).astype(np.int64)
    rows["chance"] = _chance(rows)
    rows.insert(len(KEYS), "status", _status(rows, rows.pop("unlike").to_numpy(bool)))
    order = np.lexsort((rows["path"], -rows["change_ns"].abs(), rows["what"] != "step"))
    return rows.iloc[order].reset_index(drop=True), own


def _named(rows: pd.DataFrame, keys: Sequence[Key]) -> pd.DataFrame:
    """The rows with what they are about in front, in place of numbers; shapes that are not distinguished are null."""
    rows = rows.reset_index()
    names = pd.DataFrame([keys[at] for at in rows.pop("key")], columns=KEYS, dtype=object)
    return pd.concat([names.assign(shapes=names["shapes"].where(names["shapes"] != "", None)), rows], axis=1)


def _block(pairs: MatchedTimes, kernels: list[pd.DataFrame]) -> tuple[pd.DataFrame, pd.DataFrame]:
    sides = [medians(times).reindex(range(len(pairs.keys))) for times in pairs.times]
    rows = pd.concat([side.add_prefix(f"{name}_") for name, side in zip(_SIDES, sides, strict=True)], axis=1)
    rows = rows.set_index(pd.Index(pairs.keys, name="key"))
    rows["change_ns"] = rows["after_ns"].fillna(0) - rows["before_ns"].fillna(0)
    rows["change"] = (rows["change_ns"] / rows["before_ns"]).where(rows["before_ns"] > 0)
    own = _own(pairs, kernels)
    rows["own_change_ns"] = own["change_ns"].groupby(level="key").sum()
    rows["own_change_ns"] = rows["own_change_ns"].fillna(0.0)
    return rows.assign(unlike=pairs.unlike), own


def _moved(rows: pd.DataFrame) -> pd.Series:
    return rows["change_ns"].abs() > THRESHOLD * rows["before_ns"]


def _status(rows: pd.DataFrame, unlike: Flags) -> list[str]:
    """What became of each row; only what changed by more than chance did, whole steps apart from the many modules."""
    chance, modules = rows["chance"].to_numpy(np.float64), (rows["what"] == "module").to_numpy(bool)
    # Single steps have no spread.
    single = (rows[["before_steps", "after_steps"]] == 1).all(axis=1) & rows["before_low_ns"].notna()
    real = np.array(single & rows["after_low_ns"].notna(), bool)
    # What takes more time counts for more: otherwise many small modules would hide a change of a large one.
    weight = np.maximum(share_of_time(rows).to_numpy(np.float64), _LEAST_WEIGHT)
    for family in (~modules, modules):
        real[family] |= discoveries(chance[family], weight[family], _FALSE_DISCOVERIES)
    real &= _moved(rows)
    conditions = [
        rows["before_ns"].isna(),
        rows["after_ns"].isna(),
        unlike,
        real & (rows["change_ns"] > 0),
        real & (rows["change_ns"] < 0),
    ]
    names = ["added", "gone", "unlike", "slower", "faster"]
    return [*np.select([np.asarray(condition) for condition in conditions], names, "same").tolist()]


def _chance(rows: pd.DataFrame) -> Floats:
    """Probability that equal runs differ as much, with or without the change common to all modules (clocks)."""
    sides = [pd.DataFrame({name: rows.pop(f"{side}_{name}") for name in OF_MEANS}) for side in _SIDES]
    modules = rows["what"] == "module"
    common = (sides[1]["trimmed_ns"] / sides[0]["trimmed_ns"])[modules].replace([0.0, np.inf], np.nan).dropna().median()
    alone, beside = chance_of(sides), chance_of(sides, 1.0 if math.isnan(common) else common)
    return np.where(modules, np.minimum(1.0, 2 * np.minimum(alone, beside)), alone)


def _own(pairs: MatchedTimes, kernels: list[pd.DataFrame]) -> pd.DataFrame:
    """The kernels of each thing itself by name: means per step, with the same weights of cells on both sides."""
    sides = []
    for side, share, of_side in zip(_SIDES, pairs.share, kernels, strict=True):
        own = of_side.join(share, how="inner")
        figures = own[["kernels", "ns"]].mul(own["share"], axis=0).add_prefix(f"{side}_")
        sides.append(figures.set_index(own["name"], append=True).groupby(level=["key", "name"]).sum())
    both = sides[0].join(sides[1], how="outer").fillna(0.0)
    both["change_ns"] = both["after_ns"] - both["before_ns"]
    return both


def _changed_kernels(own: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    kernels = own[(own["change_ns"] != 0) | (own["before_kernels"] != own["after_kernels"])]
    kernels = kernels.merge(rows.loc[rows["status"] != "same", KEYS], on=KEYS)
    order = np.argsort(-kernels["change_ns"].abs().to_numpy(), kind="stable")
    return kernels.iloc[order].reset_index(drop=True)


def undecided(rows: pd.DataFrame) -> list[str]:
    """Notes on what cannot be decided: changes without a spread, steps without a counterpart, and too few steps."""
    notes = []
    if single := int((_alone(rows) & rows["status"].isin(("slower", "faster"))).sum()):
        notes.append(
            f"{single} of the changes were seen in a single step of one run, so their spread is unknown: --fail-over "
            "ignores them. --ignore-shapes compares modules over all steps of one kind and size."
        )
    if unlike := int((rows["status"] == "unlike").sum()):
        notes.append(
            f"{unlike} of {len(rows)} rows have no steps of the same kind and size in both runs and are not compared."
        )
    few_steps = rows[["before_steps", "after_steps"]].min(axis=1) < _FEW_STEPS
    few_steps |= rows[["before_low_ns", "after_low_ns"]].isna().any(axis=1)
    both = rows["before_ns"].notna() & rows["after_ns"].notna()
    if few := int((both & few_steps & _moved(rows) & (rows["status"] == "same")).sum()):
        notes.append(
            f"{few} of {len(rows)} rows moved by more than {THRESHOLD * 100:.0f} %, but have fewer than {_FEW_STEPS} "
            "steps in one run (or of one size): too few to tell a change from noise, so they count as same. Record "
            f"{_FEW_STEPS} steps or more."
        )
    return notes


def of_compiled(runs: Sequence[Run], *, shapes: bool) -> list[str]:
    """Notes on runs of compiled graphs: what is not distinguished, and how sure it is which module the work is of."""
    compiled, weighted = [run.compiled for run in runs], False
    notes = []
    if any(compiled) and shapes:
        notes.append(
            "Modules inside compiled graphs record no shapes, so modules are compared over all shapes, as with "
            "--ignore-shapes."
        )
    for name, run in zip(_RUNS, runs, strict=True):
        time = certainty_of_work(run.dataset) if run.compiled else {}
        if whole := sum(time.values()):
            parts = [f"{percent(spent / whole)} {kind}" for kind, spent in time.items() if spent]
            notes.append(f"Attributed time of the {name} run: {', '.join(parts)}.")
            weighted |= time["weighted"] > 0
    if weighted:
        notes.append(
            "Weighted kernels are fused: the time of each is divided between the modules that it serves, and it counts "
            "as a kernel of the first of them."
        )
    return notes


def of_sides(before: StepTimes, after: StepTimes) -> list[str]:
    """Notes on each run: work that is not compared by module, and few steps."""
    notes = []
    for name, side in zip(_RUNS, (before, after), strict=True):
        if between := int(side.between.ns.sum()):
            notes.append(f"The {name} run has {duration(between)} of work between steps, under (between steps).")
        if side.outside_ns:
            notes.append(
                f"The {name} run has {duration(side.outside_ns)} of work launched before the first step of its "
                "process; it is ignored."
            )
        if side.steps < _FEW_STEPS:
            steps = f"{side.steps} {'step' if side.steps == 1 else 'steps'}"
            notes.append(f"The {name} run has {steps}, too few to know its spread well; record {_FEW_STEPS} or more.")
    return notes


def of_mix(before: KeyTimes, after: KeyTimes) -> list[str]:
    """Notes on which steps were compared, and on how their mix changed, given a row for every step."""
    sides = [
        pd.Series(side.ns).groupby(np.array(side.alikes, object)[side.alike]).agg(["size", "sum"])
        for side in (before, after)
    ]
    sizes = [side["size"].groupby([alike.partition(BLOCK_MARK)[0] for alike in side.index]).sum() for side in sides]
    shares = pd.concat([size / max(size.sum(), 1) for size in sizes], axis=1, keys=_SIDES).fillna(0.0)
    places = any(BLOCK_MARK in alike for side in sides for alike in side.index)
    if len(shares) <= 1 and not places:
        return []
    common = sides[0].index.intersection(sides[1].index)
    first, second = (percent(side["sum"].reindex(common).sum() / max(side["sum"].sum(), 1)) for side in sides)
    notes = [
        f"Only steps of the same kind and size{_PLACE if places else ''} are compared: {first} of the time in steps of "
        f"the first run, {second} of the second."
    ]
    moved = (shares["after"] - shares["before"]).abs()
    changed = moved.sort_values(ascending=False).index[: (moved > _MIX_CHANGE).sum()]
    named = "; ".join(
        f"{step_name(alike)}: {percent(share)} of the steps before, {percent(later)} after"
        for alike, share, later in shares.loc[changed[:_MOST_NAMED]].itertuples()
    )
    rest = f"; and {len(changed) - _MOST_NAMED:,} more" if len(changed) > _MOST_NAMED else ""
    if named:
        notes.append(f"The mix of steps changed, which does not count as a change of speed: {named}{rest}.")
    return notes

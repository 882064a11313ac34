"""What a reader of a comparison must know, in sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.analyses.certainty import of_all

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from tracekit.analyses.comparable import Run
    from tracekit.analyses.step_kinds import Mix
    from tracekit.analyses.step_times import StepTimes

_FEW_STEPS = 5
#: How many kinds and sizes of steps a note names.
_MOST_NAMED = 3


def undecided(rows: pd.DataFrame, moved: pd.Series[bool], alone: pd.Series[bool], threshold: float) -> list[str]:
    """Notes on what cannot be decided: changes without a spread, steps without a counterpart, and too few steps."""
    notes = []
    if single := int((alone & rows["status"].isin(("slower", "faster"))).sum()):
        notes.append(
            f"{single} of the changes were seen in a single step of one run, so their spread is unknown: --fail-over "
            "ignores them. --ignore-shapes compares modules over all steps that are alike."
        )
    if unlike := int((rows["status"] == "unlike").sum()):
        notes.append(
            f"{unlike} of {len(rows)} rows have no steps of the same kind and size in both runs and are not compared."
        )
    if few := int((_in_few_steps(rows) & moved & (rows["status"] == "same")).sum()):
        share = f"{threshold:.2%}".rstrip("0%").rstrip(".")
        notes.append(
            f"{few} of {len(rows)} rows moved by more than {share} %, but have fewer than {_FEW_STEPS} steps in one "
            f"run (or of one size): too few to tell a change from noise, so they count as same. Record {_FEW_STEPS} "
            "steps or more."
        )
    return notes


def _in_few_steps(rows: pd.DataFrame) -> pd.Series[bool]:
    """Which rows of both runs have so few steps that a change can hide in noise."""
    both = rows["before_ns"].notna() & rows["after_ns"].notna()
    few = rows[["before_steps", "after_steps"]].min(axis=1) < _FEW_STEPS
    return both & (few | rows[["before_low_ns", "after_low_ns"]].isna().any(axis=1))


def of_compiled(runs: Sequence[Run], *, shapes: bool) -> list[str]:
    """Notes on runs of compiled graphs: what is not told apart, and how sure it is whose the work is.

    Args:
        runs: Both runs.
        shapes: Whether shapes were to be told apart.
    """
    compiled, weighted = [run.work.in_compiled_graphs for run in runs], False
    notes = []
    if any(compiled) and shapes:
        notes.append(
            "Modules inside compiled graphs record no shapes, so modules are compared over all shapes, as with "
            "--ignore-shapes."
        )
    for name, run in zip(("first", "second"), runs, strict=True):
        time = of_all(run.dataset) if run.work.in_compiled_graphs else {}
        if whole := sum(time.values()):
            parts = [f"{spent / whole:.1%} {kind}" for kind, spent in time.items() if spent]
            notes.append(f"Attributed time of the {name} run: {', '.join(parts)}.".replace("%", " %"))
            weighted |= time["weighted"] > 0
    if weighted:
        notes.append(
            "Weighted kernels are fused: the time of each is divided between the modules that it serves, and it counts "
            "as a kernel of the first of them."
        )
    return notes


def without_steps(with_steps: list[bool]) -> str:
    """A note on which run has no steps."""
    names = {(False, True): "The first run has no steps", (True, False): "The second run has no steps"}
    problem = names.get((with_steps[0], with_steps[1]), "Neither run has steps")
    return f"{problem}: totals are compared, and their spread is unknown."


def of_sides(before: StepTimes, after: StepTimes) -> list[str]:
    """Notes on each run: work that is not compared by module, and few steps."""
    notes = []
    for name, side in (("first", before), ("second", after)):
        if side.between is not None and (between := int(side.between.ns.sum())):
            notes.append(f"The {name} run has {between:,} ns of work between steps; it is compared as a whole.")
        if side.outside_ns:
            notes.append(
                f"The {name} run has {side.outside_ns:,} ns of work launched before the first step of its process; it "
                "is ignored."
            )
        if side.steps < _FEW_STEPS:
            steps = f"{side.steps} {'step' if side.steps == 1 else 'steps'}"
            notes.append(f"The {name} run has {steps}, too few to know its spread well; record {_FEW_STEPS} or more.")
    return notes


def of_mix(mix: Mix) -> list[str]:
    """Notes on which steps were compared, and on how their mix changed."""
    if not mix.several:
        return []
    before, after = (_percent(share) for share in mix.covered)
    notes = [
        "Only steps of the same kind and size are compared: "
        f"{before} of the time in steps of the first run, {after} of the second."
    ]
    if mix.changed:
        named = "; ".join(
            f"{name}: {_percent(share)} of the steps before, {_percent(later)} after"
            for name, share, later in mix.changed[:_MOST_NAMED]
        )
        more = len(mix.changed) - _MOST_NAMED
        rest = f"; and {more:,} more" if more > 0 else ""
        notes.append(f"The mix of steps changed, which does not count as a change of speed: {named}{rest}.")
    return notes


def _percent(share: float) -> str:
    return f"{share:.1%}".replace("%", " %")

"""What to know of a comparison, in sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from tracekit.analyses.step_kinds import Mix
    from tracekit.analyses.step_times import StepTimes

_FEW_STEPS = 5
#: How many kinds and sizes of steps are named.
_MOST_NAMED = 3


def undecided(rows: pd.DataFrame, moved: pd.Series[bool], alone: pd.Series[bool], threshold: float) -> list[str]:
    """Says what cannot be decided: changes without a spread, medians that may have moved by it, and what is unlike."""
    both = rows["before_ns"].notna() & rows["after_ns"].notna()
    found = []
    if single := int((alone & rows["status"].isin(("slower", "faster"))).sum()):
        found.append(
            f"{single} of the changes were seen in a single step of one side, which has no spread: --fail-over leaves "
            "them out. With --ignore-shapes modules are compared over all steps that are alike."
        )
    if unlike := int((rows["status"] == "unlike").sum()):
        found.append(
            f"{unlike} of {len(rows)} things compared are in no steps of like kind and size on both sides: "
            "they are not compared."
        )
    few = rows[["before_steps", "after_steps"]].min(axis=1) < _FEW_STEPS
    few |= rows[["before_low_ns", "after_low_ns"]].isna().any(axis=1)
    count = int((both & few & moved & (rows["status"] == "same")).sum())
    if not count:
        return found
    share = f"{threshold:.2%}".rstrip("0%").rstrip(".")
    return [
        *found,
        f"{count} of {len(rows)} things compared moved by more than {share} %, but in fewer than {_FEW_STEPS} "
        f"steps of one side, or of their sizes: too few to tell that from noise; they count as same. Record "
        f"{_FEW_STEPS} steps or more.",
    ]


def without_steps(there: list[bool]) -> str:
    """Says whose steps are missing."""
    which = {(False, True): "The first has no steps", (True, False): "The second has no steps"}
    said = which.get((there[0], there[1]), "Neither has steps")
    return f"{said}: totals are compared, and the spread is not known."


def of_sides(before: StepTimes, after: StepTimes) -> list[str]:
    """Says what of each side is not compared by module, and where there are few steps."""
    notes = []
    for name, side in (("first", before), ("second", after)):
        if side.between is not None and (between := int(side.between["ns"].sum())):
            notes.append(f"{between:,} ns of the {name} lie between steps: compared as a whole, not by module.")
        if side.outside_ns:
            notes.append(
                f"{side.outside_ns:,} ns of the {name} were launched before the first step of their process and are "
                "left out."
            )
        if side.steps < _FEW_STEPS:
            few = f"The {name} has {side.steps} {'step' if side.steps == 1 else 'steps'}"
            notes.append(f"{few}: its spread is hardly known; record {_FEW_STEPS} or more.")
    return notes


def of_mix(found: Mix) -> list[str]:
    """Says which steps were compared, and how their mix changed."""
    if not found.several:
        return []
    before, after = (f"{share:.1%}".replace("%", " %") for share in found.covered)
    notes = [
        f"Compared are steps of like kind and size: {before} of the time in steps of the first, {after} of the second."
    ]
    if found.changed:
        named = "; ".join(
            f"{name}: {one:.1%} of the steps, then {other:.1%}".replace("%", " %")
            for name, one, other in found.changed[:_MOST_NAMED]
        )
        more = len(found.changed) - _MOST_NAMED
        rest = f"; and {more:,} more" if more > 0 else ""
        notes.append(f"The mix of steps changed, which is no change of their speed: {named}{rest}.")
    return notes

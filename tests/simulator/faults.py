"""Loses rows of a finished run. Truth then climbs past what is lost; it never searches for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

    from tests.simulator.events import Launch, Range, Work
    from tests.simulator.plan import Faults


def lose(
    ranges: list[Range], launches: list[Launch], work: list[Work], *, faults: Faults, rng: Random
) -> None:
    """Marks the rows that the file will not hold.

    A late start loses whatever began before a moment of the run, also what is still running then; the chances strike
    any other row, except a thread's last sign of life (it says when its open ranges were last seen).
    """
    if faults.late_start and ranges:
        moments = sorted(event.start_ns for event in [*ranges, *launches])
        began = rng.choice(moments[: len(moments) // 2 + 1])
        for event in [*ranges, *launches, *work]:
            event.lost = event.lost or event.start_ns < began
    for pushed in ranges:
        pushed.lost = pushed.lost or (not pushed.kept and rng.random() < faults.lost_ranges)
    for launch in launches:
        launch.lost = launch.lost or (not launch.kept and rng.random() < faults.lost_launches)
    for piece in work:
        piece.lost = piece.lost or rng.random() < faults.lost_work


def lose_graph_traces(work: list[Work]) -> None:
    """Older schemas have no table for graphs traced as a whole: that time is in no file of theirs."""
    for piece in work:
        piece.lost = piece.lost or piece.kind == "graph"

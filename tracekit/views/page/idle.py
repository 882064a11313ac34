"""Waiting on the page: when devices stood idle, and whose launches they waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracekit.analyses import gaps
from tracekit.views.page import limits
from tracekit.views.page.limits import clipped
from tracekit.views.wording import records

if TYPE_CHECKING:
    import pandas as pd

    from tracekit.dataset.opening import Dataset

_PAIRS = 50


def idle(dataset: Dataset) -> dict[str, Any]:
    """Idle time of each device, and between which modules most of it lies.

    Returns:
        ``devices``: ``report``, ``device``, ``gaps``, ``idle_ns``, ``share`` (of the time from first to last work),
        ``longest_ns``; ``pairs``: the same by module ``before`` and ``after``; ``left_out`` pairs.
    """
    found = gaps.frame(dataset)
    sums = found.groupby(["report", "device"], sort=False, dropna=False).agg(
        gaps=("gaps", "sum"),
        idle_ns=("idle_ns", "sum"),
        share=("share", "sum"),
        longest_ns=("longest_ns", "max"),
    )
    return {
        "devices": _shown(sums.reset_index(), limits.ROWS),
        "pairs": _shown(found, _PAIRS),
        "left_out": max(len(found) - _PAIRS, 0),
    }


def _shown(frame: pd.DataFrame, most: int) -> list[dict[str, Any]]:
    rows = records(frame.head(most))
    for row in rows:
        for name in ("report", "before", "after"):
            if row.get(name) is not None:
                row[name] = clipped(row[name])
    return rows


def launched(found: pd.DataFrame) -> dict[str, int]:
    """Sums of what the analysis ``launches`` answers: how many, host time, GPU time, how much of it launch-bound."""
    names = (
        "launches",
        "launch_ns",
        "blocked_ns",
        "gpu_time_ns",
        "launch_bound_ns",
        "waiting_ns",
        "replayed_ns",
    )
    return {name: int(found[name].sum()) for name in names}

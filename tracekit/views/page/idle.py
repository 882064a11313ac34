"""Idle time on the page: how long devices were idle, between which modules, and how many launches they waited for."""

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
    """Idle time of each device, and the pairs of modules between which most of it lies.

    Returns:
        ``devices``: ``report``, ``device``, ``gaps``, ``idle_ns``, ``share`` (of the time from first to last work),
        ``longest_ns``; ``pairs``: the same for each pair of modules, ``before`` and ``after`` the gap; ``left_out``:
        how many pairs are not listed.
    """
    pairs = gaps.frame(dataset)
    sums = pairs.groupby(["report", "device"], sort=False, dropna=False).agg(
        gaps=("gaps", "sum"),
        idle_ns=("idle_ns", "sum"),
        share=("share", "sum"),
        longest_ns=("longest_ns", "max"),
    )
    return {
        "devices": _shown(sums.reset_index(), limits.ROWS),
        "pairs": _shown(pairs, _PAIRS),
        "left_out": max(len(pairs) - _PAIRS, 0),
    }


def _shown(frame: pd.DataFrame, most: int) -> list[dict[str, Any]]:
    rows = records(frame.head(most))
    for row in rows:
        for name in ("report", "before", "after"):
            if row.get(name) is not None:
                row[name] = clipped(row[name])
    return rows


def launched(by_module: pd.DataFrame) -> dict[str, int]:
    """Sums over the rows of the analysis ``launches``: number, host time, GPU time, and launch-bound GPU time."""
    names = (
        "launches",
        "launch_ns",
        "blocked_ns",
        "gpu_time_ns",
        "launch_bound_ns",
        "waiting_ns",
        "replayed_ns",
    )
    return {name: int(by_module[name].sum()) for name in names}

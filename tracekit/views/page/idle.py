"""Idle time on the page: how long devices were idle, between which modules, and how many launches they waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from tracekit.analyses import gaps
from tracekit.views.page import limits
from tracekit.views.page.limits import clipped
from tracekit.views.wording import records

if TYPE_CHECKING:
    from tracekit.dataset.opening import Dataset

_PAIRS = 50


def idle(dataset: Dataset) -> dict[str, Any]:
    """Idle time of each device, and the pairs of modules between which most of it lies.

    Returns:
        ``devices``: ``report``, ``device``, ``gaps``, ``idle_ns``, ``share`` (of the time from first to last work),
        ``longest_ns``; ``pairs``: the same for each pair of modules, ``before`` and ``after`` the gap; ``left_out``:
        how many pairs are not listed.
    """
    devices, largest, count = [], [], 0
    for part in dataset.by_report():
        pairs = gaps.frame(part)
        devices.append(_by_device(pairs))
        largest.append(pairs.head(_PAIRS))
        count += len(pairs)
    return {
        "devices": _shown(_largest(devices, "largest_ns").drop(columns="largest_ns"), limits.ROWS),
        "pairs": _shown(_largest(largest, "idle_ns"), _PAIRS),
        "left_out": max(count - _PAIRS, 0),
    }


def _by_device(pairs: pd.DataFrame) -> pd.DataFrame:
    """The idle time of each device, that of its largest pair too."""
    groups = pairs.groupby(["report", "device"], sort=False, dropna=False)
    return groups.agg(
        gaps=("gaps", "sum"),
        idle_ns=("idle_ns", "sum"),
        share=("share", "sum"),
        longest_ns=("longest_ns", "max"),
        largest_ns=("idle_ns", "first"),
    ).reset_index()


def _largest(parts: list[pd.DataFrame], column: str) -> pd.DataFrame:
    """The rows of several tables, the largest value of a column first."""
    rows = pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)
    return rows.sort_values(column, ascending=False, kind="stable")


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

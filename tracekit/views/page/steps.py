"""Steps on the page: what they cost, by kind and batch size, and which of them the timeline draws."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tracekit.analyses import phases
from tracekit.views.page import limits
from tracekit.views.page.limits import clipped
from tracekit.views.wording import records

if TYPE_CHECKING:
    import pandas as pd

    from tracekit.dataset.opening import Dataset


class Chosen(NamedTuple):
    """A step to draw.

    Attributes:
        row: Its row in the answer of the analysis ``steps``.
        why: ``median``, ``slowest`` or ``first`` of its kind.
    """

    row: int
    why: str


def steps(frame: pd.DataFrame, dataset: Dataset) -> dict[str, Any]:
    """What steps cost.

    Args:
        frame: The answer of the analysis ``steps``.
        dataset: The dataset.

    Returns:
        ``phases``: rows by kind and batch size; ``bars``: the steps in order, with ``gpu_time_ns``, ``kind`` (index
        into ``kinds``) and ``step`` (its row). Of more steps than there is room for, neighbours share a bar, which is
        that of the slowest.
    """
    rows = records(phases.frame(dataset))
    for row in rows:
        row["kind"] = row["kind"] and clipped(row["kind"])
    kinds = list(dict.fromkeys(map(_kind, frame["kind"])))
    return {
        "phases": rows[: limits.ROWS],
        "phases_left_out": max(len(rows) - limits.ROWS, 0),
        "count": len(frame),
        "kinds": [clipped(kind) for kind in kinds[: limits.ROWS]],
        "bars": _bars(frame, kinds),
    }


def _bars(frame: pd.DataFrame, kinds: list[str]) -> dict[str, list[int]]:
    shown = _slowest(frame["gpu_time_ns"].to_numpy("int64"), limits.BARS)
    index = {kind: at for at, kind in enumerate(kinds)}
    steps = frame.iloc[shown]
    return {
        "step": shown.tolist(),
        "gpu_time_ns": steps["gpu_time_ns"].tolist(),
        "kind": [min(index[_kind(kind)], limits.ROWS) for kind in steps["kind"]],
    }


def chosen(frame: pd.DataFrame) -> list[Chosen]:
    """The steps to draw: of each kind (and report) the median and the slowest by GPU time, and the first.

    Of two steps in the middle, the faster is the median. The median of the most frequent kind comes first. Steps
    without work are ignored.
    """
    worked = frame.assign(row=np.arange(len(frame)))[frame["kernels"] > 0]
    keys = [name for name in ("report", "kind") if name in worked.columns]
    groups = [group for _, group in worked.groupby(keys, sort=False, dropna=False)]
    groups.sort(key=len, reverse=True)
    steps: dict[int, Chosen] = {}
    for why in ("median", "slowest", "first"):
        for group in groups:
            row = _of_group(group, why)
            steps.setdefault(row, Chosen(row, why))
    return list(steps.values())[: limits.STEPS]


def described(frame: pd.DataFrame, step: Chosen) -> dict[str, Any]:
    """A step that is drawn: its row, and why it was chosen."""
    row = records(frame.iloc[[step.row]])[0]
    for name in ("report", "name"):
        row[name] = row.get(name) and clipped(row[name])
    return row | {"kind": clipped(_kind(row["kind"])), "row": step.row, "why": step.why}


def _of_group(group: pd.DataFrame, why: str) -> int:
    if why == "first":
        return int(group["row"].iloc[0])
    rows = group.sort_values("gpu_time_ns", kind="stable")["row"]
    return int(rows.iloc[(len(rows) - 1) // 2 if why == "median" else -1])


def _kind(kind: str | None) -> str:
    return kind or "step"


def _slowest(time: np.ndarray[Any, np.dtype[np.int64]], most: int) -> np.ndarray[Any, Any]:
    """At most ``most`` rows in order, each the slowest of a group of neighbours."""
    if time.size <= most:
        return np.arange(time.size)
    group = np.arange(time.size) * most // time.size
    order = np.lexsort((-time, group))
    first = np.searchsorted(group[order], np.arange(most))
    return order[first]

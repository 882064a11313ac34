"""Steps on the page: what they cost, by kind and batch size, and those whose work is drawn."""

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
    """A step to draw: its row among the steps, and why this one."""

    row: int
    why: str


def steps(frame: pd.DataFrame, dataset: Dataset) -> dict[str, Any]:
    """What steps cost.

    Args:
        frame: What the analysis ``steps`` answers.
        dataset: The dataset.

    Returns:
        ``phases``: rows by kind and batch size; ``bars``: the steps in their order, ``gpu_time_ns``, ``kind`` (place
        among ``kinds``) and ``step`` (its row); of more steps than there is room for, the slowest of some neighbours.
    """
    found = records(phases.frame(dataset))
    for row in found:
        row["kind"] = row["kind"] and clipped(row["kind"])
    slowest = _slowest(frame["gpu_time_ns"].to_numpy("int64"), limits.BARS)
    kinds = list(dict.fromkeys(_kind(kind) for kind in frame["kind"]))
    place = {kind: at for at, kind in enumerate(kinds)}
    said = frame.iloc[slowest]
    return {
        "phases": found[: limits.ROWS],
        "phases_left_out": max(len(found) - limits.ROWS, 0),
        "count": len(frame),
        "kinds": [clipped(kind) for kind in kinds[: limits.ROWS]],
        "bars": {
            "step": slowest.tolist(),
            "gpu_time_ns": said["gpu_time_ns"].tolist(),
            "kind": [min(place[_kind(kind)], limits.ROWS) for kind in said["kind"]],
        },
    }


def chosen(frame: pd.DataFrame) -> list[Chosen]:
    """The steps worth drawing: of each kind (and report) the median, the slowest and the first by GPU time.

    Of two in the middle the faster one is drawn. The first one is the median of the most frequent kind. Steps without
    work are none.
    """
    worked = frame.assign(row=np.arange(len(frame)))[frame["kernels"] > 0]
    keys = [name for name in ("report", "kind") if name in worked.columns]
    groups = [group for _, group in worked.groupby(keys, sort=False, dropna=False)]
    groups.sort(key=len, reverse=True)
    found: dict[int, Chosen] = {}
    for why in ("median", "slowest", "first"):
        for group in groups:
            row = _of_group(group, why)
            found.setdefault(row, Chosen(row, why))
    return list(found.values())[: limits.STEPS]


def said(frame: pd.DataFrame, one: Chosen) -> dict[str, Any]:
    """What is known of a step that is drawn."""
    row = records(frame.iloc[[one.row]])[0]
    for name in ("report", "name"):
        row[name] = row.get(name) and clipped(row[name])
    return row | {"kind": clipped(_kind(row["kind"])), "row": one.row, "why": one.why}


def _of_group(group: pd.DataFrame, why: str) -> int:
    if why == "first":
        return int(group["row"].iloc[0])
    rows = group.sort_values("gpu_time_ns", kind="stable")["row"]
    return int(rows.iloc[(len(rows) - 1) // 2 if why == "median" else -1])


def _kind(kind: str | None) -> str:
    return kind or "step"


def _slowest(time: np.ndarray[Any, np.dtype[np.int64]], most: int) -> np.ndarray[Any, Any]:
    """At most so many rows in their order, each the slowest of its neighbours."""
    if time.size <= most:
        return np.arange(time.size)
    group = np.arange(time.size) * most // time.size
    order = np.lexsort((-time, group))
    first = np.searchsorted(group[order], np.arange(most))
    return order[first]

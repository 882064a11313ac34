"""Ranks side by side: what each does in a step, and which one works longest before it communicates."""

from collections import Counter
from typing import Any

import numpy as np
import pandas as pd

from tracekit.analyses import stragglers
from tracekit.arrays.types import Ints
from tracekit.dataset.opening import Dataset
from tracekit.views.formatting import records
from tracekit.views.page import limits
from tracekit.views.page.limits import clipped

_LINE = ["report", "pid", "device"]
_EXPOSED = ["communication_ns", "communication_wait_ns"]
_BUSY = ["compute_ns", "copy_ns", *_EXPOSED]


def ranks(dataset: Dataset, processes: list[dict[str, Any]], windows: pd.DataFrame | None) -> dict[str, Any]:
    """Processes and devices with work, if there are several.

    Args:
        dataset: The dataset.
        processes: The rows of the analysis ``processes``, which tell the ranks.
        windows: The windows of all devices, if they are known.

    Returns:
        ``rows``: a process and device each, by rank: ``steps`` and, in the mean of its steps, ``step_ns``, which is the
        sum of ``compute_ns``, ``copy_ns``, ``communication_ns`` (exposed), ``communication_wait_ns`` (for the last
        rank, as far as that is proven) and ``idle_ns``; ``own_ns`` (the step without exposed communication and waiting)
        and ``others_waited_ns`` (null if it is not proven for any rank who waited for whom). ``own``: of each row the
        own time of its steps, in order; of more steps than there is room for, neighbours share a value, the longest.
        ``left_out``: how many rows are not listed.
    """
    who = {(row["report"], row["pid"], row["device"]): row["rank"] for row in processes}
    if len(who) < 2 or windows is None:  # noqa: PLR2004 - one is no company
        return {"rows": [], "own": [], "left_out": 0}
    whole = windows["window_ns"]
    idle, own_time = (whole - windows[names].sum(axis=1) for names in (_BUSY, _EXPOSED))
    groups = windows.assign(idle_ns=idle, own_ns=own_time).groupby(_LINE, sort=False, dropna=False)
    figures = ["window_ns", *_BUSY, "idle_ns", "own_ns"]
    rows = groups[figures].mean().assign(steps=groups.size()).reset_index().rename(columns={"window_ns": "step_ns"})
    rows["others_waited_ns"] = _waited(dataset, rows)
    own = [_longest(group["own_ns"].to_numpy("int64")) for _, group in groups]
    listed = [row | {"rank": who.get((row["report"], row["pid"], row["device"]))} for row in records(rows)]
    order = sorted(range(len(listed)), key=lambda at: (listed[at]["rank"] is None, listed[at]["rank"] or 0, at))
    shown = order[: limits.ROWS]
    for row in listed:
        row["report"] = row["report"] and clipped(row["report"])
    return {"rows": [listed[at] for at in shown], "own": [own[at] for at in shown], "left_out": len(order) - len(shown)}


def _waited(dataset: Dataset, rows: pd.DataFrame) -> list[float | None]:
    """How long the other ranks waited for each row, in the mean of its steps."""
    table = stragglers.frame(dataset)
    known = table[table["pid"].notna()]
    if known.empty:
        return [None] * len(rows)
    keys = [(row["report"] if dataset.reports else None, row["pid"], row["device"]) for row in records(known)]
    total = Counter[tuple[Any, ...]]()
    for key, ns in zip(keys, known["waited_ns"].tolist(), strict=True):
        total[key] += ns
    return [total[row["report"], row["pid"], row["device"]] / row["steps"] for row in records(rows)]


def _longest(time: Ints) -> list[int]:
    first = np.unique(np.arange(limits.RANK_STEPS) * time.size // limits.RANK_STEPS)
    longest: list[int] = (time if time.size <= limits.RANK_STEPS else np.maximum.reduceat(time, first)).tolist()
    return longest

"""When was each device idle, and between the work of which modules?"""

from __future__ import annotations

import numpy as np
import pandas as pd

from tracekit.aggregates.each_report import rows_of_each
from tracekit.aggregates.spread import ratio
from tracekit.aggregates.subtrees import hierarchy
from tracekit.aggregates.weighted_kernels import DEVICE_TIMES, axis, kernels
from tracekit.arrays.groups import maxima, minima
from tracekit.arrays.intervals import reach
from tracekit.dataset.opening import Dataset
from tracekit.errors import UsageError

NAME = "gaps"
ANSWER = ("report", "device", "idle_ns", "before", "after", "share")


def frame(dataset: Dataset) -> pd.DataFrame:
    """Idle time of each device by the module whose work ended before it and the one whose work started after it.

    Returns:
        A row per device and pair of modules, the most idle time first: ``report`` (null for a dataset of one report),
        ``device`` (null on a run without a GPU), ``before``, ``after`` (paths; null for work that could not be
        attributed), ``gaps`` (how many), ``idle_ns``, ``share`` (of the time from the device's first work to its
        last), ``median_ns`` and ``longest_ns``.

    Raises:
        UsageError: If the dataset is a subtree: where it is idle, other modules may be running.
    """
    if dataset.root is not None:
        raise UsageError(f"{NAME} are measured on whole devices; ask the whole dataset, without --path")
    answer = rows_of_each(dataset, _of_one)
    return answer.sort_values("idle_ns", ascending=False, kind="stable", ignore_index=True)


def _of_one(dataset: Dataset) -> pd.DataFrame:
    table, modules = kernels(dataset, ["module_id", *DEVICE_TIMES]), hierarchy(dataset)
    work, owner = axis(dataset, table), modules.rows_of(table.module_id)
    order = np.argsort(work.start, kind="stable")
    start, on_line = work.start[order], work.line[order]
    ended, latest = reach(work.end[order])
    idle = np.flatnonzero((start[1:] > ended[:-1]) & (on_line[1:] == on_line[:-1]))
    before, after = order[latest[idle]], order[idle + 1]
    ns = work.start[after] - ended[idle]
    gaps = pd.DataFrame({"line": work.line[after], "before": owner[before], "after": owner[after], "ns": ns})
    by_pair = gaps.groupby(["line", "before", "after"])["ns"]
    pairs = by_pair.agg(gaps="size", idle_ns="sum", median_ns="median", longest_ns="max").reset_index()
    line, idle_ns = pairs["line"].to_numpy(), pairs["idle_ns"].to_numpy()
    first, last = minima(work.line, work.start, len(work.lines)), maxima(work.line, work.end, len(work.lines))
    return pd.DataFrame(
        {
            "report": pd.array([work.lines[row][0] for row in line.tolist()], dtype=object),
            "device": pd.array([work.lines[row][1] for row in line.tolist()], dtype="Int64"),
            "before": modules.paths(pairs["before"].to_numpy()),
            "after": modules.paths(pairs["after"].to_numpy()),
            "gaps": pairs["gaps"],
            "idle_ns": idle_ns,
            "share": ratio(idle_ns, last[line] - first[line]),
            "median_ns": pairs["median_ns"].astype("float64"),
            "longest_ns": pairs["longest_ns"],
        }
    )

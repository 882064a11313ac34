"""When devices stood idle: between the work of which modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from tracekit.analyses.devices import WHERE, axis, kernels
from tracekit.analyses.spread import ratio, spread
from tracekit.analyses.subtrees import hierarchy, summed
from tracekit.errors import UsageError

if TYPE_CHECKING:
    from tracekit.analyses.devices import Axis
    from tracekit.arrays.types import Ints, Rows
    from tracekit.dataset.opening import Dataset

NAME = "gaps"

_KEYS = ["line", "before", "after"]


class Idle(NamedTuple):
    """Each time that a device ran nothing between two pieces of work, given by their rows."""

    line: Rows
    before: Rows
    after: Rows
    ns: Ints


def frame(dataset: Dataset) -> pd.DataFrame:
    """Idle time of each device by the module whose work ended before it and the one whose work began after it.

    Returns:
        A row per device and pair of modules, the most idle time first: ``report`` (null if the dataset is of a single
        one), ``device`` (null on a run without a GPU), ``before``, ``after`` (paths; null for work that no module
        owns), ``gaps`` (how many), ``idle_ns``, ``share`` (of the time from the device's first work to its last),
        ``median_ns`` and ``longest_ns``.

    Raises:
        UsageError: If the dataset is a subtree: what looks idle there may be other modules' work.
    """
    if dataset.root is not None:
        raise UsageError(f"{NAME} are those of a whole device: ask the whole dataset, without a path")
    table = kernels(dataset, ["module_id", *WHERE])
    modules = hierarchy(dataset)
    owner, on = modules.rows(table), axis(dataset, table)
    idle = idle_times(on)
    work = pd.DataFrame({"line": idle.line, "before": owner[idle.before], "after": owner[idle.after], "ns": idle.ns})
    grouped = work.groupby(_KEYS)
    found = grouped["ns"].agg(["size", "sum", "max"]).reset_index()
    lines, time = found["line"].to_numpy(), found["sum"].to_numpy()
    median = spread(np.asarray(grouped.ngroup(), np.int64), idle.ns, len(found)).quantile(0.5)
    answer = pd.DataFrame(
        {
            "report": pd.array([on.lines[line][0] for line in lines.tolist()], dtype=object),
            "device": pd.array([on.lines[line][1] for line in lines.tolist()], dtype="Int64"),
            "before": modules.paths(found["before"].to_numpy()),
            "after": modules.paths(found["after"].to_numpy()),
            "gaps": found["size"].to_numpy(),
            "idle_ns": time,
            "share": ratio(time, _spans(on)[lines]),
            "median_ns": median,
            "longest_ns": found["max"].to_numpy(),
        }
    )
    return answer.sort_values("idle_ns", ascending=False, kind="stable", ignore_index=True)


def idle_times(on: Axis) -> Idle:
    """The gaps between pieces of work, in the order of the axis."""
    order = np.argsort(on.start, kind="stable")
    reach, latest = _reach(on.end[order])
    after = np.flatnonzero((on.start[order][1:] > reach[:-1]) & (on.line[order][1:] == on.line[order][:-1]))
    rows = order[after + 1]
    return Idle(on.line[rows], order[latest[after]], rows, on.start[rows] - reach[after])


def _reach(end: Ints) -> tuple[Ints, Rows]:
    """The latest end so far at each place, and which of them ends there."""
    reach = np.maximum.accumulate(end)
    fresh = np.concatenate((np.ones(min(end.size, 1), bool), end[1:] > reach[:-1]))
    return reach, np.maximum.accumulate(np.where(fresh, np.arange(end.size), 0))


def _spans(on: Axis) -> Ints:
    """From its first work to its last, of each line."""
    first = np.full(len(on.lines), np.iinfo(np.int64).max)
    last = np.full(len(on.lines), np.iinfo(np.int64).min)
    np.minimum.at(first, on.line, on.start)
    np.maximum.at(last, on.line, on.end)
    used = summed(on.line, None, len(on.lines)) > 0
    return np.where(used, last - np.where(used, first, last), 0)

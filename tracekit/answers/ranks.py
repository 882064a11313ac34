"""Which rank holds the others up: how much longer than they does it work in a step, since when, and in which module?

Ranks that meet in collectives have steps of one length: a slow rank differs from the others by *own time*, its step
without exposed communication. It needs no clocks, and nothing about which collectives are the same. A rank is slow if
its own time is longer than that of the median rank in the same steps, by more than ranks and steps differ anyway.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracekit.answers import stragglers
from tracekit.arrays.columns import selected
from tracekit.arrays.types import Columns, Rows
from tracekit.dataset.opening import Dataset
from tracekit.steptime.budget import COMPUTE, COPY
from tracekit.steptime.own_times import WHO, RankTimes, measured

NAME = "ranks"
ANSWER = ("rank", "slower_share", "own_ns", "collectives_ns", "others_waited_ns", "since_step", "path")
COMPARES_REPORTS = True
_WITH_NULLS = ("rank", "since_step", "pid", "device")


def frame(dataset: Dataset) -> pd.DataFrame:
    """Ranks that run a program together, the slowest first.

    Returns:
        A row per rank (per process and device where ranks are not known): ``rank``, ``slow`` (whether it holds the
        others up: see above), ``slower_share`` (by how much longer its own time is than that of the median rank in the
        same steps, in the median since it is slow), ``since_step`` (the index of the first slow step), ``path`` (the
        module, or layers that are alike, in which its own time differs most from that of the median rank) and
        ``longer_ns`` (by how much in a step). In the mean of its ``steps``: ``step_ns``, which is the sum of ``own_ns``
        and ``collectives_ns`` (in which the device does nothing else; the slow rank has the least), ``work_ns``
        (compute and copies) and ``idle_ns``, the parts of ``own_ns``, and ``others_waited_ns`` (in collectives, added
        up; null if it is not proven for any rank who waited for whom). ``report``, ``pid``, ``device``, ``host``,
        ``gpu``.

    Raises:
        UsageError: If the dataset is a subtree: own time is of whole devices.
    """
    answer = columns(dataset)
    return pd.DataFrame(answer | {name: pd.array(answer[name], "Int64") for name in _WITH_NULLS})


def columns(dataset: Dataset) -> Columns:
    """The columns of :func:`frame`, made without pandas where no rank meets another."""
    times = measured(dataset)
    return rows(dataset, times, order(times))


def order(times: RankTimes) -> Rows:
    """The rows of slow ranks and then of the others, the slowest first; none where there is nothing to compare."""
    return np.lexsort((-times.apart, times.since < 0)) if len(times.who) > 1 else np.zeros(0, np.int64)


def rows(dataset: Dataset, times: RankTimes, order: Rows) -> Columns:
    """Some rows of :func:`columns`."""
    step, work, meets = times.kinds_ns.sum(axis=1), times.kinds_ns[:, [COMPUTE, COPY]].sum(axis=1), times.meets_ns
    since = [None if at < 0 else int(times.step_index[at]) for at in times.since.tolist()]
    path, longer_ns = times.most_apart
    who = {name: np.array([one[name] for one in times.who], object) for name in WHO}
    answer = {
        "rank": who["rank"],
        "slow": times.since >= 0,
        "slower_share": times.apart,
        "step_ns": step,
        "own_ns": step - meets,
        "work_ns": work,
        "collectives_ns": meets,
        "idle_ns": step - meets - work,
        "others_waited_ns": _others_waited(dataset, times) if order.size else np.full(step.size, None),
        "since_step": np.array(since, object),
        "path": np.array(path, object),
        "longer_ns": longer_ns,
        "steps": times.steps,
    }
    return selected(answer | who, order)


def _others_waited(dataset: Dataset, times: RankTimes) -> NDArray[Any]:
    """How long others waited for each rank in a step, as far as it is proven."""
    table = stragglers.frame(dataset)
    known = table[table["pid"].notna()]
    reports = [name if dataset.reports else None for name in known["report"].tolist()]
    total = np.zeros(len(times.who))
    for report, pid, device, ns in zip(reports, known["pid"], known["device"], known["waited_ns"], strict=True):
        total[times.line[report, int(pid), -1 if device is None else int(device)]] += ns
    return total / np.maximum(times.steps, 1) if len(known) else np.full(total.size, None)

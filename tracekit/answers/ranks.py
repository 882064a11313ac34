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
from tracekit.dataset.opening import Dataset
from tracekit.steptime.idle_time import COMPUTE, COPY
from tracekit.steptime.own_times import WHO, RankTimes, measured

NAME = "ranks"
ANSWER = ("rank", "slower_share", "own_ns", "collectives_ns", "others_waited_ns", "since_step", "path")
COMPARES_REPORTS = True
_FIGURES = ("step_ns", "own_ns", "work_ns", "collectives_ns", "idle_ns")


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
    return rows(dataset, measured(dataset)).reset_index(drop=True)


def rows(dataset: Dataset, times: RankTimes) -> pd.DataFrame:
    """The rows of :func:`frame`, indexed by those of ``times``."""
    answer = pd.DataFrame(times.who, columns=WHO, dtype=object)
    answer["slow"], answer["slower_share"] = times.since >= 0, times.apart
    answer["since_step"] = pd.array([None if at < 0 else times.step_index[at] for at in times.since.tolist()], "Int64")
    answer["path"], answer["longer_ns"] = times.most_apart
    step, work, meets = times.kinds_ns.sum(axis=1), times.kinds_ns[:, [COMPUTE, COPY]].sum(axis=1), times.meets_ns
    figures = (step, step - meets, work, meets, step - meets - work)
    answer = answer.assign(steps=times.steps, **dict(zip(_FIGURES, figures, strict=True)))
    answer["others_waited_ns"] = _others_waited(dataset, times) if len(answer) > 1 else None
    order = ["rank", "slow", "slower_share", *_FIGURES, "others_waited_ns", "since_step", "path", "longer_ns", "steps"]
    answer = answer[[*order, *WHO[1:]]].astype(dict.fromkeys(("rank", "pid", "device"), "Int64"))
    answer = answer.sort_values(["slow", "slower_share"], ascending=False, kind="stable")
    return answer if len(answer) > 1 else answer.iloc[:0]


def _others_waited(dataset: Dataset, times: RankTimes) -> NDArray[Any]:
    """How long others waited for each rank in a step, as far as it is proven."""
    table = stragglers.frame(dataset)
    known = table[table["pid"].notna()]
    reports = [name if dataset.reports else None for name in known["report"].tolist()]
    total = np.zeros(len(times.who))
    for report, pid, device, ns in zip(reports, known["pid"], known["device"], known["waited_ns"], strict=True):
        total[times.line[report, int(pid), -1 if device is None else int(device)]] += ns
    return total / np.maximum(times.steps, 1) if len(known) else np.full(total.size, None)

"""How do the clocks of reports differ, and how exactly is that known?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from tracekit.dataset.opening import Dataset
from tracekit.ranks.collectives import Lane
from tracekit.ranks.meetings import Clock, ranks_of

NAME = "clocks"
ANSWER = ("report", "rank", "offset_ns", "error_ns", "why")
COMPARES_REPORTS = True

_PER_MILLION = 1e6
_MEASURED = ("reference", "offset_ns", "drift_ppm", "error_ns")


def frame(dataset: Dataset) -> pd.DataFrame:
    """The clock of each report against that of one of them, by the collectives that both ran.

    Returns:
        A row per report: ``report`` (null for a dataset of one report), ``rank`` (the lowest in it), ``reference`` (the
        report whose clock it is measured against; null if it stays apart), ``offset_ns`` (what to add to its times to
        get those of the reference, in the middle of its collectives), ``drift_ppm`` (by how much more with time),
        ``error_ns`` (how far from the truth times may be then, at most, while it ran collectives), ``collectives`` (how
        many it has), ``matched`` (how many of them are known to be the same as those of another report)
        and ``why`` (why it stays apart).
    """
    ranks = ranks_of(dataset)
    rows = []
    for name, lanes, clock in zip(dataset.names, ranks.lanes, ranks.clocks, strict=True):
        rank = min((lane.rank for lane in lanes if lane.rank >= 0), default=None)
        measured = dict.fromkeys(_MEASURED) if clock.why is not None else _measured(dataset.names, lanes, clock)
        count = sum(lane.end.size for lane in lanes)
        about = {"collectives": count, "matched": clock.matched, "why": clock.why}
        rows.append({"report": name, "rank": rank, **measured, **about})
    return pd.DataFrame(rows)


def _measured(names: Sequence[str | None], lanes: Sequence[Lane], clock: Clock) -> dict[str, object]:
    time = np.sort(np.concatenate([own.end for own in lanes]))
    middle, ends = time[[time.size // 2]], time[[0, -1]]
    offset = clock.at(ends) - ends
    drift = float(offset[1] - offset[0]) / max(1, int(ends[1] - ends[0]))
    figures = (int((clock.at(middle) - middle)[0]), drift * _PER_MILLION, int(clock.error(ends).max()))
    return dict(zip(_MEASURED, (names[clock.reference], *figures), strict=True))

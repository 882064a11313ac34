"""Ranks on the page: what each does in a step, the slowest first, and a step of all of them on one clock.

Collectives of ranks drawn together are tied where it is proven which are the same.
"""

from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tracekit.answers import ranks as of_ranks
from tracekit.arrays.codes import lookup, positions
from tracekit.arrays.types import Floats, Ints, Rows
from tracekit.dataset.opening import REPORT, Dataset
from tracekit.ranks.meetings import Clock, ranks_of
from tracekit.steptime.budget import Budgets
from tracekit.steptime.own_times import times_of
from tracekit.views.formatting import records
from tracekit.views.page import limits
from tracekit.views.page.limits import clipped

#: The place of reports that are drawn first, by name; None is that of a dataset of one.
Reports = dict[str | None, int]


def ranks(dataset: Dataset, processes: int, budgets: Budgets | None) -> dict[str, Any]:
    """The rows of the question ``ranks``, if there are several processes and devices with known windows.

    Returns:
        ``rows``; ``own``: of each row the own time of its steps, in order; of more steps than there is room for,
        neighbours share a value, the longest; ``left_out``: how many rows are not listed.
    """
    if processes < 2 or budgets is None:  # noqa: PLR2004 - one is no company
        return {"rows": [], "own": [], "left_out": 0}
    times = times_of(budgets)
    order = of_ranks.order(times)
    shown = order[: limits.ROWS]
    rows = records(of_ranks.rows(dataset, times, shown))
    for row in rows:
        for name in ("report", "host", "gpu", "path"):
            row[name] = row[name] and clipped(row[name])
    own = [_longest(times.own_ns[row]).tolist() for row in shown]
    return {"rows": rows, "own": own, "left_out": order.size - shown.size}


def _longest(own_ns: Floats) -> Ints:
    time = own_ns[~np.isnan(own_ns)].astype(np.int64)
    return time[limits.highest(time, limits.RANK_STEPS)]


class Together(NamedTuple):
    """The rows of a step of several ranks, by the place of their report; none if ranks have no common clock.

    ``clocks`` are those of all reports, none for a dataset of one; ``kernel`` and ``meeting`` are the kernels of proven
    collectives and which collective each is of.
    """

    rows: dict[int, list[int]]
    clocks: list[Clock]
    kernel: Ints
    meeting: Rows


def together(dataset: Dataset, steps: pd.DataFrame, at: int | None, telling: Reports) -> Together:
    """The steps of other processes with the kind and index of that of row ``at``, those of telling reports first."""
    none = np.zeros(0, np.int64)
    if at is None or steps["pid"].nunique() + len(dataset.reports) < 2:  # noqa: PLR2004 - one is no company
        return Together({}, [], none, none)
    ranks = ranks_of(dataset)
    clocks = ranks.clocks
    rows = _rows(dataset, steps, at, clocks, telling)
    kernel, meeting = ranks.meetings.kernels()[:2] if rows else (none, none)
    return Together(rows, clocks if dataset.reports else [], kernel, meeting)


def _rows(dataset: Dataset, steps: pd.DataFrame, at: int, clocks: list[Clock], first: Reports) -> dict[int, list[int]]:
    same = (steps["index"] == steps["index"].iloc[at]) & (steps["kernels"] > 0)
    same &= steps["kind"].isna() if pd.isna(steps["kind"].iloc[at]) else steps["kind"] == steps["kind"].iloc[at]
    names = steps[REPORT].tolist() if dataset.reports else [None] * len(steps)
    number = {name: number for number, name in enumerate(dataset.names)}
    found = sorted(np.flatnonzero(same).tolist(), key=lambda row: first.get(names[row], len(first)))
    report = [number[names[row]] for row in found]
    known = Counter(clocks[one].reference for one in report if dataset.reports and clocks[one].why is None)
    reference = known.most_common(1)[0][0] if known else None
    rows: dict[int, list[int]] = {}
    for row, one in zip(found[: limits.STEPS], report, strict=False):
        if not dataset.reports or (clocks[one].why is None and clocks[one].reference == reference):
            rows.setdefault(one, []).append(row)
    return rows if sum(map(len, rows.values())) > 1 else {}


def tied(drawing: dict[str, Any], whole: Together, kernel_id: Ints) -> dict[str, Any]:
    """A drawing of a report with the ``meeting`` of each piece: the collective that it is of, or -1."""
    drawn = len(drawing["pieces"]["ns"])
    is_whole = drawing["work"] == drawn == kernel_id.size
    meeting = lookup(whole.meeting, positions(kernel_id, whole.kernel)) if is_whole else np.full(drawn, -1)
    drawing["pieces"]["meeting"] = meeting.tolist()
    return drawing


def joined(drawings: dict[int, dict[str, Any]], whole: Together) -> dict[str, Any]:
    """The drawings of several reports as one, on the clock of the reference."""
    for at, drawing in drawings.items():
        times = np.array([0, *drawing["pieces"]["start_ns"]], np.int64) + drawing["start_ns"]
        placed = whole.clocks[at].at(times).tolist() if whole.clocks else times.tolist()
        drawing["start_ns"], drawing["pieces"]["start_ns"] = placed[0], placed[1:]
    begin = min(min(drawing["pieces"]["start_ns"]) for drawing in drawings.values())
    streams: list[dict[str, Any]] = []
    pieces: dict[str, list[int]] = {}
    for drawing in drawings.values():
        own = drawing["pieces"]
        own["start_ns"] = [start - begin for start in own["start_ns"]]
        own["stream"] = [len(streams) + stream for stream in own["stream"]]
        streams += drawing["streams"]
        pieces = {name: pieces.get(name, []) + own[name] for name in own}
    ends = (start + length for start, length in zip(pieces["start_ns"], pieces["length_ns"], strict=True))
    counts = {name: sum(drawing[name] for drawing in drawings.values()) for name in ("work", "left_out")}
    return {"start_ns": begin, "span_ns": max(ends), "streams": streams, "pieces": pieces, **counts}

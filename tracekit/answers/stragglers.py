"""Which rank did the others wait for: in which step, module and collective, and how long?"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd

from tracekit.aggregates.spread import share
from tracekit.aggregates.subtrees import hierarchy
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.dataset.opening import Dataset
from tracekit.ranks.collectives import TIMES_EXACT_TO_NS
from tracekit.ranks.meetings import Participations, ranks_of
from tracekit.schema.tables import Steps

NAME = "stragglers"
ANSWER = ("rank", "waited_ns", "share", "path")
COMPARES_REPORTS = True

_KEYS = ["lane", "step_id", "module", "name"]


def frame(dataset: Dataset) -> pd.DataFrame:
    """The last ranks of collectives (all-reduce, all-gather, reduce-scatter), those that cost most time first.

    Ranks of one report have one clock; clocks of reports are aligned by the collectives themselves: see ``clocks``.
    A rank without a report, or without any collective in it, is not known of.

    Returns:
        A row per rank that was last, step, module and collective: ``rank`` and ``report`` of the last rank (null where
        it is not certain who was last: two were too close for the clocks, one left no record, or it is not proven which
        ranks met; ``report`` also for a dataset of one), ``path`` (module) and ``step_index`` of that rank,
        ``waited_ns`` (from the start of each other rank to that of the last, added up), ``share`` (of all such
        waiting), ``collective`` (kernel), ``collectives`` (how many), ``ranks`` (how many are known to have met),
        ``longest_ns`` (the most that one rank waited), ``error_ns`` (how far from the truth the time that one rank
        waited for one collective may be), ``step`` (its name), and ``pid``, ``device`` and ``gpu`` of the last rank.
    """
    ranks = ranks_of(dataset)
    rows = ranks.meetings
    last, certain, figures = _last(rows)
    module, step = (rows.of_events(column)[last] for column in ("module_id", "step_id"))
    names = [rows.lanes[at].name for at in rows.lane[last].tolist()]
    table = pd.DataFrame({"lane": np.where(certain, rows.lane[last], -1), "step_id": step, "name": names, **figures})
    table["module"] = hierarchy(dataset).rows_of(module)
    if dataset.root is not None:
        table = table[table["module"] >= 0]
    return _answer(dataset, table, rows, ranks.names)


def by_rank(answer: pd.DataFrame) -> pd.DataFrame:
    """The rows of :func:`frame` as one for each last rank: its first step, and the module of most of the waiting."""
    groups = answer.groupby(["report", "pid", "device"], sort=False, dropna=False)
    waited = groups["waited_ns"].sum()
    first = answer.loc[groups["waited_ns"].idxmax()].set_axis(waited.index)
    figures = {"waited_ns": waited, "share": groups["share"].sum(), "first_step": groups["step_index"].min()}
    rows = first[["rank", "path"]].assign(**figures, collectives=groups["collectives"].sum()).reset_index()
    rows = rows.astype(dict.fromkeys(("rank", "pid", "device"), "Int64"))
    rows = rows.sort_values("waited_ns", ascending=False, kind="stable", ignore_index=True)
    return rows[["rank", *figures, "path", "collectives", "report", "pid", "device"]]


def _last(rows: Participations) -> tuple[Rows, Flags, dict[str, Ints]]:
    """For each meeting: the row of the last rank, whether it is certain, and figures."""
    order = np.lexsort((rows.start, rows.meeting))
    meeting, start, error = rows.meeting[order], rows.start[order], rows.error[order]
    first = np.flatnonzero(np.diff(meeting, prepend=-1))
    ranks = np.diff(first, append=meeting.size)
    final = first + ranks - 1
    report = np.array([lane.report for lane in rows.lanes], np.int64)[rows.lane[order]] if order.size else meeting
    of_last = np.repeat(final, ranks)
    apart = start[of_last] - start
    # Clocks within one report are one; the exactness of times remains.
    doubt = np.where(report == report[of_last], 0, error + error[of_last]) + TIMES_EXACT_TO_NS
    # Ends of communicators that run side by side may differ by so much and still be confused, but if ids are known:
    # ranks of two of them that end together have waited for two ranks, which came that close to each other.
    known = np.array([lane.communicator is not None for lane in rows.lanes], bool)[rows.lane]
    doubt += np.where(known, 0, rows.of_events("apart"))[order][of_last]
    close = (apart <= doubt) & (np.arange(meeting.size) != of_last)
    certain = (np.add.reduceat(close, first) == 0) & rows.proven[order][first] if first.size else np.zeros(0, bool)
    sums = np.add.reduceat(apart, first) if first.size else apart
    worst = np.maximum.reduceat(doubt, first) if first.size else doubt
    figures = {"ranks": ranks, "waited_ns": sums, "longest_ns": start[final] - start[first], "error_ns": worst}
    return order[final], certain, figures


def _answer(dataset: Dataset, table: pd.DataFrame, rows: Participations, names: list[str]) -> pd.DataFrame:
    how = {"collectives": ("ranks", "size"), "ranks": ("ranks", "max"), "waited_ns": ("waited_ns", "sum")}
    how |= {name: (name, "max") for name in ("longest_ns", "error_ns")}
    totals = table.groupby(_KEYS, sort=False).agg(**how).reset_index()
    totals = totals.sort_values("waited_ns", ascending=False, kind="stable", ignore_index=True)
    steps = _steps(dataset.whole, totals["step_id"].to_numpy())
    modules = hierarchy(dataset)
    answer = pd.DataFrame(_ranks(dataset.whole, rows, totals["lane"].tolist()), columns=_WHO, dtype=object)
    answer["path"] = modules.paths(totals["module"].to_numpy())
    found = [steps.get(step, (None, None)) for step in totals["step_id"].tolist()]
    answer["step"] = [name for name, _ in found]
    answer["step_index"] = pd.array([index for _, index in found], "Int64")
    answer["collective"] = [names[name] for name in totals["name"].tolist()]
    answer["share"] = share(totals["waited_ns"].to_numpy(), int(totals["waited_ns"].sum()))
    return answer.assign(**{name: totals[name] for name in _FIGURES})[_ORDER]


_WHO = ["rank", "report", "pid", "device", "gpu"]
_FIGURES = ["waited_ns", "collectives", "ranks", "longest_ns", "error_ns"]
#: What was asked for comes first: a narrow terminal shows the columns that fit.
_ORDER = [
    *("rank", "report", "path", "step_index", "waited_ns", "share", "collective", "collectives", "ranks"),
    *("longest_ns", "error_ns", "step", "pid", "device", "gpu"),
]


def _ranks(dataset: Dataset, rows: Participations, lanes: list[int]) -> list[tuple[object, ...]]:
    names = dataset.names
    gpus = [{gpu["device"]: gpu.get("name") for gpu in entry.get("devices") or ()} for entry in dataset.entries]
    who: list[tuple[object, ...]] = []
    for lane in (rows.lanes[at] if at >= 0 else None for at in lanes):
        ids = [] if lane is None else [None if one < 0 else one for one in (lane.rank, lane.pid, lane.device)]
        known = lane and (ids[0], names[lane.report], *ids[1:], gpus[lane.report].get(lane.device))
        who.append(known or (None,) * len(_WHO))
    return who


def _steps(dataset: Dataset, wanted: Iterable[int]) -> dict[int, tuple[str, int]]:
    ids = np.unique(np.fromiter(wanted, np.int64))
    known: dict[int, tuple[str, int]] = {}
    for piece in map(Steps, dataset.pieces("steps", ["step_id", "name", "index"]) if ids.size else ()):
        chosen = piece.filter(np.isin(piece.step_id, ids)).table
        for step_id, name, index in zip(*(column.to_pylist() for column in chosen.columns), strict=True):
            known[step_id] = (name, index)
    return known

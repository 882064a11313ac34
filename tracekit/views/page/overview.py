"""What was recorded, how much of it is attributed, where the wall clock went, and where devices were idle."""

from collections import Counter
from typing import Any

import numpy as np
import pandas as pd

from tracekit.aggregates.nodes import why
from tracekit.aggregates.weighted_kernels import kernels
from tracekit.answers import coverage as coverage_by_cause, gaps, ranks as of_ranks
from tracekit.dataset.opening import SUFFIX, Dataset
from tracekit.steptime.budget import COPY, KINDS, Budgets, of_kinds
from tracekit.steptime.own_times import times_of
from tracekit.version import __version__
from tracekit.views import budget as budget_view, findings, summary
from tracekit.views.formatting import nouns, records
from tracekit.views.page import limits
from tracekit.views.page.limits import clip, clipped

_PAIRS = 50
_OF_WORK = ("dur_ns", "module_id", "step_id")


def title(dataset: Dataset) -> str:
    """The dataset's name for people, and what it is a part of it."""
    name = dataset.folder.resolve().name.removesuffix(SUFFIX)
    return clipped(name if dataset.root is None else f"{name}: {dataset.root}")


def about(dataset: Dataset, in_processes: pd.DataFrame) -> dict[str, Any]:
    """What was recorded, with what, and how much of it there is; ``in_processes`` answers ``processes``."""
    reports = dataset.entries
    devices = Counter(map(clipped, summary.devices(dataset, records(in_processes))))
    whole, (number, spent) = dataset.whole, summary.total(dataset)
    names = () if dataset.root is None else ("calls", "modules")
    of_subtree = {name: dataset.table(name, ["module_id"]).num_rows for name in names}
    exporters = Counter(clipped(summary.exporter(report)) for report in reports)
    return {
        "title": title(dataset),
        "tracekit": __version__,
        "words": nouns(dataset)._asdict(),
        "why": [clipped(sentence, limits.TEXT) for sentence in why(dataset)],
        "total_ns": spent,
        "rows": dataset.manifest["rows"] | {"kernels": number} | of_subtree,
        "steps": [{**step, "kind": clipped(step["kind"])} for step in summary.steps_by_kind(whole)][: limits.ROWS],
        "on_each": [*summary.steps_on_each(whole).values()][: limits.ROWS],
        "sources": [clipped(report["source"]["name"]) for report in reports[: limits.ROWS]],
        "reports": len(dataset.reports),
        "devices": devices.most_common(limits.ROWS),
        "exporters": exporters.most_common(limits.ROWS),
        "processes": sum(len(report["processes"]) for report in reports),
    }


def coverage(dataset: Dataset) -> dict[str, Any]:
    """How much of the time is attributed, by method and cause, and what to do about the rest.

    Returns:
        ``kernels``: rows of device work, reports summed; ``certainty``: a line, or empty; ``unknown``: the time and
        number of kernels without a module, and ``whole_ns``, of steps where there are some; ``others``: rows of
        anything else that is not known; ``doubts``: what may be lost; ``advice``: what to do.
    """
    words, unknown = nouns(dataset), _unknown(dataset)
    if dataset.root is not None:  # of subtrees it is not known
        return {name: [] for name in ("doubts", "kernels", "others", "advice")} | {"certainty": "", "unknown": unknown}
    counted = coverage_by_cause.frame(dataset).groupby(["what", "cause", "known"], sort=False)
    summed = counted.agg({"advice": "first", "count": "sum", "time_ns": "sum"})
    rows = [
        row
        | {"how": clipped(summary.how(row, words)), "cause": clipped(row["cause"])}
        | {"advice": clipped(row["advice"], limits.TEXT)}
        for row in records(summed.reset_index())
    ]
    work = [row for row in rows if row["what"] == "kernels"]
    others = [row for row in rows if row["what"] != "kernels" and not row["known"]]
    return {
        "doubts": summary.doubts(dataset.manifest["coverage"]),
        "certainty": summary.certainty_line(dataset, words),
        "unknown": unknown,
        "kernels": sorted(work, key=lambda row: (not row["known"], -row["time_ns"])),
        "others": others[: limits.ROWS],
        "advice": [clipped(line, limits.TEXT) for line in summary.advice(dataset)[: limits.ROWS]],
    }


def _unknown(dataset: Dataset) -> dict[str, Any]:
    parts = [kernels(part, _OF_WORK) for part in dataset.by_report()]
    columns = ([getattr(part, name) for part in parts] for name in _OF_WORK)
    time, module, step = map(np.concatenate, columns)
    counted = (step >= 0) | ~(step >= 0).any()
    lost = counted & (module < 0)
    spent = {"time_ns": int(time[lost].sum()), "count": int(lost.sum()), "whole_ns": int(time[counted].sum())}
    return spent | {"in_steps": bool((step >= 0).any())}


def budget(dataset: Dataset, budgets: Budgets | None) -> dict[str, Any]:
    """The budget of a step by kind, and how long devices idle; without rows where it is not known, as of subtrees."""
    rows = [] if budgets is None else records(of_kinds(budgets))
    for row in rows:
        row |= {"place": KINDS.index(row["kind"]), "leading": [[clipped(name), of] for name, of in row["leading"]]}
    of = budget_view.window(dataset)
    return {
        "rows": rows,
        "whole_ns": sum(row["step_ns"] for row in rows),
        "idle_ns": sum(row["step_ns"] for row in rows if row["place"] > COPY),
        "of": of,
        "length": budget_view.length(of, rows[0]["windows"] if rows else 0),
    }


def first_findings(dataset: Dataset) -> list[dict[str, Any]]:
    """The first findings: how much of a step can be saved, and how."""
    return [
        {name: row[name] for name in ("family", "saving_ns", "saving_share")}
        | {"module": clipped(row["module"] or "(outside)"), "advice": clipped(row["advice"], limits.TEXT)}
        for row in (findings.first(dataset) if dataset.root is None else [])
    ]


def by_process(in_processes: pd.DataFrame) -> dict[str, Any]:
    """Work by report, rank, process and device, which the analysis ``processes`` answers."""
    rows = clip(records(in_processes), "report")
    return {"rows": rows[: limits.ROWS], "left_out": max(len(rows) - limits.ROWS, 0)}


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
    rows = clip(records(of_ranks.rows(dataset, times, shown)), "report", "host", "gpu", "path")
    own = [time[~np.isnan(time)].astype(np.int64) for time in times.own_ns[shown]]
    own = [time[limits.highest(time, limits.RANK_STEPS)].tolist() for time in own]
    return {"rows": rows, "own": own, "left_out": order.size - shown.size}


def idle(dataset: Dataset) -> dict[str, Any]:
    """Idle time of each device, and the pairs of modules between which most of it lies.

    Returns:
        ``devices``: ``report``, ``device``, ``gaps``, ``idle_ns``, ``share`` (of the time from first to last work),
        ``longest_ns``; ``pairs``: the same for each pair of modules, ``before`` and ``after`` the gap; ``left_out``:
        how many pairs are not listed.
    """
    if dataset.root is not None:  # a device is idle for whatever comes next
        return {"devices": [], "pairs": [], "left_out": 0}
    pairs = gaps.frame(dataset)
    how = {"gaps": "sum", "idle_ns": "sum", "share": "sum", "longest_ns": "max"}
    devices = pairs.groupby(["report", "device"], sort=False, dropna=False).agg(how).reset_index()
    return {
        "devices": clip(records(devices.head(limits.ROWS)), "report"),
        "pairs": clip(records(pairs.head(_PAIRS)), "report", "before", "after"),
        "left_out": max(len(pairs) - _PAIRS, 0),
    }


def launched(by_module: pd.DataFrame) -> dict[str, int]:
    """Sums over the rows of the analysis ``launches``: number, host time, GPU time, and launch-bound GPU time."""
    names = ("launches", "launch_ns", "blocked_ns", "gpu_time_ns", "launch_bound_ns", "waiting_ns", "replayed_ns")
    return {name: int(by_module[name].sum()) for name in names}

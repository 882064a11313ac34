"""What was recorded, and how much of its time is attributed."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from tracekit.analyses import coverage as coverage_by_cause, processes
from tracekit.analyses.nodes import why
from tracekit.dataset.opening import SUFFIX
from tracekit.version import __version__
from tracekit.views import summary
from tracekit.views.page import limits
from tracekit.views.page.limits import clipped
from tracekit.views.wording import nouns, records

if TYPE_CHECKING:
    from tracekit.dataset.opening import Dataset


def title(dataset: Dataset) -> str:
    """The dataset's name for people."""
    return clipped(dataset.folder.resolve().name.removesuffix(SUFFIX))


def about(dataset: Dataset) -> dict[str, Any]:
    """What was recorded, with what, and how much of it there is."""
    reports = dataset.manifest.get("reports", [dataset.manifest])
    devices = Counter(clipped(device["name"]) for report in reports for device in report["devices"])
    exporters = Counter(clipped(summary.exporter(report)) for report in reports)
    return {
        "title": title(dataset),
        "tracekit": __version__,
        "words": nouns(dataset)._asdict(),
        "why": [clipped(sentence, limits.TEXT) for sentence in why(dataset)],
        "total_ns": summary.total_ns(dataset),
        "rows": dataset.manifest["rows"],
        "steps": [{**step, "kind": clipped(step["kind"])} for step in summary.steps_by_kind(dataset)][: limits.ROWS],
        "sources": [clipped(report["source"]["name"]) for report in reports[: limits.ROWS]],
        "reports": len(dataset.reports),
        "devices": devices.most_common(limits.ROWS),
        "exporters": exporters.most_common(limits.ROWS),
        "processes": sum(len(report["processes"]) for report in reports),
    }


def coverage(dataset: Dataset) -> dict[str, Any]:
    """How much of the time is attributed, by method and cause, and what to do about the rest.

    Returns:
        ``kernels``: rows of device work, reports summed; ``certainty``: how sure their modules are, in a line, or
        empty; ``others``: rows of anything else that is not known; ``doubts``: what the profiler may have lost;
        ``advice``: how to record more next time.
    """
    keys = ["what", "cause", "known", "advice"]
    summed = coverage_by_cause.frame(dataset).groupby(keys, sort=False, dropna=False)[["count", "time_ns"]].sum()
    rows = [
        {**row, "cause": clipped(row["cause"]), "advice": clipped(row["advice"], limits.TEXT)}
        for row in records(summed.reset_index())
    ]
    work = [row for row in rows if row["what"] == "kernels"]
    others = [row for row in rows if row["what"] != "kernels" and not row["known"]]
    return {
        "doubts": summary.doubts(rows),
        "certainty": summary.certainty_line(dataset, nouns(dataset)),
        "kernels": sorted(work, key=lambda row: (not row["known"], -row["time_ns"])),
        "others": others[: limits.ROWS],
        "advice": [clipped(line, limits.TEXT) for line in summary.advice(dataset)[: limits.ROWS]],
    }


def by_process(dataset: Dataset) -> dict[str, Any]:
    """Work by report, rank, process and device."""
    rows = records(processes.frame(dataset))
    for row in rows:
        row["report"] = row["report"] and clipped(row["report"])
    return {"rows": rows[: limits.ROWS], "left_out": max(len(rows) - limits.ROWS, 0)}

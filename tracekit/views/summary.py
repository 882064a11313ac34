"""The summary of a dataset: what was read, where the time went, what is not known and what to do about it."""

from __future__ import annotations

from collections import Counter
from statistics import median
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
from rich.box import SIMPLE
from rich.console import Group
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tracekit.analyses import modules as modules_by_time, processes, tree as module_tree
from tracekit.views.wording import count, duration, nouns, percent, plain, records

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pandas as pd
    from rich.console import RenderableType

    from tracekit.dataset.opening import Dataset
    from tracekit.views.wording import Nouns

_TOP = 10
_MOST_PROCESSES = 64
#: Causes of which the advice says what is said anyway: of a graph traced as a whole always, of the other in a report
#: that marks nothing, where marking more is no answer.
_WHOLE_GRAPH, _OUTSIDE = "graph_not_expanded", "outside_modules"
#: Subject of what the profiler says that it lost; the lacks quote it.
_SAID = "report: losses"


def as_json(dataset: Dataset) -> dict[str, Any]:
    """The summary as plain data, for other programs."""
    modules, manifest = modules_by_time.sums(dataset), dataset.manifest
    by_process = records(processes.frame(dataset))
    single = ("source", "devices", "processes", "ranks", "lacks")
    several = ("reports", "left_out")
    return {
        "dataset": str(dataset.folder),
        **{key: manifest[key] for key in (several if dataset.reports else single)},
        **{key: manifest[key] for key in ("rows", "coverage")},
        "gpu_time_ns": total_ns(dataset),
        "by_process": by_process,
        "steps": steps_by_kind(dataset),
        "modules": records(modules.head(_TOP)),
    }


def as_text(dataset: Dataset) -> RenderableType:
    """The summary for a person at a terminal."""
    by_process, words = records(processes.frame(dataset)), nouns(dataset)
    parts: list[RenderableType] = [_source(dataset, by_process)]
    if dataset.reports or len(by_process) > 1:
        parts.append(_processes(by_process, words, named=bool(dataset.reports)))
    lines = module_tree.frame(dataset)
    if len(lines):
        own, subtree = (lines.sort_values(by, ascending=False, kind="stable") for by in ("self_ns", "inclusive_ns"))
        parts += [
            _modules(f"Modules by {words.device} time of their own", own, words.works),
            _modules(f"Modules by {words.device} time of their subtree", subtree, words.works),
        ]
    parts.append(_coverage(dataset, words))
    if more := advice(dataset):
        parts += [
            Text("To know more next time", style="bold"),
            *(Padding(Text(f"• {line}"), (0, 1)) for line in more),
        ]
    parts.append(Text.from_markup(f"\nTables are in [bold]{escape(plain(str(dataset.folder)))}[/]"))
    return Group(*parts)


def total_ns(dataset: Dataset) -> int:
    """The time of all work, known or not."""
    return pc.sum(dataset.table("kernels", ["dur_ns"]).column("dur_ns")).as_py() or 0


def _source(dataset: Dataset, by_process: list[dict[str, Any]]) -> Text:
    reports, rows = dataset.manifest.get("reports", [dataset.manifest]), dataset.manifest["rows"]
    first, words = reports[0]["source"], nouns(dataset)
    name = plain(first["name"]) if not dataset.reports else count(len(reports), "report")
    devices = ", ".join(_alike(map(plain, _devices(reports, by_process))))
    return Text.assemble(
        (name, "bold"),
        f"  {' and '.join(_alike(map(exporter, reports)))}\n",
        f"{count(rows['kernels'], words.work)} ({duration(total_ns(dataset))} on the {words.device}), "
        f"{count(rows['calls'], 'call')} of {count(rows['modules'], 'module')}, {count(rows['ranges'], 'range')}, "
        f"{count(sum(len(its['processes']) for its in reports), 'process', 'processes')}\n",
        f"{_steps_line(dataset)}\n",
        f"{devices}\n" if devices else "",
    )


def _devices(reports: list[dict[str, Any]], by_process: list[dict[str, Any]]) -> list[str]:
    """Names of the devices that worked; of all that a machine has where that is not known."""
    worked = {(row["report"], row["device"]) for row in by_process}
    known = [(its.get("name"), one["device"], one["name"]) for its in reports for one in its["devices"]]
    unknown = {report for report, device in worked if (report, device) not in {k[:2] for k in known}}
    idle = {report for report, *_ in known} - {report for report, _ in worked}
    return [name for report, device, name in known if (report, device) in worked or report in unknown | idle]


def exporter(report: dict[str, Any]) -> str:
    """What wrote a report, by the manifest: ``Nsight Systems 2023.4.4, schema 3.7.2``."""
    source = report["source"]
    schema = f", schema {source['schema_version']}" if source["schema_version"] else ""
    version = source["exporter"] or "of unknown version"
    return f"{version if version.startswith('tracekit') else f'Nsight Systems {version}'}{schema}"


def _alike(names: Iterable[str]) -> list[str]:
    """Every name once, with how often it occurs if that is more than once."""
    return [f"{often} x {name}" if often > 1 else name for name, often in Counter(names).items()]


def _processes(rows: list[dict[str, Any]], words: Nouns, *, named: bool) -> Table:
    table = Table(
        title=f"{words.device} time by process",
        title_justify="left",
        title_style="bold",
        box=SIMPLE,
        pad_edge=False,
    )
    if named:
        table.add_column("report", overflow="fold", ratio=1)
    for heading in ("rank", "pid", "device", words.works, "time", "known"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows[:_MOST_PROCESSES]:
        keys = ["" if row[key] is None else str(row[key]) for key in ("rank", "pid", "device")]
        figures = [f"{row['kernels']:,}", duration(row["gpu_time_ns"]), percent(row["known"])]
        table.add_row(*([escape(plain(row["report"]))] if named else []), *keys, *figures)
    if len(rows) > _MOST_PROCESSES:
        table.caption = f"and {len(rows) - _MOST_PROCESSES:,} more"
    return table


def steps_by_kind(dataset: Dataset) -> list[dict[str, Any]]:
    """Steps by kind: how many, and the median of their host time."""
    table = dataset.table("steps", ["kind", "start_ns", "end_ns"])
    kinds = [kind or "step" for kind in table.column("kind").to_pylist()]
    spans = [
        end - start for start, end in zip(*(table.column(c).to_pylist() for c in ("start_ns", "end_ns")), strict=True)
    ]
    found = []
    for kind in dict.fromkeys(kinds):
        own = [span for span, its in zip(spans, kinds, strict=True) if its == kind]
        found.append({"kind": kind, "count": len(own), "median_host_ns": median(own)})
    return found


def _steps_line(dataset: Dataset) -> str:
    steps = steps_by_kind(dataset)
    if not steps:
        return "no steps"
    said = [
        f"{step['count']:,} {step['kind'] + ' ' if step['kind'] != 'step' else ''}"
        f"{'step' if step['count'] == 1 else 'steps'} (median {duration(step['median_host_ns'])} on the host)"
        for step in steps
    ]
    return ", ".join(said)


def _modules(title: str, modules: pd.DataFrame, works: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE, pad_edge=False)
    table.add_column("module", overflow="fold", ratio=1)
    for heading in ("calls", works, "self", "subtree", "share"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in records(modules.head(_TOP)):
        alike = f"  {row['modules']} x" if row["modules"] > 1 else ""
        name = escape(plain(row["pattern"] if alike else row["path"])) + alike
        name += f" [dim]{escape(plain(row['class_name']))}[/]" if row["class_name"] else ""
        times = (duration(row["self_ns"]), duration(row["inclusive_ns"]), percent(row["share"]))
        table.add_row(name, f"{row['calls']:,}", f"{row['kernels']:,}", *times)
    return table


def _coverage(dataset: Dataset, words: Nouns) -> Table:
    table = Table(
        title=f"Coverage of {words.device} time",
        title_justify="left",
        title_style="bold",
        box=SIMPLE,
        pad_edge=False,
    )
    table.add_column(no_wrap=True)
    for heading in (words.works, "time", "share"):
        table.add_column(heading, justify="right", no_wrap=True)
    counted = dataset.manifest["coverage"]
    rows = [row for row in counted if row["what"] == "kernels"]
    for row in sorted(rows, key=lambda row: (not row["known"], -row["time_ns"])):
        label = f"attributed by {row['cause']}" if row["known"] else f"unknown: {row['cause']}"
        style = "green" if row["known"] else "yellow"
        table.add_row(
            Text(label, style=style),
            f"{row['count']:,}",
            duration(row["time_ns"]),
            percent(row["share"]),
        )
    if not rows:
        table.add_row("no GPU work in this report", "", "", "")
    for doubt in doubts(counted):
        table.add_row(Text(doubt, style="yellow"), "?", "?", "")
    return table


def doubts(coverage: list[dict[str, Any]]) -> list[str]:
    """What belongs beside every share of the time: what the profiler says itself that is not in the report."""
    said = [row["cause"] for row in coverage if row["what"] == _SAID]
    return [f"perhaps lost, nsys says: {cause}" for cause in said]


def advice(dataset: Dataset) -> list[str]:
    """What to record otherwise so that more is known, a sentence for each."""
    lacks, said = _lacks(dataset.manifest), {_WHOLE_GRAPH}
    if not dataset.manifest["rows"]["calls"]:
        said.add(_OUTSIDE)
        lacks.append(
            "no call of a module is in it: record with tracekit capture, or mark the model "
            "(tracekit.capture.layer_markers; vLLM's --enable-layerwise-nvtx-tracing; SGLang's "
            "--enable-layerwise-nvtx-marker)"
        )
    return lacks + [
        f"{row['what']}, {row['cause']} ({row['count']:,}): {row['advice']}"
        for row in dataset.manifest["coverage"]
        if not row["known"] and row["advice"] and row["cause"] not in said and row["what"] != _SAID
    ]


def _lacks(manifest: dict[str, Any]) -> list[str]:
    """What reports lack; of several also which ones do."""
    if "reports" not in manifest:
        return [f"the report lacks {lack['what']}: {lack['remedy']}" for lack in manifest["lacks"]]
    left_out = [f"{one['name']} was left out: {one['problem']}" for one in manifest["left_out"]]
    lacking: dict[tuple[str, str], list[str]] = {}
    for report in manifest["reports"]:
        for lack in report["lacks"]:
            lacking.setdefault((lack["what"], lack["remedy"]), []).append(report["name"])
    return left_out + [
        f"{', '.join(names)} {'lacks' if len(names) == 1 else 'lack'} {what}: {remedy}"
        if len(names) < len(manifest["reports"])
        else f"the reports lack {what}: {remedy}"
        for (what, remedy), names in lacking.items()
    ]

"""The summary of a dataset: what was read, where the time went, what is not attributed and what to do about it."""

import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable
from statistics import median
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tracekit.aggregates import nodes
from tracekit.aggregates.weighted_kernels import certainty_of_work, kernels
from tracekit.answers import modules as modules_by_time, processes as work_by_process, tree as module_tree
from tracekit.arrays.columns import selected
from tracekit.dataset.manifest import of_same_processes
from tracekit.dataset.opening import Dataset
from tracekit.errors import plain
from tracekit.markers.base import MODULES
from tracekit.steptime import budget
from tracekit.steptime.budget import Budgets
from tracekit.steptime.own_times import longest, times_of
from tracekit.views import budget as budget_view, findings, tree
from tracekit.views.formatting import Nouns, count, duration, nouns, percent, plain_table, records

_MOST_MODULES = 10
#: With more reports, clocks are not aligned and findings are those of one rank: both take time for each pair of ranks.
_MOST_ALIGNED = 8
_WITHOUT_CLOCKS = "waiting for other ranks counts as communication here; tracekit show budget divides them"
_MOST_LINES = 14
_MOST_PROCESSES = 64
_LEAST_NAME = 8
#: Kinds of a budget with less of a step, and of all of it, are left out.
_LEAST_SHARE = 0.01
_WIDTH = 80
#: Causes whose advice is given elsewhere: the lacks of a report name graphs traced as a whole, and a report without
#: any module call has its own advice.
_GRAPHS_TRACED_AS_A_WHOLE = {"graph_not_expanded"}
_OUTSIDE = {"outside_modules", "outside_ranges"}
_COMPILATION, _BACKWARD = "compilation", "backward"
_LEFT_OUT = "left out of the times of steps and modules"
_METHODS = {
    "annotated": "attributed by the module that torch wrote on the kernel",
    "range": "launched inside {node}'s call",
    "graph_node": "attributed by CUDA graph node",
    "graph_order": "attributed by launch order in the CUDA graph",
    "graph_capture": "attributed by the graph capture of whole CUDA graphs",
    "graph_launch": "replayed inside {node}'s call, as a whole",
    "backward": "attributed by the forward call of the autograd node",
    "autograd_thread": "attributed by the range that waits for autograd",
    "compiled": "attributed by the kernel map of the compiled graph",
    "aligned": "attributed by its counterpart in a marked run",
}
#: Subject of the losses that the profiler itself reports; the lacks quote them.
_PROFILER_LOSSES = "report: losses"


def as_json(dataset: Dataset) -> dict[str, Any]:
    """The summary as plain data, for other programs."""
    modules, manifest = modules_by_time.totals(dataset, _MOST_MODULES), dataset.manifest
    by_process, budgets = records(work_by_process.columns(dataset)), _budgets(dataset)
    rank, first = _findings(dataset, budgets)
    single = ("source", "devices", "processes", "ranks", "missing")
    several = ("reports", "left_out")
    return {
        "dataset": str(dataset.folder),
        **{key: manifest[key] for key in (several if dataset.reports else single)},
        "hierarchy": {"by": list(nodes.hierarchy_keys(dataset)), "row": nodes.noun(dataset), "why": nodes.why(dataset)},
        **{key: manifest[key] for key in ("rows", "coverage")},
        "attributed_ns": certainty_of_work(dataset),
        "gpu_time_ns": total(dataset)[1],
        "by_process": by_process,
        "steps": steps_by_kind(dataset),
        "budget": records(budget.of_kinds(budgets)),
        "findings_of": rank,
        "findings": first,
        "modules": records(modules),
    }


def as_text(dataset: Dataset, width: int = _WIDTH) -> RenderableType:
    """The summary for a person at a terminal of this many characters."""
    by_process, words, budgets = records(work_by_process.attributed(dataset)), nouns(dataset), _budgets(dataset)
    parts: list[RenderableType] = [_source(dataset, by_process, words)]
    if dataset.reports or len(by_process) > 1:
        parts.append(_processes(by_process, words, with_reports=bool(dataset.reports)))
    by_kind = budget.of_kinds(budgets)
    shown = (by_kind["share"] >= _LEAST_SHARE) | (by_kind["total_share"] >= _LEAST_SHARE)
    if budget_of_steps := budget_view.as_text(dataset, selected(by_kind, shown), width):
        parts.append(budget_of_steps)
        parts += [Text(f"{_WITHOUT_CLOCKS}\n", style="dim")] if len(dataset.reports) > _MOST_ALIGNED else []
    parts += _hierarchy(dataset, words, width)
    parts.append(_coverage(dataset, words))
    if line := certainty_line(dataset, words):
        parts += [Text(line), Text()]
    if sentences := advice(dataset):
        bullets = Table.grid(padding=(0, 1))
        for sentence in sentences:
            bullets.add_row("•", Text(sentence))
        parts += [Text(f"Why some time has no {words.node}, and what to do", style="bold"), bullets, Text()]
    parts.append(_whole_line(("Tables are in ", ""), (plain(str(dataset.folder)), "bold")))
    command = f"tracekit show findings {shlex.quote(plain(str(dataset.folder)))}"
    rank, first = _findings(dataset, budgets)
    of = "" if rank is None else f" of {rank}"
    parts += findings.lines(first, f"{budget_view.window(dataset)}{of}", command, width)
    return Group(*parts)


def _budgets(dataset: Dataset) -> Budgets:
    """Where the wall clock of steps went."""
    return budget.summed(dataset, waits=len(dataset.reports) <= _MOST_ALIGNED)


def _findings(dataset: Dataset, budgets: Budgets) -> tuple[str | None, list[dict[str, Any]]]:
    """The first findings, and whose they are: of many reports, those of the rank that works longest in a step."""
    times = times_of(budgets) if len(dataset.reports) > _MOST_ALIGNED else None
    name, part = longest(dataset, times) if times and times.who else (None, dataset)
    return name, findings.first(part)


def total(dataset: Dataset) -> tuple[int, int]:
    """How many pieces of work there are, attributed or not, and their time."""
    times = [kernels(part, ["dur_ns"]).dur_ns for part in dataset.by_report()]
    return sum(map(len, times)), sum(int(time.sum()) for time in times)


def _source(dataset: Dataset, by_process: list[dict[str, Any]], words: Nouns) -> Text:
    reports, rows, (number, spent) = dataset.entries, dataset.manifest["rows"], total(dataset)
    name = plain(reports[0]["source"]["name"]) if not dataset.reports else count(len(reports), "report")
    processes = count(sum(len(report["processes"]) for report in _different(reports)), "process", "processes")
    named = ", ".join(_numbered(map(plain, devices(dataset, by_process))))
    causes = [row for row in dataset.manifest["coverage"] if row["what"] == "processes"]
    compiled_ns = sum(row["time_ns"] for row in causes if row["cause"] == _COMPILATION)
    compilation = f"{duration(compiled_ns)} of this recording were compilation: {_LEFT_OUT}\n" if compiled_ns else ""
    return Text.assemble(
        (name, "bold"),
        f"  {' and '.join(_numbered(map(exporter, reports)))}\n",
        f"{count(number, words.work)} ({duration(spent)} on the {words.device}) in {processes}\n"
        f"{count(rows['calls'], 'call')} of {count(rows['modules'], words.node)}\n"
        f"{_steps_line(dataset, 'processes' if any(row['rank'] is None for row in by_process) else 'ranks')}\n",
        (compilation, "yellow"),
        f"{named}\n" if named else "",
    )


def _different(reports: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One report of each process: profilers write one for each cycle of a schedule."""
    return [reports[at] for at in dict.fromkeys(of_same_processes(reports))]


def devices(dataset: Dataset, by_process: list[dict[str, Any]]) -> list[str]:
    """The names of the devices that worked; of reports that do not record which, those of all that they list."""
    reports = _different(dataset.entries)
    worked = {(row["report"], row["device"]) for row in by_process}
    known = [
        (report.get("name"), device["device"], device["name"]) for report in reports for device in report["devices"]
    ]
    unknown = {report for report, device in worked if (report, device) not in {entry[:2] for entry in known}}
    idle = {report for report, *_ in known} - {report for report, _ in worked}
    return [name for report, device, name in known if (report, device) in worked or report in unknown | idle]


def exporter(report: dict[str, Any]) -> str:
    """What wrote a report, from the manifest: ``Nsight Systems 2023.4.4, schema 3.7.2``."""
    source = report["source"]
    schema = f", schema {source['schema_version']}" if source["schema_version"] else ""
    name = source["exporter"]
    # Reports of Nsight Systems name its version only, those of tracekit's own recorder are stored as its exports are.
    if source["format"].startswith("nsight") and not (name or "").startswith("tracekit"):
        name = f"Nsight Systems {name or '(unknown version)'}"
    return f"{name or source['format']}{schema}"


def _numbered(names: Iterable[str]) -> list[str]:
    return [f"{times} x {name}" if times > 1 else name for name, times in Counter(names).items()]


def _titled(title: str) -> Table:
    return plain_table(title=title, title_justify="left", title_style="bold")


def _processes(rows: list[dict[str, Any]], words: Nouns, *, with_reports: bool) -> Table:
    table = _titled(f"{words.device} time by process")
    if with_reports:
        table.add_column("report", overflow="fold", min_width=_LEAST_NAME)
    for heading in ("rank", "pid", "device", words.works, "time", "attributed"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows[:_MOST_PROCESSES]:
        report = [Text(plain(row["report"]))] if with_reports else []
        keys = ["" if row[key] is None else str(row[key]) for key in ("rank", "pid", "device")]
        table.add_row(*report, *keys, f"{row['kernels']:,}", duration(row["gpu_time_ns"]), percent(row["known"]))
    if len(rows) > _MOST_PROCESSES:
        table.caption = f"{len(rows) - _MOST_PROCESSES:,} more: tracekit show processes"
    return table


def steps_by_kind(dataset: Dataset) -> list[dict[str, Any]]:
    """Steps by kind: how many, and the median of their host time without compilation."""
    spans: dict[str, list[int]] = {}
    for part in dataset.by_report():
        columns = part.table("steps", ["kind", "start_ns", "end_ns", "compile_ns"]).to_pydict()
        for kind, start, end, compiling in zip(*columns.values(), strict=True):
            spans.setdefault(kind or "step", []).append(end - start - compiling)
    return [{"kind": kind, "count": len(own), "median_host_ns": median(own)} for kind, own in spans.items()]


def steps_on_each(dataset: Dataset) -> dict[str, tuple[int, int | None]]:
    """By kind of steps, how many processes have some, and how many steps each has; None if not all have as many."""
    steps: dict[str, Counter[tuple[int, int]]] = {}
    for at, part in zip(of_same_processes(dataset.entries), dataset.by_report(), strict=True):
        columns = part.table("steps", ["kind", "pid"]).to_pydict()
        for kind, pid in zip(*columns.values(), strict=True):
            steps.setdefault(kind or "step", Counter())[at, pid] += 1
    return {kind: (len(own), min(own.values()) if len({*own.values()}) == 1 else None) for kind, own in steps.items()}


def _steps_line(dataset: Dataset, process: str) -> str:
    texts, on_each = [], steps_on_each(dataset)
    for step in steps_by_kind(dataset):
        processes, each = on_each[step["kind"]]
        number = count(each or step["count"], "step" if step["kind"] == "step" else f"{step['kind']} step")
        where = f" on {'each of ' if each else ''}{processes} {process}" if processes > 1 else ""
        length = f"step on the host {duration(step['median_host_ns'])}{', median' * (step['count'] > 1)}"
        texts.append(f"{number}{where} ({length})")
    return ", ".join(texts) or "no steps"


def _hierarchy(dataset: Dataset, words: Nouns, width: int) -> list[RenderableType]:
    columns = module_tree.columns(dataset)
    lines = records(columns)
    if not lines:
        return []
    by = modules_by_time.most_telling(columns)
    shown = [lines[row] for row in module_tree.largest(columns, _MOST_LINES)]
    command = f"tracekit show tree {shlex.quote(plain(str(dataset.folder)))}"
    hidden = len(lines) - len(shown)
    more = f"{count(hidden, 'more line')}: " if hidden else "Sort or filter it: "
    title = Text(f"{'Host' if by == 'subtree_host_ns' else words.device} time by {words.node}", style="bold")
    why = [Text(plain(sentence), style="dim") for sentence in nodes.why(dataset)]
    return [title, *why, tree.table_of(shown, words, width), _whole_line((f" {more}", "dim"), (command, "")), Text()]


def _whole_line(*parts: tuple[str, str]) -> Text:
    line = Text.assemble(*parts)
    line.no_wrap, line.overflow = True, "ignore"
    return line


def _coverage(dataset: Dataset, words: Nouns) -> Table:
    table = _titled(f"Coverage of {words.device} time")
    table.add_column(no_wrap=True)
    for heading in (words.works, "time", "share"):
        table.add_column(heading, justify="right", no_wrap=True)
    counted = dataset.manifest["coverage"]
    sums = defaultdict[tuple[bool, str], Any](lambda: np.zeros(3))
    for row in (row for row in counted if row["what"] == "kernels"):
        sums[row["known"], row["cause"]] += (row["count"], row["time_ns"], row["share"])
    for (known, cause), (number, spent, share) in sorted(sums.items(), key=lambda item: (not item[0][0], -item[1][1])):
        label = Text(how({"cause": cause, "known": known}, words), style="green" if known else "yellow")
        table.add_row(label, f"{int(number):,}", duration(int(spent)), percent(share))
    if not sums:
        table.add_row(f"no {words.device} work recorded", "", "", "")
    for doubt in doubts(counted):
        table.add_row(Text(doubt, style="yellow"), "?", "?", "")
    return table


def how(row: dict[str, Any], words: Nouns) -> str:
    """How the work in a row of coverage got its module, or why it has none."""
    if not row["known"]:
        return f"no {words.node}: {row['cause']}"
    article = "an" if words.node.startswith("o") else "a"
    return _METHODS.get(row["cause"], "attributed by {cause}").format(node=f"{article} {words.node}", **row)


def certainty_line(dataset: Dataset, words: Nouns) -> str:
    """``Attributed GPU time: exact 60.0 %, weighted 30.0 %, inferred 10.0 %``; empty if all of it is exact."""
    time = certainty_of_work(dataset)
    attributed = sum(time.values())
    if time["exact"] == attributed:
        return ""
    shares = ", ".join(f"{kind} {percent(spent / attributed)}" for kind, spent in time.items())
    return f"Attributed {words.device} time: {shares}"


def doubts(coverage: list[dict[str, Any]]) -> list[str]:
    """Losses that the profiler itself reports: some work may be missing from the shares."""
    causes = [row.get("detail") or row["cause"] for row in coverage if row["what"] == _PROFILER_LOSSES]
    return [f"possibly lost: {cause}" for cause in causes]


def advice(dataset: Dataset) -> list[str]:
    """Why some time has no module and what to do, a sentence each."""
    sentences, covered = _missing_data(dataset.manifest), set(_GRAPHS_TRACED_AS_A_WHOLE)
    aligned: Counter[str] = Counter()
    for like in (like for report in dataset.entries for like in report.get("like", ())):
        aligned[like["name"]] += like["kernels"]
    unlike = [name for name, kernels in aligned.items() if not kernels]
    sentences += [f"nothing could be aligned with {name} (--like): it has no step like these" for name in unlike]
    if not dataset.manifest["rows"]["modules"]:
        covered |= _OUTSIDE
        sentences.append(nodes.none(dataset))
    by_modules = MODULES in nodes.hierarchy_keys(dataset)
    rows = dataset.manifest["coverage"]
    # Where backward work was seen, it has its module or advice of its own; engines that serve a model do not train.
    may_train = all(row["cause"] != _BACKWARD for row in rows) and not _serves(dataset)
    for row in rows:
        repeated = row["what"] == _PROFILER_LOSSES or (row["what"] != "processes" and row["cause"] == _COMPILATION)
        # Calls of ranges and operators have no markers that could be unclear.
        repeated |= row["what"] == "calls: losses" and not by_modules
        if not (row["known"] or repeated) and row["advice"] and row["cause"] not in covered:
            text, question, hint = row["advice"].partition("Training?")
            detail = f" ({row['detail']})" if row.get("detail") else ""
            sentences.append(f"{row['what']}, {row['cause']}{detail} ({row['count']:,}): {text.strip()}")
            sentences += [f"{question}{hint}"] if hint and may_train else []
    return sentences


def _serves(dataset: Dataset) -> bool:
    """Whether all steps are those of an engine that serves a model."""
    kinds = {step["kind"] for step in steps_by_kind(dataset)}
    return bool(kinds) and kinds <= {"prefill", "decode", "mixed"}


def _missing_data(manifest: dict[str, Any]) -> list[str]:
    if "reports" not in manifest:
        return [f"the report lacks {data['what']}: {data['remedy']}" for data in manifest["missing"]]
    reports = manifest["reports"]
    lacking: dict[tuple[str, str], list[str]] = {}
    for report in reports:
        for data in report["missing"]:
            lacking.setdefault((data["what"], data["remedy"]), []).append(report["name"])
    sentences = [f"{report['name']} was left out: {report['problem']}" for report in manifest["left_out"]]
    for (what, remedy), names in lacking.items():
        lack = f"{', '.join(names)} {'lacks' if len(names) == 1 else 'lack'}"
        sentences.append(f"{'the reports lack' if len(names) == len(reports) else lack} {what}: {remedy}")
    return sentences

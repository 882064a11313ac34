"""Time on the page: what steps cost, and the work of some steps and of whole recordings, on streams side by side."""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from tracekit.aggregates.each_report import Words
from tracekit.aggregates.subtrees import Hierarchy, Pairs, summed_by_node
from tracekit.aggregates.weighted_kernels import kernels as device_work, names_of
from tracekit.answers import phases
from tracekit.arrays.codes import labels, lookup, positions
from tracekit.arrays.columns import integers
from tracekit.arrays.groups import counts, grouped, sums
from tracekit.arrays.intervals import lanes
from tracekit.arrays.types import Ints, Rows
from tracekit.dataset.opening import REPORT, Dataset
from tracekit.steptime.budget import Budgets, windows
from tracekit.steptime.own_times import times_of
from tracekit.views.formatting import records
from tracekit.views.page import limits
from tracekit.views.page.host import Host, HostCalls
from tracekit.views.page.limits import clipped
from tracekit.views.page.nodes import Nodes
from tracekit.views.page.ranks import Reports, Together, joined, tied, together

_WHERE = ["pid", "device", "context", "stream"]
_NUMBERS = ["start_ns", "end_ns", "dur_ns", "step_id", "kernel_id"]
_COLUMNS = ["name", "kind", "module_id", "tid", *_NUMBERS, *_WHERE]
_OPERATOR = "cpu_op"
_ALONE: Reports = {None: 0}
#: Rows of steps, and why each is drawn.
Choices = list[tuple[int, str]]


class _Work(NamedTuple):
    """Pieces of work, in columns; ``stream`` is an index into the streams."""

    start: Ints
    end: Ints
    ns: Ints
    stream: Rows
    module: Rows
    name: Rows

    def of(self, rows: Rows) -> "_Work":
        return _Work(*(column[rows] for column in self))


def timelines(
    dataset: Dataset, modules: Hierarchy, nodes: Nodes, steps: pd.DataFrame, choices: Choices, telling: Reports
) -> dict[str, Any]:
    """The work of :func:`chosen` steps, and of each whole recording.

    Those of the ``telling`` reports come first, with all pieces that a drawing may have; the others share some.

    Returns:
        ``names`` of work, and ``drawn``, a list of drawings: ``step`` (null for a whole recording), ``report``,
        ``start_ns``, ``span_ns``, ``work`` (how many kernels ran), ``streams`` (what they are, and how many
        ``lanes`` each needs), ``left_out`` (how many streams are not drawn), and ``pieces`` in columns: ``start_ns``
        (from the start of the drawing), ``length_ns``, ``stream``, ``lane``, ``module``, ``line``, ``name`` (-1 if not
        listed), ``count`` (kernels that are drawn as one) and ``ns`` (their time). If there are too many
        pieces, neighbours are drawn as one, with the module and the name that took the most of their time. Drawings of
        steps with work of a device have ``threads`` of the host, ``calls`` (how many) and ``host``, those that are
        drawn, in the columns above, with the thread as ``stream`` and -2 as the ``name`` of calls of modules; and
        ``pieces`` have ``launch``, the call that launched each, or -1. If several ranks ran the first step on a known
        clock, the first drawing is of all of them, and its ``pieces`` have ``meeting``: the collective of each.
    """
    names = Words()
    common = together(dataset, steps, choices[0][0] if choices else None, telling)
    of_steps: list[dict[str, Any]] = [{}] * len(choices)
    of_common: dict[int, dict[str, Any]] = {}
    recordings: dict[str | None, dict[str, Any]] = {}
    reports = [None if REPORT not in steps else steps[REPORT].iloc[row] for row, _ in choices]
    recorded = sorted(dataset.names, key=lambda name: telling.get(name, len(telling)))[: limits.STEPS]
    others = sum(name not in telling for name in [*reports, *recorded])
    for at, part in enumerate(dataset.by_report()):
        name = part.names[0]
        if name not in (*reports, *recorded) and at not in common.rows:
            continue
        report = _read(part, modules, names)
        most = limits.PIECES if name in telling else min(limits.PIECES, limits.PIECES_OF_OTHERS // others)
        for number in [number for number, one in enumerate(reports) if one == name]:
            of_steps[number] = report.of_step(described(steps, *choices[number]), nodes, most)
        if at in common.rows:
            of_common[at] = report.of_ranks(steps["step_id"].iloc[common.rows[at]].to_numpy("int64"), common, nodes)
        if name in recorded and report.step.size:
            drawing = _drawn(report.work, report.streams, nodes, most)
            recordings[name] = {"step": None, "report": name and clipped(name), **drawing}
    drawn = of_steps + [recordings[name] for name in recorded if name in recordings]
    if of_common:
        step = described(steps, choices[0][0], "all ranks")
        drawn.insert(0, {"step": step, "report": None, **joined(of_common, common)})
    columns = [drawing[name] for drawing in drawn for name in ("pieces", "host") if name in drawing]
    return {"names": _listed(names, columns), "drawn": drawn}


def _listed(names: Words, drawn: list[dict[str, list[int]]]) -> list[str]:
    """The most frequent names of pieces; ``name`` becomes the index among these, or -1; without one it is -2."""
    used = np.array([code for pieces in drawn for code in pieces["name"] if code >= 0], np.int64)
    codes, times = np.unique(used, return_counts=True)
    listed = codes[np.argsort(-times, kind="stable")][: limits.NAMES]
    index = np.full(len(names) + 1, -1, dtype=np.int64)
    index[listed], index[-1] = np.arange(listed.size), -2
    for pieces in drawn:
        pieces["name"] = index[np.array(pieces["name"], np.int64)].tolist()
    return [clipped(name or "") for name in names.named(listed)]


class _Report(NamedTuple):
    """The work of a report, the step and the id of each piece, and what the host called."""

    work: _Work
    streams: list[dict[str, Any]]
    step: Ints
    kernel: Ints
    host: HostCalls

    def of_step(self, step: dict[str, Any], nodes: Nodes, most: int) -> dict[str, Any]:
        rows = np.flatnonzero(self.step == step["step_id"])
        drawing = _drawn(self.work.of(rows), self.streams, nodes, most)
        if drawing["streams"][0]["tid"] is None:
            _add_host(drawing, self.host.of_step(step["step_id"], rows, self.work.module[rows]), nodes)
        return {"step": step, "report": step["report"], **drawing}

    def of_ranks(self, steps: Ints, common: Together, nodes: Nodes) -> dict[str, Any]:
        rows = np.flatnonzero(np.isin(self.step, steps))
        drawing = _drawn(self.work.of(rows), self.streams, nodes, limits.PIECES, len(common.rows))
        return tied(drawing, common, self.kernel[rows])


def _read(dataset: Dataset, modules: Hierarchy, names: Words) -> _Report:
    table = device_work(dataset, _COLUMNS).table
    stream, streams = _streams(dataset, table)
    start, end, time, step, kernel = (integers(table, name) for name in _NUMBERS)
    work = _Work(start, end, time, stream, modules.rows(table), names.codes(names_of(table)))
    return _Report(work, streams, step, kernel, HostCalls(dataset, modules, names))


def _streams(dataset: Dataset, table: pa.Table) -> tuple[Rows, list[dict[str, Any]]]:
    kinds = labels(table, "kind")
    on_host = np.isin(kinds.code, kinds.of(_OPERATOR))
    tid = np.where(on_host, integers(table, "tid"), -1)
    parts = [*(integers(table, name) for name in _WHERE), tid]
    code, first = grouped(parts)
    report = clipped(dataset.reports[0]) if dataset.reports else None
    streams = [
        {"report": report} | {key: None if id_ < 0 else id_ for key, id_ in zip([*_WHERE, "tid"], ids, strict=True)}
        for ids in zip(*(part[first].tolist() for part in parts), strict=True)
    ]
    return code, streams


def _drawn(whole: _Work, described: list[dict[str, Any]], nodes: Nodes, most: int, parts: int = 1) -> dict[str, Any]:
    streams, local = np.unique(whole.stream, return_inverse=True)
    shown = np.sort(np.argsort(-sums(local, whole.ns, streams.size), kind="stable")[: max(limits.STREAMS // parts, 1)])
    place = positions(local, shown)
    work = whole._replace(stream=place).of(np.flatnonzero(place >= 0))
    begin = int(work.start.min())
    pieces, count = _merged(work, most // parts)
    lane = lanes(pieces.stream, pieces.start, pieces.end)
    lane_counts = np.zeros(shown.size, dtype=np.int64)
    np.maximum.at(lane_counts, pieces.stream, lane + 1)
    return {
        "start_ns": begin,
        "span_ns": int(pieces.end.max()) - begin,
        "work": int(whole.start.size),
        "streams": [
            {**described[stream], "lanes": lane_count}
            for stream, lane_count in zip(streams[shown].tolist(), lane_counts.tolist(), strict=True)
        ],
        "left_out": int(streams.size - shown.size),
        "pieces": _columns(pieces, begin, lane, count, nodes),
    }


def _add_host(drawing: dict[str, Any], host: Host, nodes: Nodes) -> None:
    """Adds what host threads did; merged pieces have no single launch."""
    begin = min(drawing["start_ns"], int(host.start.min(initial=drawing["start_ns"])))
    later, end = drawing["start_ns"] - begin, drawing["start_ns"] + drawing["span_ns"]
    pieces = drawing["pieces"]
    pieces["start_ns"] = [at + later for at in pieces["start_ns"]]
    if drawing["work"] == len(pieces["ns"]) == host.launch.size:
        pieces["launch"] = host.launch.tolist()
    columns = {
        "start_ns": host.start - begin,
        "length_ns": host.end - host.start,
        "stream": host.thread,
        "lane": host.depth,
        "name": host.name,
        "module": lookup(nodes.module, host.module),
    }
    drawing |= {
        "start_ns": begin,
        "span_ns": max(end, int(host.end[host.module >= 0].max(initial=end))) - begin,
        "threads": [{"pid": pid, "tid": tid} for pid, tid in host.threads],
        "host": {name: column.tolist() for name, column in columns.items()},
        "calls": host.calls,
    }


def _columns(pieces: _Work, begin: int, lane: Rows, count: Ints, nodes: Nodes) -> dict[str, list[int]]:
    columns = {
        "start_ns": pieces.start - begin,
        "length_ns": pieces.end - pieces.start,
        "ns": pieces.ns,
        "stream": pieces.stream,
        "lane": lane,
        "name": pieces.name,
        "count": count,
        "module": lookup(nodes.module, pieces.module),
        "line": lookup(nodes.line, pieces.module),
    }
    return {name: column.tolist() for name, column in columns.items()}


def _merged(work: _Work, most: int) -> tuple[_Work, Ints]:
    """At most about ``most`` pieces, and how many each represents; those that begin close together become one."""
    if work.start.size <= most:
        return work, np.ones(work.start.size, dtype=np.int64)
    begin = int(work.start.min())
    bins = max(most // (int(work.stream.max()) + 1), 1)
    width = max(-(-(int(work.start.max()) + 1 - begin) // bins), 1)
    _, group = np.unique(work.stream * bins + (work.start - begin) // width, return_inverse=True)
    size = int(group.max()) + 1
    order = np.argsort(group, kind="stable")
    first = np.searchsorted(group[order], np.arange(size))
    merged = _Work(
        np.minimum.reduceat(work.start[order], first),
        np.maximum.reduceat(work.end[order], first),
        np.add.reduceat(work.ns[order], first),
        work.stream[order][first],
        _main(group, work.module, work.ns),
        _main(group, work.name, work.ns),
    )
    return merged, counts(group, size)


def _main(group: Rows, value: Rows, ns: Ints) -> Rows:
    pairs = summed_by_node(Pairs(group, value, ns))
    order = np.lexsort((-pairs.value, pairs.node))
    first = np.searchsorted(pairs.node[order], np.arange(int(group.max()) + 1))
    main: Rows = pairs.group[order][first]
    return main


#: Steps that take this much longer than the median of their kind are slow; so many are named.
_SLOW, _NAMED = 1.2, 5


def steps(frame: pd.DataFrame, dataset: Dataset, budgets: Budgets | None) -> dict[str, Any]:
    """What steps cost.

    Args:
        frame: The answer of the analysis ``steps``.
        dataset: The dataset.
        budgets: The budgets of steps, if they are known.

    Returns:
        ``phases``: rows by kind and batch size; ``bars``: the steps in order, with ``time_ns`` (wall clock: the
        longest window of the step on a device; if it has none, the host's time),
        ``gpu_time_ns``, ``kind`` (index into ``kinds``) and ``step`` (its row). If there are more steps than room,
        neighbours share a bar, which is that of the slowest. ``slow``: the steps that take far longer than the median
        of their kind, which is ``median_ns``, the slowest first.
    """
    frame = frame.assign(time_ns=_wall_clock(frame, budgets))
    rows = records(phases.frame(dataset))
    for row in rows:
        row["kind"] = row["kind"] and clipped(row["kind"])
    kinds = list(dict.fromkeys(map(_kind, frame["kind"])))
    return {
        "phases": rows[: limits.ROWS],
        "phases_left_out": max(len(rows) - limits.ROWS, 0),
        "count": len(frame),
        "kinds": [clipped(kind) for kind in kinds[: limits.ROWS]],
        "bars": _bars(frame, kinds),
        "slow": _slow_steps(frame),
    }


def _wall_clock(frame: pd.DataFrame, budgets: Budgets | None) -> Ints:
    known: Any = {} if budgets is None else pd.DataFrame(windows(budgets)).groupby("step_id")["window_ns"].max()
    return np.asarray(frame["step_id"].map(known).fillna(frame["host_ns"]), np.int64)


def _slow_steps(frame: pd.DataFrame) -> list[dict[str, Any]]:
    median = frame.groupby(frame["kind"].map(_kind))["time_ns"].transform("median")
    slow = frame.assign(row=np.arange(len(frame)), median_ns=median)[frame["time_ns"] > _SLOW * median]
    slow = slow.sort_values("time_ns", ascending=False, kind="stable").head(_NAMED)
    rows = records(slow[["row", "index", "kind", "time_ns", "median_ns", "gpu_time_ns"]])
    return [{**row, "kind": clipped(_kind(row["kind"]))} for row in rows]


def _bars(frame: pd.DataFrame, kinds: list[str]) -> dict[str, list[int]]:
    shown = limits.highest(frame["time_ns"].to_numpy("int64"), limits.BARS)
    index = {kind: at for at, kind in enumerate(kinds)}
    steps = frame.iloc[shown]
    return {
        "step": shown.tolist(),
        "time_ns": steps["time_ns"].tolist(),
        "gpu_time_ns": steps["gpu_time_ns"].tolist(),
        "kind": [min(index[_kind(kind)], limits.ROWS) for kind in steps["kind"]],
    }


def telling_reports(budgets: Budgets | None) -> Reports:
    """The reports of the slowest rank, the one in the middle and the fastest."""
    if budgets is None or len(budgets.reports) < 2:  # noqa: PLR2004 - one is no company
        return _ALONE
    times = times_of(budgets)
    names = [times.who[row]["report"] for row in np.lexsort((-times.apart, times.since < 0))] or [None]
    return {name: at for at, name in enumerate(dict.fromkeys((names[0], names[len(names) // 2], names[-1])))}


def chosen(frame: pd.DataFrame, number: int | None = None, telling: Reports = _ALONE) -> Choices:
    """The rows of the steps to draw, and why: of each kind (and report) the median, the slowest and the first.

    Steps with the index ``number`` come before these, and those of the ``telling`` reports before others.
    Median and slowest are by GPU time; of two steps in the middle, the faster is the median. The median of the most
    frequent kind comes first. Steps without work are ignored.
    """
    keys = [name for name in (REPORT, "kind") if name in frame.columns]
    places = [telling.get(name, len(telling)) for name in frame[REPORT]] if REPORT in keys else 0
    worked = frame.assign(row=np.arange(len(frame)), place=places)[frame["kernels"] > 0]
    worked = worked.sort_values("place", kind="stable")
    groups = [group for _, group in worked.groupby(keys, sort=False, dropna=False)]
    groups.sort(key=lambda group: (group["place"].iloc[0], -len(group)))
    steps = dict.fromkeys(worked[worked["index"] == number]["row"].tolist(), "chosen")
    for why in ("median", "slowest", "first"):
        for group in groups:
            steps.setdefault(_of_group(group, why), why)
    return [*steps.items()][: limits.STEPS]


def described(frame: pd.DataFrame, at: int, why: str) -> dict[str, Any]:
    """A step that is drawn: its row, and why it was chosen."""
    row = records(frame.iloc[[at]])[0]
    for name in ("report", "name"):
        row[name] = row.get(name) and clipped(row[name])
    return row | {"kind": clipped(_kind(row["kind"])), "row": at, "why": why}


def _of_group(group: pd.DataFrame, why: str) -> int:
    if why == "first":
        return int(group["row"].iloc[0])
    rows = group.sort_values("gpu_time_ns", kind="stable")["row"]
    return int(rows.iloc[(len(rows) - 1) // 2 if why == "median" else -1])


def _kind(kind: str | None) -> str:
    return kind or "step"

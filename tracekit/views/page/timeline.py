"""Time on the page: what steps cost, and the work of some steps and of whole recordings, on streams side by side.

In a step, also what host threads did, and the same step of all ranks on one clock, where proven collectives are tied.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property
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
from tracekit.arrays.intervals import lanes, nesting_order, parents
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.dataset.opening import REPORT, Dataset
from tracekit.ranks.meetings import Clock, ranks_of
from tracekit.steptime.budget import Budgets, windows
from tracekit.steptime.own_times import times_of
from tracekit.steptime.windows import host_spans, thread_keys
from tracekit.views.formatting import records
from tracekit.views.page import limits
from tracekit.views.page.limits import clip, clipped
from tracekit.views.page.nodes import Nodes

_WHERE = ["pid", "device", "context", "stream"]
_NUMBERS = ["start_ns", "end_ns", "dur_ns", "step_id", "kernel_id"]
_COLUMNS = ["name", "kind", "module_id", "tid", *_NUMBERS, *_WHERE]
_OPERATOR = "cpu_op"
_NO_TIME = np.iinfo(np.int64).min
#: How deep calls are drawn inside each other.
_DEEPEST = 15
#: Steps that take this much longer than the median of their kind are slow; so many are named.
_SLOW, _NAMED = 1.2, 5
#: The place of reports that are drawn first, by name; None is that of a dataset of one.
Reports = dict[str | None, int]
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

    def of(self, rows: Rows) -> _Work:
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
    kinds = labels(table, "kind")
    tid = np.where(np.isin(kinds.code, kinds.of(_OPERATOR)), integers(table, "tid"), -1)
    parts = [*(integers(table, name) for name in _WHERE), tid]
    stream, first = grouped(parts)
    report = clipped(dataset.reports[0]) if dataset.reports else None
    streams: list[dict[str, Any]] = [
        {"report": report} | {key: None if id_ < 0 else id_ for key, id_ in zip([*_WHERE, "tid"], ids, strict=True)}
        for ids in zip(*(part[first].tolist() for part in parts), strict=True)
    ]
    start, end, time, step, kernel = (integers(table, name) for name in _NUMBERS)
    work = _Work(start, end, time, stream, modules.rows(table), names.codes(names_of(table)))
    return _Report(work, streams, step, kernel, HostCalls(dataset, modules, names))


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
    return {
        "start_ns": begin,
        "span_ns": int(pieces.end.max()) - begin,
        "work": int(whole.start.size),
        "streams": [
            {**described[stream], "lanes": lane_count}
            for stream, lane_count in zip(streams[shown].tolist(), lane_counts.tolist(), strict=True)
        ],
        "left_out": int(streams.size - shown.size),
        "pieces": {name: column.tolist() for name, column in columns.items()},
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


class Host(NamedTuple):
    """Calls on threads, in columns; ``name`` is -1 of calls of modules, ``thread`` is an index into ``threads``.

    ``depth`` is how many calls of the thread are around one, ``launch`` is, for each kernel of the step, the call that
    launched it, or -1; ``calls`` counts them with those that are not drawn.
    """

    start: Ints
    end: Ints
    thread: Rows
    depth: Ints
    module: Rows
    name: Rows
    threads: list[tuple[int, int]]
    launch: Rows
    calls: int


class _Spans(NamedTuple):
    thread: Ints
    start: Ints
    end: Ints
    module: Rows
    name: Rows

    def of(self, rows: Rows | Flags) -> _Spans:
        return _Spans(*(column[rows] for column in self))

    def joined(self, more: _Spans) -> _Spans:
        return _Spans(*(np.concatenate(columns) for columns in zip(self, more, strict=True)))


class HostCalls:
    """The calls of one report, which are read if :meth:`of_step` is asked for."""

    def __init__(self, dataset: Dataset, modules: Hierarchy, names: Words) -> None:
        self._dataset, self._modules, self._names = dataset, modules, names

    @cached_property
    def _tables(self) -> tuple[pa.Table, _Spans, Ints, _Spans]:
        """Launches of work; calls of modules, and their steps; waits and other calls of CUDA's API."""
        dataset, whole = self._dataset, self._dataset.whole
        work = dataset.table("kernels", ["launch_name", "launch_start_ns", "launch_end_ns", "pid", "tid"])
        calls = dataset.table("calls", ["start_ns", "end_ns", "pid", "tid", "module_id", "step_id"])
        others = [whole.table(name, ["name", "pid", "tid", "start_ns", "dur_ns"]) for name in ("waits", "api_calls")]
        waits, of_api = (
            _Spans(*host_spans(table), _none(table), self._names.codes(labels(table, "name"))) for table in others
        )
        called = _Spans(*host_spans(calls), self._modules.rows(calls), _none(calls))
        return work, called, integers(calls, "step_id"), waits.joined(of_api)

    def of_step(self, step_id: int, rows: Rows, module: Rows) -> Host:
        """What was called in a step, and the launches of its work: these rows of ``kernels``, with their modules."""
        table, calls, step, others = self._tables
        work = table.take(pa.array(rows))
        start, end = (integers(work, f"launch_{name}_ns", _NO_TIME) for name in ("start", "end"))
        launched = np.flatnonzero(start != _NO_TIME)
        called = calls.of(step == step_id)
        names = self._names.codes(labels(work, "launch_name"))
        launches = _Spans(thread_keys(work), start, end, module, names).of(launched)
        whole = called.joined(launches)
        if not whole.start.size:
            return _shown_calls(whole, np.full(work.num_rows, -1), np.zeros(0, np.int64))
        inside = (others.start >= whole.start.min()) & (others.start < whole.end.max())
        inside &= np.isin(others.thread, whole.thread)
        whole = whole.joined(others.of(inside))
        # A call can start several kernels, and one that blocks is among the waits, too; calls of modules stay apart.
        call = np.arange(whole.start.size)
        call[called.start.size :] = -1
        key, first = grouped((whole.thread, whole.start, whole.name, call))
        of_work = np.full(work.num_rows, -1)
        of_work[launched] = key[called.start.size : called.start.size + launched.size]
        return _shown_calls(whole.of(first), of_work, whole.end[first] - whole.start[first])


def _none(table: pa.Table) -> Rows:
    return np.full(table.num_rows, -1)


def _shown_calls(spans: _Spans, launch: Rows, length: Ints) -> Host:
    """The longest calls, with those that launched a kernel, as many as there is room for."""
    launches = np.isin(np.arange(length.size), launch)
    shown = np.sort(np.lexsort((-length, ~launches))[: limits.HOST_CALLS])
    place = np.full(length.size + 1, -1)
    place[shown] = np.arange(shown.size)
    kept = spans.of(shown)
    thread, first = grouped((kept.thread,))
    keys = kept.thread[first]
    threads = [*zip((keys >> 32).tolist(), keys.astype(np.int32).tolist(), strict=True)]
    # Calls for which there is no room count, too.
    depth = np.zeros(length.size, np.int64)
    for own in np.unique(spans.thread).tolist():
        rows = np.flatnonzero(spans.thread == own)
        rows = rows[nesting_order(spans.start[rows], spans.end[rows])]
        depth[rows] = np.minimum(parents(spans.start[rows], spans.end[rows])[1], _DEEPEST)
    columns = (kept.start, kept.end, thread, depth[shown], kept.module, kept.name)
    return Host(*columns, threads, place[launch], length.size)


def with_wall_clock(frame: pd.DataFrame, budgets: Budgets | None) -> pd.DataFrame:
    """The rows of the analysis ``steps`` with ``time_ns``.

    That is the wall clock: the longest window of the step on a device; if it has none, the host's time.
    """
    known: Any = {} if budgets is None else pd.DataFrame(windows(budgets)).groupby("step_id")["window_ns"].max()
    return frame.assign(time_ns=frame["step_id"].map(known).fillna(frame["host_ns"]).astype("int64"))


def steps(frame: pd.DataFrame, dataset: Dataset) -> dict[str, Any]:
    """What steps cost, as the analysis ``steps`` answers it.

    Returns:
        ``phases``: rows by kind and batch size; ``bars``: the steps in order, with ``time_ns``, ``gpu_time_ns``,
        ``kind`` (index into ``kinds``) and ``step`` (its row). If there are more steps than room, neighbours share a
        bar, which is that of the slowest. ``slow``: the steps that take far longer than the median of their kind, the
        slowest first.
    """
    frame = frame.assign(kind=frame["kind"].map(_kind), row=np.arange(len(frame)))
    time, median = frame["time_ns"], frame.groupby("kind")["time_ns"].transform("median")
    slow = frame.assign(median_ns=median)[time > _SLOW * median]
    slow = slow.sort_values("time_ns", ascending=False, kind="stable").head(_NAMED)
    slow_steps = clip(records(slow[["row", "index", "kind", "time_ns", "median_ns", "gpu_time_ns"]]), "kind")
    rows = clip(records(phases.frame(dataset)), "kind")
    place = {kind: min(at, limits.ROWS) for at, kind in enumerate(frame["kind"].unique())}
    bars = frame.iloc[limits.highest(time.to_numpy(), limits.BARS)]
    return {
        "phases": rows[: limits.ROWS],
        "phases_left_out": max(len(rows) - limits.ROWS, 0),
        "count": len(frame),
        "kinds": [clipped(kind) for kind in [*place][: limits.ROWS]],
        "bars": {
            "step": bars["row"].tolist(),
            "time_ns": bars["time_ns"].tolist(),
            "gpu_time_ns": bars["gpu_time_ns"].tolist(),
            "kind": bars["kind"].map(place).tolist(),
        },
        "slow": slow_steps,
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
    Median and slowest are by wall clock; of two steps in the middle, the faster is the median. The median of the most
    frequent kind comes first. Steps without work are ignored.
    """
    keys = [name for name in (REPORT, "kind") if name in frame.columns]
    places = [telling.get(name, len(telling)) for name in frame[REPORT]] if REPORT in keys else 0
    worked = frame.assign(row=np.arange(len(frame)), place=places)[frame["kernels"] > 0]
    worked = worked.sort_values("place", kind="stable")
    groups = [group for _, group in worked.groupby(keys, sort=False, dropna=False)]
    groups.sort(key=lambda group: (group["place"].iloc[0], -len(group)))
    steps = dict.fromkeys(worked[worked["index"] == number]["row"].tolist(), "chosen")
    by_time = [group.sort_values("time_ns", kind="stable")["row"].tolist() for group in groups]
    drawn = {
        "median": [rows[(len(rows) - 1) // 2] for rows in by_time],
        "slowest": [rows[-1] for rows in by_time],
        "first": [int(group["row"].iloc[0]) for group in groups],
    }
    for why, rows in drawn.items():
        for row in rows:
            steps.setdefault(row, why)
    return [*steps.items()][: limits.STEPS]


def described(frame: pd.DataFrame, at: int, why: str) -> dict[str, Any]:
    """A step that is drawn: its row, and why it was chosen."""
    row = records(frame.iloc[[at]])[0]
    for name in ("report", "name"):
        row[name] = row.get(name) and clipped(row[name])
    return row | {"kind": clipped(_kind(row["kind"])), "row": at, "why": why}


def _kind(kind: str | None) -> str:
    return kind or "step"

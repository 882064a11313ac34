"""The timeline on the page: the work of some steps, and of whole recordings, on streams side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tracekit.analyses.devices import kernels as device_work
from tracekit.analyses.each_report import Words
from tracekit.analyses.subtrees import Pairs, united
from tracekit.arrays.columns import integers
from tracekit.arrays.groups import counts, grouped, sums
from tracekit.arrays.labels import labels
from tracekit.arrays.lanes import lanes
from tracekit.dataset.opening import REPORT
from tracekit.views.page import limits
from tracekit.views.page.limits import clipped
from tracekit.views.page.steps import chosen, described

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from tracekit.analyses.subtrees import Hierarchy
    from tracekit.arrays.types import Ints, Rows
    from tracekit.dataset.opening import Dataset
    from tracekit.views.page.nodes import Nodes

_WHERE = ["pid", "device", "context", "stream"]
_COLUMNS = ["name", "kind", "module_id", "step_id", "start_ns", "end_ns", "dur_ns", "tid", *_WHERE]
_OPERATOR = "cpu_op"


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


class _Texts:
    """Names and kinds of work in all reports so far; both are numbered, kinds from -2 downwards."""

    def __init__(self) -> None:
        self._names, self._kinds = Words(), Words()

    def codes(self, table: pa.Table) -> Rows:
        """For each piece of work its name, or its kind if it has none."""
        name, kind = self._names.codes(labels(table, "name")), self._kinds.codes(labels(table, "kind"))
        return np.where(name >= 0, name, -2 - kind)

    def listed(self, drawn: list[dict[str, list[int]]]) -> list[str]:
        """The most frequent texts of pieces; ``name`` in the pieces becomes the index among these, or -1."""
        used = np.array([code for pieces in drawn for code in pieces["name"]], np.int64)
        texts = [*self._names.all(), *self._kinds.all()]
        codes, times = np.unique(self._places(used), return_counts=True)
        listed = codes[np.argsort(-times, kind="stable")][: limits.NAMES]
        index = np.full(len(texts), -1, dtype=np.int64)
        index[listed] = np.arange(listed.size)
        for pieces in drawn:
            pieces["name"] = index[self._places(np.array(pieces["name"], np.int64))].tolist()
        return [clipped(texts[code]) for code in listed.tolist()]

    def _places(self, codes: Rows) -> Rows:
        """The places of texts among all, kinds after names."""
        return np.where(codes >= 0, codes, len(self._names) - 2 - codes)


class _Source(NamedTuple):
    """All work of a report, and the step of each piece. ``streams`` describes each stream."""

    work: _Work
    step: Ints
    streams: list[dict[str, Any]]


def timelines(dataset: Dataset, modules: Hierarchy, nodes: Nodes, steps: pd.DataFrame) -> dict[str, Any]:
    """The work of chosen steps, and of each whole recording.

    Returns:
        ``names`` of work, and ``drawn``, a list of drawings: ``step`` (null for a whole recording), ``report``,
        ``start_ns``, ``span_ns``, ``work`` (how many pieces of work ran), ``streams`` (what they are, and how many
        ``lanes`` each needs), ``left_out`` (how many streams are not drawn), and ``pieces`` in columns: ``start_ns``
        (from the start of the drawing), ``length_ns``, ``stream``, ``lane``, ``module``, ``line``, ``name`` (-1 if not
        listed), ``count`` (pieces of work that are drawn as one) and ``ns`` (their time). Where there are too many
        pieces, neighbours are drawn as one, with the module and the name that took the most of their time.
    """
    choices, texts = chosen(steps), _Texts()
    of_steps: list[dict[str, Any]] = [{}] * len(choices)
    recordings: list[dict[str, Any]] = []
    drawn_in = {None if REPORT not in steps else steps[REPORT].iloc[choice.row] for choice in choices}
    for at, part in enumerate(dataset.by_report()):
        report = part.reports[0] if part.reports else None
        if at >= limits.STEPS and report not in drawn_in:
            continue
        source = _source(part, modules, texts)
        for place, choice in enumerate(choices):
            if report is None or steps[REPORT].iloc[choice.row] == report:
                step = described(steps, choice)
                rows = np.flatnonzero(source.step == step["step_id"])
                of_steps[place] = {"step": step, "report": step["report"], **_drawn(source, rows, nodes)}
        if at < limits.STEPS and source.step.size:
            drawing = _drawn(source, np.arange(source.step.size), nodes)
            recordings.append({"step": None, "report": report and clipped(report), **drawing})
    drawn = of_steps + recordings
    return {"names": texts.listed([drawing["pieces"] for drawing in drawn]), "drawn": drawn}


def _source(dataset: Dataset, modules: Hierarchy, texts: _Texts) -> _Source:
    table = device_work(dataset, _COLUMNS)
    stream, streams = _streams(dataset, table)
    start, end, time = (integers(table, name) for name in ("start_ns", "end_ns", "dur_ns"))
    work = _Work(start, end, time, stream, modules.rows(table), texts.codes(table))
    return _Source(work, integers(table, "step_id"), streams)


def _streams(dataset: Dataset, table: pa.Table) -> tuple[Rows, list[dict[str, Any]]]:
    """For each row the index of its stream, or on the host of its thread; and what each stream is."""
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


def _drawn(source: _Source, rows: Rows, nodes: Nodes) -> dict[str, Any]:
    """One drawing: the work in some rows."""
    whole = source.work.of(rows)
    streams, local = np.unique(whole.stream, return_inverse=True)
    shown, place = _most_used(local, whole.ns, streams.size)
    work = whole._replace(stream=place[local]).of(np.flatnonzero(place[local] >= 0))
    begin = int(work.start.min())
    pieces, count = _merged(work, limits.PIECES)
    lane = lanes(pieces.stream, pieces.start, pieces.end)
    lane_counts = np.zeros(shown.size, dtype=np.int64)
    np.maximum.at(lane_counts, pieces.stream, lane + 1)
    return {
        "start_ns": begin,
        "span_ns": int(pieces.end.max()) - begin,
        "work": int(rows.size),
        "streams": [
            {**source.streams[stream], "lanes": lane_count}
            for stream, lane_count in zip(streams[shown].tolist(), lane_counts.tolist(), strict=True)
        ],
        "left_out": int(streams.size - shown.size),
        "pieces": _columns(pieces, begin, lane, count, nodes),
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
        "module": _placed(pieces.module, nodes.module),
        "line": _placed(pieces.module, nodes.line),
    }
    return {name: column.tolist() for name, column in columns.items()}


def _most_used(stream: Rows, ns: Ints, count: int) -> tuple[Rows, Rows]:
    """The streams with the most time, in order, and for each stream its index among them, or -1."""
    time = sums(stream, ns, count)
    shown = np.sort(np.argsort(-time, kind="stable")[: limits.STREAMS])
    place = np.full(count, -1, dtype=np.int64)
    place[shown] = np.arange(shown.size)
    return shown, place


def _placed(module: Rows, place: Rows) -> Rows:
    """The index on the page of each piece's module, -1 for none."""
    node = np.full(module.size, -1, dtype=np.int64)
    node[module >= 0] = place[module[module >= 0]]
    return node


def _merged(work: _Work, most: int) -> tuple[_Work, Ints]:
    """At most about ``most`` pieces, and how many each stands for; those that begin close together become one."""
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
    """For each group, the value that took the most time."""
    pairs = united(Pairs(group, value, ns))
    order = np.lexsort((-pairs.value, pairs.node))
    first = np.searchsorted(pairs.node[order], np.arange(int(group.max()) + 1))
    main: Rows = pairs.group[order][first]
    return main

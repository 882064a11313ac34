"""The timeline on the page: the work of some steps, and of whole recordings, on streams side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tracekit.analyses.devices import kernels as device_work, report_codes, steps_of
from tracekit.analyses.subtrees import Pairs, united
from tracekit.arrays.columns import integers
from tracekit.arrays.groups import counts, grouped, sums
from tracekit.arrays.labels import labels
from tracekit.arrays.lanes import lanes
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


class _Source(NamedTuple):
    """All work of a dataset. ``streams`` describes each stream; ``work.name`` is an index into ``names``."""

    work: _Work
    step: Rows
    report: Rows
    streams: list[dict[str, Any]]
    names: list[str]


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
    source = _source(dataset, modules)
    drawn = []
    for choice in chosen(steps):
        step = described(steps, choice)
        rows = np.flatnonzero(source.step == choice.row)
        drawn.append({"step": step, "report": step["report"], **_drawn(source, rows, nodes)})
    for at, report in enumerate(_reports(dataset)[: limits.STEPS]):
        rows = np.flatnonzero(source.report == at)
        if rows.size:
            drawn.append({"step": None, "report": report, **_drawn(source, rows, nodes)})
    return {"names": _listed(source.names, [drawing["pieces"] for drawing in drawn]), "drawn": drawn}


def _reports(dataset: Dataset) -> list[str | None]:
    """Names of the reports; None for the only one."""
    return [clipped(name) for name in dataset.reports] or [None]


def _source(dataset: Dataset, modules: Hierarchy) -> _Source:
    table = device_work(dataset, _COLUMNS)
    names, kinds = labels(table, "name"), labels(table, "kind")
    code = np.where(names.code >= 0, names.code, len(names.words) + kinds.code)
    report = report_codes(dataset, table)
    stream, streams = _streams(dataset, table, report)
    start, end, time = (integers(table, name) for name in ("start_ns", "end_ns", "dur_ns"))
    work = _Work(start, end, time, stream, modules.rows(table), code)
    return _Source(work, steps_of(dataset, table), report, streams, [*names.words, *kinds.words])


def _streams(dataset: Dataset, table: pa.Table, report: Rows) -> tuple[Rows, list[dict[str, Any]]]:
    """For each row the index of its stream, or on the host of its thread; and what each stream is."""
    kinds = labels(table, "kind")
    on_host = np.isin(kinds.code, kinds.of(_OPERATOR))
    tid = np.where(on_host, integers(table, "tid"), -1)
    parts = [report, *(integers(table, name) for name in _WHERE), tid]
    code, first = grouped(parts)
    reports = _reports(dataset)
    streams = [
        {"report": reports[at]}
        | {key: None if id_ < 0 else id_ for key, id_ in zip([*_WHERE, "tid"], ids, strict=True)}
        for at, *ids in zip(*(part[first].tolist() for part in parts), strict=True)
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


def _listed(names: list[str], drawn: list[dict[str, list[int]]]) -> list[str]:
    """The most frequent names of pieces; ``name`` in the pieces becomes the index among these, or -1."""
    used = [code for pieces in drawn for code in pieces["name"]]
    codes, times = np.unique(np.array(used, np.int64), return_counts=True)
    listed = codes[np.argsort(-times, kind="stable")][: limits.NAMES]
    index = np.full(len(names), -1, dtype=np.int64)
    index[listed] = np.arange(listed.size)
    for pieces in drawn:
        pieces["name"] = index[np.array(pieces["name"], np.int64)].tolist()
    return [clipped(names[code]) for code in listed.tolist()]

"""Work on the page as it ran: of some steps and of whole recordings, on streams side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tracekit.analyses.devices import kernels as device_work, report_codes, steps_of
from tracekit.analyses.subtrees import Pairs, integers, summed, united
from tracekit.arrays.intervals import lanes
from tracekit.arrays.labels import labels
from tracekit.views.page import limits
from tracekit.views.page.limits import clipped
from tracekit.views.page.steps import chosen, said

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
    """Pieces of work, in columns; ``stream`` is their place among the streams."""

    start: Ints
    end: Ints
    ns: Ints
    stream: Rows
    module: Rows
    name: Rows

    def of(self, rows: Rows) -> _Work:
        return _Work(*(column[rows] for column in self))


class _Source(NamedTuple):
    """All work of a dataset; ``streams`` says what each of them is, ``names`` what work is called."""

    work: _Work
    step: Rows
    report: Rows
    streams: list[dict[str, Any]]
    names: list[str]


def timelines(dataset: Dataset, modules: Hierarchy, nodes: Nodes, steps: pd.DataFrame) -> dict[str, Any]:
    """The work of chosen steps, and of each whole recording.

    Returns:
        ``names`` of work, and ``drawn``: for each what it is (``step``; null for a whole recording), ``report``,
        ``start_ns``, ``span_ns``, ``work`` (pieces in all), ``streams`` (what they are and how many ``lanes`` they
        need), ``left_out`` streams, and the columns of ``pieces``: ``start_ns`` (after the first), ``length_ns``,
        ``stream``, ``lane``, ``module``, ``line``, ``name`` (-1 for one that is not listed), ``count`` (pieces of work
        that it stands for) and ``ns`` (their time). Neighbours share one where there are too many, which has the module
        and the name of the most time.
    """
    source = _source(dataset, modules)
    drawn = []
    for one in chosen(steps):
        about = said(steps, one)
        rows = np.flatnonzero(source.step == one.row)
        drawn.append({"step": about, "report": about["report"], **_drawn(source, rows, nodes)})
    reports: list[str | None] = [*dataset.reports] or [None]
    for at, report in enumerate(reports[: limits.STEPS]):
        rows = np.flatnonzero(source.report == at)
        named = None if report is None else clipped(report)
        if rows.size:
            drawn.append({"step": None, "report": named, **_drawn(source, rows, nodes)})
    return {"names": _named(source.names, [its["pieces"] for its in drawn]), "drawn": drawn}


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
    """The stream of each row, a thread where there is no device, and what each is."""
    kinds = labels(table, "kind")
    on_host = np.isin(kinds.code, kinds.of(_OPERATOR))
    tid = np.where(on_host, integers(table, "tid", missing=-1), -1)
    parts = [report, *(integers(table, name, missing=-1) for name in _WHERE), tid]
    code = np.zeros(table.num_rows, dtype=np.int64)
    for part in parts:
        _, dense = np.unique(part, return_inverse=True)
        _, code = np.unique(code * (int(dense.max(initial=0)) + 1) + dense, return_inverse=True)
    _, first = np.unique(code, return_index=True)
    keys = ["report", *_WHERE, "tid"]
    values = [part[first].tolist() for part in parts]
    streams = [
        {key: None if key != "report" and one < 0 else one for key, one in zip(keys, row, strict=True)}
        for row in zip(*values, strict=True)
    ]
    named: list[str | None] = [clipped(name) for name in dataset.reports] or [None]
    return code, [{**one, "report": named[one["report"] or 0]} for one in streams]


def _drawn(source: _Source, rows: Rows, nodes: Nodes) -> dict[str, Any]:
    """Some of the work, as it is drawn."""
    whole = source.work.of(rows)
    streams, local = np.unique(whole.stream, return_inverse=True)
    shown, place = _most_used(local, whole.ns, streams.size)
    work = whole._replace(stream=place[local]).of(np.flatnonzero(place[local] >= 0))
    begin = int(work.start.min())
    pieces, count = _merged(work, limits.PIECES)
    lane = lanes(pieces.stream, pieces.start, pieces.end)
    deep = np.zeros(shown.size, dtype=np.int64)
    np.maximum.at(deep, pieces.stream, lane + 1)
    said = [source.streams[one] for one in streams[shown].tolist()]
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
    return {
        "start_ns": begin,
        "span_ns": int(pieces.end.max()) - begin,
        "work": int(rows.size),
        "streams": [{**one, "lanes": many} for one, many in zip(said, deep.tolist(), strict=True)],
        "left_out": int(streams.size - shown.size),
        "pieces": {name: column.tolist() for name, column in columns.items()},
    }


def _most_used(stream: Rows, ns: Ints, count: int) -> tuple[Rows, Rows]:
    """The streams of the most time that there is room for, in order, and the place of each among them, or -1."""
    time = summed(stream, ns, count)
    shown = np.sort(np.argsort(-time, kind="stable")[: limits.STREAMS])
    place = np.full(count, -1, dtype=np.int64)
    place[shown] = np.arange(shown.size)
    return shown, place


def _placed(module: Rows, place: Rows) -> Rows:
    """Where modules are found on the page; -1 for none."""
    found = np.full(module.size, -1, dtype=np.int64)
    found[module >= 0] = place[module[module >= 0]]
    return found


def _merged(work: _Work, most: int) -> tuple[_Work, Ints]:
    """At most about so many pieces, and how many each stands for: those that begin close together are one."""
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
    return merged, summed(group, None, size)


def _main(group: Rows, value: Rows, ns: Ints) -> Rows:
    """For each group the value that took the most time."""
    sums = united(Pairs(group, value + 1, ns), int(value.max()) + 2)
    order = np.lexsort((-sums.value, sums.node))
    first = np.searchsorted(sums.node[order], np.arange(int(group.max()) + 1))
    found: Rows = sums.group[order][first] - 1
    return found


def _named(words: list[str], drawn: list[dict[str, list[int]]]) -> list[str]:
    """The names of pieces that are drawn, the most frequent first; the pieces get their places for their codes."""
    used = [code for pieces in drawn for code in pieces["name"]]
    codes, often = np.unique(np.array(used, np.int64), return_counts=True)
    listed = codes[np.argsort(-often, kind="stable")][: limits.NAMES]
    place = np.full(len(words), -1, dtype=np.int64)
    place[listed] = np.arange(listed.size)
    for pieces in drawn:
        pieces["name"] = place[np.array(pieces["name"], np.int64)].tolist()
    return [clipped(words[code]) for code in listed.tolist()]

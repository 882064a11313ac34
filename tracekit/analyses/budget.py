"""Where did the wall clock of each step go: what did each device do, and what did it wait for while it was idle?

Every instant of a window (see :mod:`tracekit.analyses.windows`) is of one kind, so that the kinds add up to the window.

While the device works: ``compute`` if any kernel runs that is no collective, else ``communication`` if a collective
does, but ``communication_wait`` while all of these wait for their last rank, where that is proven; else ``copy``.

While it is idle, what counts is the next work to start there. Until the call that launched it returned, what its thread
did at that instant: ``host_blocked`` inside a call that blocks, else ``launch`` in any other CUDA call, else
``compilation`` or ``data_loading`` in such a phase, else ``host_code``. Then ``graph`` between nodes of one replay,
``dependency`` if its stream was made to wait for other work that ended later than all else, else ``latency``; and
``unknown`` where its launch is not known. After the last work of the last window, what counts is what the step's own
thread does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from tracekit.analyses import idle_time
from tracekit.analyses.alignment.meetings import ranks_of
from tracekit.analyses.base import Columns
from tracekit.analyses.communication import collectives_in
from tracekit.analyses.idle_time import (
    KINDS as KINDS,
    NEVER,
    PORTION,
    Pieces,
    Work,
    cut,
    distinct_times,
    is_inside,
    pieces,
)
from tracekit.analyses.subtrees import Hierarchy, hierarchy, patterns
from tracekit.analyses.weighted_kernels import axis_of
from tracekit.analyses.windows import Windows, host_steps, thread_keys, windows_of
from tracekit.arrays.codes import labels, lookup, positions
from tracekit.arrays.columns import integers
from tracekit.arrays.groups import as_one, grouped, maxima, sums, sums_by
from tracekit.arrays.intervals import covered, innermost, parents
from tracekit.arrays.types import Ints, Rows
from tracekit.dataset.opening import Dataset
from tracekit.errors import UsageError

NAME = "budget"
ANSWER = ("step_id", "kind", "ns", "share", "path")
_IDS = ("pid", "device", "step_id")
_WORK = ("kernel_id", "kind", "module_id", "pid", "tid", "start_ns", "end_ns", "step_id")
_PLACE = ("device", "context", "stream", "collective")
_USED = ("module_id", "tid", "step_id", "device", "collective", "launch_start_ns", "launch_end_ns")
_LAUNCHED = ("launch_name", "launch_start_ns", "launch_end_ns", "graph_id", "graph_node_id")


def frame(dataset: Dataset) -> pd.DataFrame:
    """The windows of every process and device in their order, each divided by kind and module.

    Returns:
        A row per window, kind and module: ``report`` (only in a dataset of several), ``pid``, ``device``, ``step_id``
        (null where no work of the device has a step, so that all of it is one window), ``kind`` (see above), ``path``
        (of a device that works, the module of the work that started last among those of the kind; else the innermost
        call at that instant on the thread of which it counts what it did; null outside modules), ``ns``, ``share`` (of
        the window) and ``window_ns``, to which the rows of a window add up.

    Raises:
        UsageError: If the dataset is a subtree: a device is idle for whatever comes next, of any module.
    """
    answer = _answer(dataset)
    ids = {name: pd.arrays.IntegerArray(answer[name], answer[name] < 0) for name in _IDS}
    return pd.DataFrame(answer | ids, copy=False)


def columns(dataset: Dataset) -> Columns:
    """The columns of :func:`frame`, made without pandas."""
    return _with_nulls(_answer(dataset))


def _answer(dataset: Dataset) -> Columns:
    """The columns of :func:`frame`, ids with -1 for none, with one report in memory at a time."""
    parts = [_columns(dataset, *one) for one in _each(dataset)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _columns(dataset: Dataset, part: Dataset, found: _Found, modules: Hierarchy) -> Columns:
    window, kind, module, ns = found.by_module()
    order = np.lexsort(as_one((window, -ns)))
    window, kind, module, ns = (column[order] for column in (window, kind, module, ns))
    window_ns = (found.windows.end - found.windows.start)[window]
    return _of_windows(dataset, part, found, window) | {
        "kind": np.array(KINDS, object)[kind],
        "path": np.array([*modules.path, None], object)[module],
        "ns": ns,
        "share": ns / window_ns,
        "window_ns": window_ns,
    }


def _of_windows(dataset: Dataset, part: Dataset, found: _Found, rows: Rows) -> Columns:
    answer = {"report": np.full(rows.size, part.reports[0], object)} if dataset.reports else {}
    ids = (*(values[found.windows.line] for values in found.lines), found.windows.step)
    return answer | {name: values[rows] for name, values in zip(_IDS, ids, strict=True)}


def _with_nulls(answer: Columns) -> Columns:
    ids = {name: answer[name].astype(object) for name in _IDS}
    for name, values in ids.items():
        values[answer[name] < 0] = None
    return answer | ids


#: How many modules :func:`overview` names for each kind.
_LEADING, _LEAST_SHARE = 3, 0.01


def overview(dataset: Dataset) -> Columns:
    """The budget by kind, for people: the kinds add up to the median window, of two in the middle the shorter one.

    Returns:
        A row per kind that occurs, in the order of ``KINDS``: ``kind``, ``median_ns`` (in the median window),
        ``share`` (of that), ``total_share`` (of all windows together) and ``leading``: the modules, or layers that are
        alike, with most of its time in all windows, each with its share of that.
    """
    return with_windows(dataset)[0]


def with_windows(dataset: Dataset) -> tuple[Columns, Columns]:
    """The :func:`overview`, and the windows of every process and device in their order, a row each.

    Windows have ``report`` to ``step_id`` as in :func:`frame` and their time by kind in columns named as the kinds,
    ``compute_ns`` and so on, which add up to ``window_ns``.
    """
    parts, total, names = [], Counter[tuple[int, str]](), [""]
    for part, found, modules in _each(dataset):
        names = ["", *patterns(modules)] if len(names) == 1 else names
        parts.append(_by_window(dataset, part, found))
        for kind, times in enumerate(found.total(len(names)).tolist()):
            for name, time in zip(names, times, strict=True):
                total[kind, name] += time
    windows = _with_nulls({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})
    return _overview(np.stack([windows[f"{kind}_ns"] for kind in KINDS], axis=1), total), windows


def _by_window(dataset: Dataset, part: Dataset, found: _Found) -> Columns:
    by_kind = found.by_kind()
    return {
        **_of_windows(dataset, part, found, np.arange(len(by_kind))),
        "window_ns": found.windows.end - found.windows.start,
        **{f"{kind}_ns": by_kind[:, place] for place, kind in enumerate(KINDS)},
    }


def _overview(windows: Ints, total: Counter[tuple[int, str]]) -> Columns:
    windows = windows[windows.sum(axis=1) > 0]
    order = np.argsort(windows.sum(axis=1), kind="stable")
    middle = windows[order[(order.size - 1) // 2]] if order.size else np.zeros(len(KINDS), np.int64)
    every = windows.sum(axis=0)
    used = np.flatnonzero(every)
    leading = np.empty(used.size, object)
    leading[:] = [_leading(total, kind) for kind in used.tolist()]
    return {
        "kind": np.array(KINDS, object)[used],
        "median_ns": middle[used],
        "share": middle[used] / max(1, middle.sum()),
        "total_share": every[used] / max(1, every.sum()),
        "leading": leading,
    }


def _leading(total: Counter[tuple[int, str]], kind: int) -> list[tuple[str, float]]:
    own = Counter({name: time for (of, name), time in total.items() if of == kind and time})
    first = [(name or "(outside)", time / own.total()) for name, time in own.most_common(_LEADING)]
    return [(name, share) for name, share in first if share >= _LEAST_SHARE]


def by_window(dataset: Dataset) -> tuple[Rows, Ints]:
    """A number for the process and device of every window, and its time by kind, in the order of ``KINDS``."""
    lines, times = [], []
    for at, part in enumerate(_reports(dataset)):
        found = _of_one(part, None)
        lines.append(found.windows.line + (at << 32))
        times.append(found.by_kind())
    return np.concatenate(lines), np.concatenate(times)


def step_lengths(dataset: Dataset) -> Iterator[tuple[Dataset, Ints, Ints]]:
    """Of every report the step of each window, -1 where none is known, and how long it lasts in ns."""
    for part in _reports(dataset):
        windows = _work_of(part, None)[1]
        yield part, windows.step, windows.end - windows.start


def waits_of_streams(dataset: Dataset) -> tuple[int, int]:
    """How many waits of streams there are, and of how many it is not known what they wait for."""
    number = unknown = 0
    for part in dataset.by_report():
        calls = part.table("api_calls", ["name", "kernel_id"])
        waits = idle_time.waits_of_streams(calls)
        number += int(waits.sum())
        unknown += int((waits & (integers(calls, "kernel_id") < 0)).sum())
    return number, unknown


class _Found(NamedTuple):
    """The budget of a report; ``lines`` are the processes and devices of ``windows.line``."""

    lines: tuple[Ints, Ints]
    windows: Windows
    pieces: Pieces

    def by_kind(self) -> Ints:
        """The time of each window by kind."""
        cell = self.pieces.window.astype(np.int64) * len(KINDS) + self.pieces.kind
        return sums(cell, self.pieces.ns, self.windows.start.size * len(KINDS)).reshape(-1, len(KINDS))

    def total(self, modules: int) -> Ints:
        """The time of each kind by module, the first one for none."""
        cell = self.pieces.kind.astype(np.int64) * modules + self.pieces.module + 1
        return sums(cell, self.pieces.ns, len(KINDS) * modules).reshape(len(KINDS), modules)

    def by_module(self) -> tuple[Rows, Ints, Rows, Ints]:
        """Each window, kind and module that occur, in this order, and their time."""
        (window, kind, module), (ns,) = sums_by(self.pieces[:3], self.pieces[3:])
        return window, kind, module, ns


def _reports(dataset: Dataset) -> Iterator[Dataset]:
    if dataset.root is not None:
        raise UsageError(f"a {NAME} is of whole devices; ask the whole dataset, without --path")
    return dataset.by_report()


def _each(dataset: Dataset) -> Iterator[tuple[Dataset, _Found, Hierarchy]]:
    reports, modules = _reports(dataset), hierarchy(dataset)
    for part in reports:
        yield part, _of_one(part, modules), modules


def _of_one(dataset: Dataset, modules: Hierarchy | None) -> _Found:
    """The budget of a report, by module if these are given."""
    work, windows = _work_of(dataset, modules)
    edges = distinct_times([np.array([NEVER]), windows.start, windows.end])
    around = np.searchsorted(windows.start, edges, side="right") - 1
    around[(around >= 0) & (edges >= np.append(windows.end, 0)[around])] = -1

    def inside(start: Ints, end: Ints) -> tuple[Rows, Rows, Ints, Ints]:
        """Stretches of time, cut into those of single windows: the window, the row of the stretch, start and end."""
        row, edge, start, end = cut(start, end, edges)
        kept = np.flatnonzero(around[edge] >= 0)
        return around[edge[kept]], row[kept], start[kept], end[kept]

    parts, idle = [], []
    ended = np.append(NEVER, np.maximum.accumulate(work.end))
    begun = np.append(work.start, edges[-1])
    # Work that begins when all before it has ended has nothing to do with that.
    apart = np.flatnonzero(begun >= ended)
    firsts = apart.take(np.searchsorted(apart, np.arange(0, begun.size, PORTION)), mode="clip")
    for rows in np.split(np.arange(begun.size), np.unique(firsts)[1:]):
        for begin, until, kind, module in _busy(work, rows[rows < work.start.size]):
            window, row, start, end = inside(begin, until)
            parts.append(pieces(window, kind[row], module[row], end - start))
        next_ = rows[begun[rows] > ended[rows]]
        window, row, start, end = inside(ended[next_], begun[next_])
        idle.append((window, start, end, next_[row]))
    parts += idle_time.idle_pieces(dataset, modules, work, windows, [*map(np.concatenate, zip(*idle, strict=True))])
    return _Found(work.lines, windows, Pieces(*(np.concatenate(column) for column in zip(*parts, strict=True))))


def _work_of(dataset: Dataset, modules: Hierarchy | None) -> tuple[Work, Windows]:
    table = dataset.table("kernels", [*_WORK, *_PLACE, *_LAUNCHED])
    kinds, collective = labels(table, "kind"), collectives_in(table)
    kind = np.where(np.isin(kinds.code, kinds.of("memcpy", "memset")), idle_time.COPY, idle_time.COMPUTE)
    kind[collective] = idle_time.COMMUNICATION
    pid, device = (integers(table, name).astype(np.int64) for name in ("pid", "device"))
    line, first = grouped((pid, device))
    order = _order(table, line, np.flatnonzero(~np.isin(kinds.code, kinds.of("cpu_op"))))
    line, kind = line[order], kind[order].astype(np.int8)
    step, begun, ended = (integers(table, name)[order] for name in ("step_id", "start_ns", "end_ns"))
    windows = windows_of(line, step, begun, ended, host_steps(dataset))
    groups = [line, line, windows.line, windows.line]
    start, end, *borders = axis_of(dataset, groups, [begun, ended, windows.start, windows.end])
    shift = np.zeros(first.size, np.int64)
    shift[line] = start - begun
    arrived = start + _waited(dataset, line[kind == idle_time.COMMUNICATION], integers(table, "kernel_id")[order])
    module = (np.full(order.size, -1) if modules is None else modules.rows(table)[order]).astype(np.int32)
    launch = [integers(table, f"launch_{name}_ns", NEVER)[order] for name in ("start", "end")]
    lines, thread = (pid[first], device[first]), thread_keys(table)[order]
    table = table.select([name for name in table.column_names if name not in _USED])
    work = Work(table, order, line, lines, shift, start, end, np.minimum(arrived, end), kind, module, thread, *launch)
    return work, windows._replace(start=borders[0], end=borders[1])


def _order(table: pa.Table, line: Rows, rows: Rows) -> Rows:
    """Rows by line, start and id, in which order most are."""
    for column in (integers(table, "kernel_id"), integers(table, "start_ns"), line):
        if (column[rows[1:]] < column[rows[:-1]]).any():
            rows = rows[np.argsort(column[rows], kind="stable")]
    return rows


def _waited(dataset: Dataset, lines: Rows, kernel_id: Ints) -> Ints:
    """How long each kernel waited for the last rank of its collective; 0 where it is not proven who took part."""
    if not lines.size or (lines.min() == lines.max() and not has_ranks(dataset.with_all_reports)):
        return np.zeros(kernel_id.size, np.int64)
    if NAME not in dataset.known_of_all:
        dataset.known_of_all[NAME] = _waited_of_all(dataset.with_all_reports)
    kernel, waited = dataset.known_of_all[NAME]
    return lookup(waited, positions(kernel_id, kernel), missing=0)


def has_ranks(dataset: Dataset) -> bool:
    """Whether there are several processes, which may wait for each other."""
    return sum(len(report["processes"]) for report in dataset.manifest.get("reports", [dataset.manifest])) > 1


def _waited_of_all(dataset: Dataset) -> tuple[Ints, Ints]:
    """The kernels of collectives of which all ranks are known, and how long each waited for the last one."""
    rows = ranks_of(dataset).meetings
    waited = maxima(rows.meeting, rows.start, rows.missing.size)[rows.meeting] - rows.start
    return rows.of_events("kernel_id")[rows.proven], waited[rows.proven]


def _busy(work: Work, rows: Rows) -> Iterator[tuple[Ints, Ints, Ints, Rows]]:
    """When devices work: start, end, kind and module of work that runs alone, and of stretches in which several do."""
    rows = rows[work.end[rows] > work.start[rows]]
    start, end = work.start[rows], work.end[rows]
    apart = start >= np.append(NEVER, np.maximum.accumulate(end))[:-1]
    alone = apart & np.append(apart[1:], True) & (work.arrived[rows] <= start)
    yield start[alone], end[alone], work.kind[rows[alone]], work.module[rows[alone]]
    yield _together(work, rows[~alone])


def _together(work: Work, rows: Rows) -> tuple[Ints, Ints, Ints, Rows]:
    """The stretches of work that may overlap, cut wherever some starts or ends."""
    edges = distinct_times((work.start[rows], work.end[rows], work.arrived[rows]))
    start, end = edges[:-1], edges[1:]
    kind, module = np.full(start.size, -1), np.full(start.size, -1)
    for of_kind in (idle_time.COMPUTE, idle_time.COMMUNICATION, idle_time.COPY):
        own, idle = rows[work.kind[rows] == of_kind], np.flatnonzero(kind < 0)
        running = _running(work.start[own], work.end[own], start[idle])
        some = running >= 0
        kind[idle[some]], module[idle[some]] = of_kind, work.module[own[running[some]]]
    meets = np.flatnonzero(kind == idle_time.COMMUNICATION)
    own = rows[work.kind[rows] == idle_time.COMMUNICATION]
    kind[meets[~is_inside(covered(work.arrived[own], work.end[own]), start[meets])]] = idle_time.WAIT
    busy = np.flatnonzero(kind >= 0)
    return start[busy], end[busy], kind[busy], module[busy]


def _running(start: Ints, end: Ints, at: Ints) -> Rows:
    """Of the rows that run at each time the one that started last, of several the first; or -1.

    Rows are sorted by start, and all last.
    """
    order = np.lexsort((-np.arange(start.size), start)) if (start[1:] == start[:-1]).any() else slice(None)
    found = innermost(start[order], end[order], parents(start[order], end[order])[0], at, at + 1)
    return np.append(np.arange(start.size)[order], -1)[found]

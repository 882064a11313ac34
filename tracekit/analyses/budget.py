"""Where did the wall clock of each step go: what did each device do, and what did it wait for while it was idle?

A *window* of a process and device goes from the first work of a step there to the first work of the next step; the last
one ends with its step's work. Every instant of a window is of one kind, so that the kinds add up to the window.

While the device works: ``compute`` if any kernel runs that is no collective, else ``communication`` if a collective
does, but ``communication_wait`` while all of these wait for their last rank, where that is proven; else ``copy``.

While it is idle, what counts is the next work to start there. Until the call that launched it returned, what its thread
did at that instant: ``host_blocked`` inside a call that blocks, else ``launch`` in any other CUDA call, else
``compilation`` or ``data_loading`` in such a phase, else ``host_code``. Then ``graph`` between nodes of one replay,
``dependency`` if its stream was made to wait for other work that ended later than all else, else ``latency``; and
``unknown`` where its launch is not known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from tracekit.analyses.alignment.collectives import collectives
from tracekit.analyses.alignment.reports import aligned, met
from tracekit.analyses.base import Columns
from tracekit.analyses.communication import nccl_work
from tracekit.analyses.subtrees import Hierarchy, hierarchy, patterns
from tracekit.analyses.weighted_kernels import axis_of, from_graph
from tracekit.arrays.codes import labels, lookup, positions
from tracekit.arrays.columns import integers
from tracekit.arrays.groups import grouped, maxima, minima, sums, sums_by
from tracekit.arrays.intervals import Covered, covered, innermost, nesting_order, parents
from tracekit.arrays.slices import greatest_of
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.dataset.opening import Dataset
from tracekit.errors import UsageError

NAME = "budget"
ANSWER = ("step_id", "kind", "ns", "share", "path")
KINDS = (
    *("compute", "communication", "communication_wait", "copy"),
    *("host_blocked", "launch", "data_loading", "compilation", "host_code"),
    *("graph", "dependency", "latency", "unknown"),
)
_COMPUTE, _COMMUNICATION, _WAIT, _COPY, _BLOCKED, _LAUNCH, _DATA = range(7)
_COMPILATION, _HOST, _GRAPH, _DEPENDENCY, _LATENCY, _UNKNOWN = range(7, 13)

_WORK = ("kernel_id", "kind", "name", "module_id", "pid", "tid", "start_ns", "end_ns", "step_id", "range_id")
_PLACE = ("device", "context", "stream")
_LAUNCHED = ("launch_name", "launch_start_ns", "launch_end_ns", "graph_id", "graph_node_id")
_NEVER = np.iinfo(np.int64).min


def frame(dataset: Dataset) -> pd.DataFrame:
    """The windows of every process and device in their order, each divided by kind and module.

    Returns:
        A row per window, kind and module: ``report`` (only in a dataset of several), ``pid``, ``device``, ``step_id``
        (null where no work of the device has a step, so that all of it is one window), ``kind`` (see above), ``path``
        (of a device that works, the module of the work that started last among those of the kind; else the innermost
        call at that instant on the thread that launched what came next; null outside modules), ``ns``, ``share`` (of
        the window) and ``window_ns``, to which the rows of a window add up.

    Raises:
        UsageError: If the dataset is a subtree: a device is idle for whatever comes next, of any module.
    """
    return pd.DataFrame(columns(dataset)).astype(dict.fromkeys(("pid", "device", "step_id"), "Int64"))


def columns(dataset: Dataset) -> Columns:
    """The columns of :func:`frame`, made without pandas, with one report in memory at a time."""
    parts = [_columns(dataset, *one) for one in _each(dataset)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _of_windows(dataset: Dataset, part: Dataset, found: _Found, rows: Rows) -> Columns:
    line = found.windows.line[rows]
    answer = {"report": np.full(rows.size, part.reports[0], object)} if dataset.reports else {}
    return answer | {
        **{name: _or_none(values[line]) for name, values in zip(("pid", "device"), found.lines, strict=True)},
        "step_id": _or_none(found.windows.step[rows]),
    }


def _columns(dataset: Dataset, part: Dataset, found: _Found, modules: Hierarchy) -> Columns:
    order = np.lexsort((found.rows.module, found.rows.kind, -found.rows.ns, found.rows.window))
    rows = _Rows(*(column[order] for column in found.rows))
    window_ns = (found.windows.end - found.windows.start)[rows.window]
    return _of_windows(dataset, part, found, rows.window) | {
        "kind": np.array(KINDS, object)[rows.kind],
        "path": np.array([*modules.path, None], object)[rows.module],
        "ns": rows.ns,
        "share": rows.ns / window_ns,
        "window_ns": window_ns,
    }


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
        names = [*patterns(modules), ""] if len(names) == 1 else names
        parts.append(_by_window(dataset, part, found))
        keys, (ns,) = sums_by((found.rows.kind, found.rows.module), (found.rows.ns,))
        for kind, module, time in zip(*(key.tolist() for key in keys), ns.tolist(), strict=True):
            total[kind, names[module]] += time
    windows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return _overview(np.stack([windows[f"{kind}_ns"] for kind in KINDS], axis=1), total), windows


def _by_window(dataset: Dataset, part: Dataset, found: _Found) -> Columns:
    by_kind = _by_kind(found)
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
    own = Counter({name: time for (of, name), time in total.items() if of == kind})
    first = [(name or "(outside)", time / own.total()) for name, time in own.most_common(_LEADING)]
    return [(name, share) for name, share in first if share >= _LEAST_SHARE]


def by_window(dataset: Dataset) -> tuple[Rows, Ints]:
    """A number for the process and device of every window, and its time by kind, in the order of ``KINDS``."""
    lines, times = [], []
    for at, part in enumerate(_reports(dataset)):
        found = _of_one(part, None)
        lines.append(found.windows.line + (at << 32))
        times.append(_by_kind(found))
    return np.concatenate(lines), np.concatenate(times)


def _by_kind(found: _Found) -> Ints:
    cell, windows = found.rows.window * len(KINDS) + found.rows.kind, found.windows.start.size
    return sums(cell, found.rows.ns, windows * len(KINDS)).reshape(-1, len(KINDS))


def step_lengths(dataset: Dataset) -> Iterator[tuple[Dataset, Ints, Ints]]:
    """Of every report the step of each window, -1 where none is known, and how long it lasts in ns."""
    for part in _reports(dataset):
        work = _work_of(part, None)
        windows = windows_of(work.line, work.column("step_id"), work.start, work.end)
        yield part, windows.step, windows.end - windows.start


def waits_of_streams(dataset: Dataset) -> tuple[int, int]:
    """How many waits of streams there are, and of how many it is not known what they wait for."""
    number = unknown = 0
    for part in dataset.by_report():
        calls = part.table("api_calls", ["name", "kernel_id"])
        waits = _waits(calls)
        number += int(waits.sum())
        unknown += int((waits & (integers(calls, "kernel_id") < 0)).sum())
    return number, unknown


class _Rows(NamedTuple):
    """The time of each window by kind and module."""

    window: Rows
    kind: Ints
    module: Rows
    ns: Ints


class _Found(NamedTuple):
    """The budget of a report; ``lines`` are the processes and devices of ``windows.line``."""

    lines: tuple[Ints, Ints]
    windows: Windows
    rows: _Rows


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
    work = _work_of(dataset, modules)
    windows = windows_of(work.line, work.column("step_id"), work.start, work.end)
    pieces = _pieces(work, windows)
    idle = pieces.kind < 0
    parts = [pieces.at(~idle), *_idle_pieces(dataset, modules, work, pieces.at(idle))]
    whole = _Pieces(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    (window, kind, module), (ns,) = sums_by((whole.window, whole.kind, whole.module), (whole.end - whole.start,))
    return _Found(work.lines, windows, _Rows(window, kind, module, ns))


def _or_none(values: Ints) -> np.ndarray[Any, Any]:
    answer = values.astype(object)
    answer[values < 0] = None
    return answer


class _Work(NamedTuple):
    """Device work by line (process and device), start and id; ``start`` and ``end`` are on an axis of the lines.

    ``lines`` are the processes and devices of the lines, ``shift`` is what their axis adds to times; ``arrived`` is
    when the last rank had begun a collective, where that is proven, else the start.
    """

    table: pa.Table
    line: Rows
    lines: tuple[Ints, Ints]
    shift: Ints
    start: Ints
    end: Ints
    arrived: Ints
    kind: Ints
    module: Rows

    def column(self, name: str, null: int = -1) -> Ints:
        return integers(self.table, name, null)


def _work_of(dataset: Dataset, modules: Hierarchy | None) -> _Work:
    table = dataset.table("kernels", [*_WORK, *_PLACE, *_LAUNCHED])
    kinds, collective = labels(table, "kind"), nccl_work(dataset, table)
    kind = np.where(np.isin(kinds.code, kinds.of("memcpy", "memset")), _COPY, _COMPUTE)
    kind[collective] = _COMMUNICATION
    pid, device = integers(table, "pid").astype(np.int64), integers(table, "device").astype(np.int64)
    line, first = grouped((pid, device))
    on_device = ~np.isin(kinds.code, kinds.of("cpu_op"))
    order = np.lexsort((integers(table, "kernel_id"), integers(table, "start_ns"), line))
    order = order[on_device[order]]
    table = table.take(pa.array(order))
    line, kind = line[order], kind[order]
    times = [integers(table, name) for name in ("start_ns", "end_ns")]
    start, end = axis_of(dataset, [line, line], times)
    shift = np.zeros(first.size, np.int64)
    shift[line] = start - times[0]
    arrived = start + _waited(dataset, line[kind == _COMMUNICATION], integers(table, "kernel_id"))
    lines = pid[first], device[first]
    return _Work(table, line, lines, shift, start, end, np.minimum(arrived, end), kind, _modules(table, modules))


def _modules(table: pa.Table, modules: Hierarchy | None) -> Rows:
    return np.full(table.num_rows, -1) if modules is None else modules.rows(table)


def _waited(dataset: Dataset, lines: Rows, kernel_id: Ints) -> Ints:
    """How long each kernel waited for the last rank of its collective; 0 where it is not proven who took part."""
    everything = dataset.with_all_reports
    others = everything.reports or len(everything.manifest["processes"]) > 1
    if not lines.size or (lines.min() == lines.max() and not others):
        return np.zeros(kernel_id.size, np.int64)
    if NAME not in dataset.known_of_all:
        dataset.known_of_all[NAME] = _waited_of_all(everything)
    kernel, waited = dataset.known_of_all[NAME]
    return lookup(waited, positions(kernel_id, kernel), missing=0)


def _waited_of_all(dataset: Dataset) -> tuple[Ints, Ints]:
    """The kernels of collectives of which all ranks are known, and how long each waited for the last one."""
    lanes = collectives(dataset).lanes
    rows = met(lanes, aligned(lanes))
    waited = maxima(rows.meeting, rows.start, rows.missing.size)[rows.meeting] - rows.start
    kernel = np.full(waited.size, -1)
    for at in np.unique(rows.lane).tolist():
        own = np.flatnonzero(rows.lane == at)
        kernel[own] = rows.lanes[at].kernel_id[rows.event[own]]
    proven = rows.missing[rows.meeting] == 0
    return kernel[proven], waited[proven]


class Windows(NamedTuple):
    """The windows of all lines, by line and start."""

    line: Rows
    step: Ints
    start: Ints
    end: Ints


def windows_of(line: Rows, step: Ints, start: Ints, end: Ints) -> Windows:
    """The windows of work, given its line (process and device, from 0), step (-1 for none) and times."""
    stepped = np.zeros(int(line.max(initial=-1)) + 1, bool)
    stepped[line[step >= 0]] = True
    rows = np.flatnonzero((step >= 0) | ~stepped[line])
    if not rows.size:
        return Windows(rows, rows, rows, rows)
    group, first = grouped((line[rows], step[rows]))
    start, end = minima(group, start[rows], first.size), maxima(group, end[rows], first.size)
    line, step = line[rows[first]], step[rows[first]]
    order = np.lexsort((step, start, line))
    line, step, start, end = line[order], step[order], start[order], end[order]
    follows = np.append(line[1:] == line[:-1], False)
    return Windows(line, step, start, np.where(follows, np.append(start[1:], 0), end))


class _Pieces(NamedTuple):
    """Stretches of windows in which nothing changes; ``module`` is -1 for none."""

    window: Rows
    start: Ints
    end: Ints
    kind: Ints
    module: Rows

    def at(self, rows: Flags) -> _Pieces:
        return _Pieces(*(column[rows] for column in self))


def _pieces(work: _Work, windows: Windows) -> _Pieces:
    """All windows, cut wherever work starts or ends; kind -1 where the device is idle."""
    edges = _distinct((work.start, work.end, work.arrived, windows.start, windows.end))
    start, end = edges[:-1], edges[1:]
    window = np.searchsorted(windows.start, start, side="right") - 1
    inside = (window >= 0) & (start < np.append(windows.end, 0)[window])
    start, end, window = start[inside], end[inside], window[inside]
    kind, module = np.full(start.size, -1), np.full(start.size, -1)
    for of_kind in (_COMPUTE, _COMMUNICATION, _COPY):
        rows = np.flatnonzero((work.kind == of_kind) & (work.end > work.start))
        idle = np.flatnonzero(kind < 0)
        running = _running(work.start[rows], work.end[rows], start[idle])
        some = running >= 0
        kind[idle[some]], module[idle[some]] = of_kind, work.module[rows[running[some]]]
    together = np.flatnonzero(kind == _COMMUNICATION)
    rows = np.flatnonzero(work.kind == _COMMUNICATION)
    arrived = _is_inside(covered(work.arrived[rows], work.end[rows]), start[together])
    kind[together[~arrived]] = _WAIT
    return _Pieces(window, start, end, kind, module)


def _distinct(times: Sequence[Ints]) -> Ints:
    """All times in order, each once; sorting what is nearly in order is fast."""
    ordered = np.sort(np.concatenate(times), kind="stable")
    return ordered[np.append(True, ordered[1:] > ordered[:-1])] if ordered.size else ordered


def _running(start: Ints, end: Ints, at: Ints) -> Rows:
    """Of the rows that run at each time the one that started last, of several the first; or -1.

    Rows are sorted by start, and all last.
    """
    order = np.lexsort((-np.arange(start.size), start)) if (start[1:] == start[:-1]).any() else slice(None)
    found = innermost(start[order], end[order], parents(start[order], end[order])[0], at, at + 1)
    return np.append(np.arange(start.size)[order], -1)[found]


class _Gaps(NamedTuple):
    """Idle stretches whose next work has a launch: real times, the thread of that, its row, and the kind if known."""

    window: Rows
    start_ns: Ints
    end_ns: Ints
    thread: Rows
    row: Rows
    kind: Ints

    def at(self, rows: Rows | Flags) -> _Gaps:
        return _Gaps(*(column[rows] for column in self))


def _idle_pieces(dataset: Dataset, modules: Hierarchy | None, work: _Work, idle: _Pieces) -> list[_Pieces]:
    following = np.searchsorted(work.start, idle.start, side="right")
    launched, returned = (work.column(f"launch_{name}_ns", _NEVER) for name in ("start", "end"))
    known = launched[following] != _NEVER
    unknown = idle.at(~known)._replace(kind=np.full(np.count_nonzero(~known), _UNKNOWN))
    rows, next_ = np.flatnonzero(known), following[known]
    shift = work.shift[work.line[next_]]
    start, end = idle.start[rows] - shift, idle.end[rows] - shift
    until = np.clip(returned[next_], start, end)
    threads, thread = np.unique(_threads(work.table)[next_], return_inverse=True)
    on_host = _Gaps(idle.window[rows], start, until, thread, next_, np.full(rows.size, -1))
    after = on_host._replace(start_ns=until, end_ns=end).at(until < end)
    after = after._replace(kind=_kinds_after_launch(dataset, work, after.row))
    both = (on_host.at(start < until), after)
    gaps = _Gaps(*(np.concatenate(column) for column in zip(*both, strict=True)))
    return [unknown, _on_threads(dataset, modules, work, gaps, threads)]


def _threads(table: pa.Table) -> Ints:
    """A number for the thread of each row."""
    pid, tid = (integers(table, name).astype(np.int64) for name in ("pid", "tid"))
    return (pid << 32) | (tid & 0xFFFF_FFFF)


def _kinds_after_launch(dataset: Dataset, work: _Work, rows: Rows) -> Ints:
    """What the device waited for once the launch of each of some work had returned."""
    kind = np.where(_depends(dataset, work, rows), _DEPENDENCY, _LATENCY)
    names, kinds = labels(work.table, "launch_name"), labels(work.table, "kind")
    node = from_graph(work.table) | np.isin(names.code, names.containing("graphlaunch"))
    node &= ~np.isin(kinds.code, kinds.of("graph"))
    high = np.maximum.accumulate(work.end)
    fresh = np.append(True, high[1:] > high[:-1])[: high.size]
    latest = np.maximum.accumulate(np.where(fresh, np.arange(high.size), 0))
    before = latest[rows - 1]
    same = work.column("launch_start_ns", _NEVER)[before] == work.column("launch_start_ns", _NEVER)[rows]
    same &= _threads(work.table)[before] == _threads(work.table)[rows]
    kind[node[before] & node[rows] & same] = _GRAPH
    return kind


def _depends(dataset: Dataset, work: _Work, rows: Rows) -> Flags:
    """Whether a stream that starts some work was made to wait for other work, which ended later than all else.

    That is: later than the return of the launch, and than the work before on the stream, since whose launch the stream
    was made to wait.
    """
    depends = np.zeros(rows.size, bool)
    calls = dataset.table("api_calls", ["name", "pid", "context", "stream", "start_ns", "kernel_id"])
    waits = _waits(calls) & (integers(calls, "kernel_id") >= 0)
    calls = calls.filter(pa.array(waits & (integers(calls, "stream") >= 0)))
    if not calls.num_rows or not rows.size:
        return depends
    of_wait, stream = np.zeros(calls.num_rows, np.int64), np.zeros(work.line.size, np.int64)
    for name in ("pid", "context", "stream"):
        distinct = np.unique(integers(calls, name))
        of_wait = of_wait * distinct.size + positions(integers(calls, name), distinct)
        at = positions(work.column(name), distinct)
        stream = np.where((stream >= 0) & (at >= 0), stream * distinct.size + at, -1)
    before = _before_on_stream(stream)[rows]
    launched, returned, started, ended = (
        work.column(name, _NEVER) for name in ("launch_start_ns", "launch_end_ns", "start_ns", "end_ns")
    )
    since = np.where(launched == _NEVER, started, launched)[before]
    since = np.where(before >= 0, since, min(int(started.min()), int(integers(calls, "start_ns").min())) - 1)
    asked = np.flatnonzero(stream[rows] >= 0)
    wait_at, low, high = axis_of(
        dataset,
        [of_wait, stream[rows[asked]], stream[rows[asked]]],
        [integers(calls, "start_ns"), since[asked], launched[rows[asked]]],
    )
    order = np.argsort(wait_at, kind="stable")
    until = lookup(ended, positions(integers(calls, "kernel_id"), work.column("kernel_id")), _NEVER)[order]
    low, high = np.searchsorted(wait_at[order], low, "right"), np.searchsorted(wait_at[order], high)
    last = greatest_of(until)(low, high, _NEVER)
    latest = np.maximum(returned[rows[asked]], np.where(before[asked] >= 0, ended[before[asked]], _NEVER))
    depends[asked] = last > latest
    return depends


def _waits(calls: pa.Table) -> Flags:
    """Which API calls make a stream wait."""
    names = labels(calls, "name")
    return np.isin(names.code, names.containing("streamwaitevent"))


def _before_on_stream(stream: Rows) -> Rows:
    """For each row the one before it on its stream, or -1; of stream -1 nothing is asked."""
    order = np.argsort(stream, kind="stable")
    before = np.full(stream.size, -1)
    same = stream[order[1:]] == stream[order[:-1]]
    before[order[1:][same]] = order[:-1][same]
    return before


class _Spans(NamedTuple):
    """What threads did, from when to when; ``module`` is that of calls, else -1."""

    thread: Ints
    start: Ints
    end: Ints
    module: Rows


def _on_threads(dataset: Dataset, modules: Hierarchy | None, work: _Work, gaps: _Gaps, threads: Ints) -> _Pieces:
    """The stretches, cut wherever their thread begins or ends something."""
    done = [*_done_by_threads(dataset, work), _calls(dataset, modules)]
    done = [spans._replace(thread=positions(spans.thread, threads)) for spans in done]
    done = [_some(spans, spans.thread >= 0) for spans in done]
    groups = [gaps.thread, gaps.thread, *(spans.thread for spans in done for _ in range(2))]
    times = [gaps.start_ns, gaps.end_ns, *(column for spans in done for column in (spans.start, spans.end))]
    start, end, *placed = axis_of(dataset, groups, times)
    # What was done outside of all stretches is most of a run in which the device seldom waits.
    asked = covered(start, end)
    done = [
        _some(spans._replace(start=first, end=last), asked.until(last) > asked.until(first))
        for spans, first, last in zip(done, placed[::2], placed[1::2], strict=True)
    ]
    states = [covered(spans.start, spans.end) for spans in done[:-1]]
    calls = _some(done[-1], nesting_order(done[-1].start, done[-1].end))
    edges = [calls.start, calls.end, *(column for state in states for column in (state.start, state.end))]
    row, start, end = _cut(start, end, _distinct(edges))
    kind = gaps.kind[row]
    on_host = np.flatnonzero(kind < 0)
    kind[on_host] = np.select([_is_inside(state, start[on_host]) for state in states], _STATES, _HOST)
    call = innermost(calls.start, calls.end, parents(calls.start, calls.end)[0], start, start + 1)
    return _Pieces(gaps.window[row], start, end, kind, lookup(calls.module, call))


def _cut(start: Ints, end: Ints, edges: Ints) -> tuple[Rows, Ints, Ints]:
    """Intervals cut at all edges in them: for each piece the row of its interval, start and end."""
    low, high = np.searchsorted(edges, start, "right"), np.searchsorted(edges, end)
    pieces = high - low + 1
    row = np.repeat(np.arange(start.size), pieces)
    place = np.arange(row.size) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    edges, at = np.append(edges, 0), low[row] + place
    first, last = place == 0, place == pieces[row] - 1
    return row, np.where(first, start[row], edges[at - 1]), np.where(last, end[row], edges[at])


def _some(spans: _Spans, rows: Rows | Flags) -> _Spans:
    return _Spans(*(column[rows] for column in spans))


def _is_inside(times: Covered, at: Ints) -> Flags:
    row = np.searchsorted(times.start, at, side="right") - 1
    return np.asarray((row >= 0) & (at < np.append(times.end, 0)[row]))


#: The kinds of what threads do, the first that fits counts.
_STATES = [_BLOCKED, _LAUNCH, _COMPILATION, _DATA]


def _done_by_threads(dataset: Dataset, work: _Work) -> list[_Spans]:
    """When threads did each of ``_STATES``."""
    columns = ["pid", "tid", "start_ns", "dur_ns"]
    waits, others = (_timed(dataset.table(name, columns)) for name in ("waits", "api_calls"))
    launched = work.column("launch_start_ns", _NEVER)
    rows = np.flatnonzero(launched != _NEVER)
    returned = work.column("launch_end_ns", _NEVER)[rows]
    launches = _Spans(_threads(work.table)[rows], launched[rows], returned, np.full(rows.size, -1))
    calls = _Spans(*(np.concatenate(pair) for pair in zip(others, launches, strict=True)))
    return [waits, calls, *_phases(dataset)]


def _timed(table: pa.Table) -> _Spans:
    start = integers(table, "start_ns")
    return _Spans(_threads(table), start, start + integers(table, "dur_ns"), np.full(start.size, -1))


def _phases(dataset: Dataset) -> list[_Spans]:
    """When threads compiled, and when they loaded data."""
    phases = labels(dataset.table("ranges", ["phase"]), "phase")
    if not phases.of("compile", "data").size:
        nothing = _Spans(*np.zeros((4, 0), np.int64))
        return [nothing, nothing]
    table = dataset.table("ranges", ["pid", "tid", "end_tid", "start_ns", "end_ns"])
    ends_here = ~np.asarray(table.column("end_tid").is_valid())
    spans = _ended(table, np.full(table.num_rows, -1))
    return [_some(spans, ends_here & np.isin(phases.code, phases.of(name))) for name in ("compile", "data")]


def _ended(table: pa.Table, module: Rows) -> _Spans:
    return _Spans(_threads(table), integers(table, "start_ns"), integers(table, "end_ns"), module)


def _calls(dataset: Dataset, modules: Hierarchy | None) -> _Spans:
    if modules is None:
        return _Spans(*np.zeros((4, 0), np.int64))
    table = dataset.table("calls", ["module_id", "pid", "tid", "start_ns", "end_ns"])
    return _ended(table, modules.rows(table))

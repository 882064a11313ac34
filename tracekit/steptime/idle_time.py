"""What devices waited for while they were idle, as the module docstring of :mod:`tracekit.steptime.budget` has it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tracekit.aggregates.subtrees import Hierarchy
from tracekit.aggregates.weighted_kernels import axis_of, from_graph
from tracekit.arrays.codes import labels, lookup, positions
from tracekit.arrays.columns import integers
from tracekit.arrays.groups import grouped
from tracekit.arrays.intervals import covered, cut, distinct_times, innermost, nesting_order, parents, reach
from tracekit.arrays.slices import greatest_of
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.dataset.opening import Dataset
from tracekit.steptime.windows import Windows, thread_keys

KINDS = (
    *("compute", "communication", "communication_wait", "copy"),
    *("host_blocked", "launch", "data_loading", "compilation", "host_code"),
    *("graph", "dependency", "latency", "unknown"),
)
COMPUTE, COMMUNICATION, WAIT, COPY, _BLOCKED, _LAUNCH, _DATA = range(7)
MEETS = (COMMUNICATION, WAIT)
_COMPILATION, _HOST, _GRAPH, _DEPENDENCY, _LATENCY, _UNKNOWN = range(7, 13)
#: The kinds of what threads do, the first that fits counts.
_STATES = [_BLOCKED, _LAUNCH, _LAUNCH, _COMPILATION, _DATA]
NEVER = np.iinfo(np.int64).min
#: So many stretches of time are worked on at once: memory does not grow with their number, and caches serve.
PORTION = 1 << 16


class Work(NamedTuple):
    """Device work by line (process and device), start and id; ``start`` and ``end`` are on an axis of the lines.

    ``table`` has further columns; ``lines`` are the processes and devices of the lines, ``shift`` is what their axis
    adds to times; ``arrived`` is when the last rank had begun a collective, where that is proven, else the start;
    ``thread``, ``launched`` and ``returned`` describe the launch, in real time.
    """

    table: pa.Table
    line: Rows
    lines: tuple[Ints, ...]
    shift: Ints
    start: Ints
    end: Ints
    arrived: Ints
    kind: Ints
    module: Rows
    thread: Ints
    launched: Ints
    returned: Ints


class Pieces(NamedTuple):
    """Stretches of windows in which nothing changes, and how long they last; ``module`` is -1 for none."""

    window: Rows
    kind: Ints
    module: Rows
    ns: Ints


def idle_pieces(
    dataset: Dataset, modules: Hierarchy | None, work: Work, windows: Windows, idle: Sequence[Ints]
) -> Iterator[Pieces]:
    """What each idle stretch was spent on, given its window, start, end and the work that starts next."""
    window, start, end, next_ = idle
    begins, thread, launched, returned = (np.append(column, NEVER)[next_] for column in (work.start, *work[-3:]))
    # At the end of the last window nothing comes next: what the thread of the step does counts.
    last = (next_ == work.start.size) | (begins >= windows.end[window])
    lost = ~last & (launched == NEVER)
    thread = np.where(last, windows.thread[window], np.where(lost, NEVER, thread))
    start, end = (times - work.shift[windows.line[window]] for times in (start, end))
    until = np.where(last, end, np.where(lost, start, np.clip(returned, start, end)))
    host, after = np.flatnonzero(start < until), np.flatnonzero(until < end)
    kind = _kinds_after_launch(dataset, work, next_[after])
    kind[lost[after]] = _UNKNOWN
    on_host = (window[host], start[host], until[host], thread[host], np.full(host.size, -1, np.int8))
    waiting = (window[after], until[after], end[after], thread[after], kind)
    return _on_threads(dataset, [*map(np.append, on_host, waiting)], _done_by_threads(dataset, modules, work))


def _kinds_after_launch(dataset: Dataset, work: Work, rows: Rows) -> Ints:
    """What the device waited for once the launch of each of some work had returned."""
    names = labels(work.table, "launch_name")
    node = from_graph(work.table) | np.isin(names.code, names.containing("graphlaunch"))
    node &= ~labels(work.table, "kind").among("graph")
    before = reach(work.end)[1][rows - 1]
    same = node[before] & node[rows] & (rows > 0)
    for values in (work.launched, work.thread, work.line):
        same &= values[before] == values[rows]
    return np.select([same, _depends(dataset, work, rows)], [_GRAPH, _DEPENDENCY], _LATENCY).astype(np.int8)


def _depends(dataset: Dataset, work: Work, rows: Rows) -> Flags:
    """Whether a stream that starts some work was made to wait for other work, which ended later than all else.

    That is: later than the return of the launch, and than the work before on the stream, since whose launch the stream
    was made to wait.
    """
    calls = dataset.table("api_calls", ["name", "pid", "context", "stream", "start_ns", "kernel_id"])
    waits = waits_of_streams(calls) & (integers(calls, "kernel_id") >= 0)
    calls = calls.filter(pa.array(waits & (integers(calls, "stream") >= 0)))
    if not calls.num_rows or not rows.size:
        return np.zeros(rows.size, bool)
    both = [np.append(integers(work.table, name), integers(calls, name)) for name in ("pid", "context", "stream")]
    stream, of_wait = np.split(grouped(both).group, [work.line.size])
    order = np.argsort(stream, kind="stable")
    next_, before = np.flatnonzero(np.diff(stream[order]) == 0) + 1, np.full(stream.size, -1)
    before[order[next_]] = order[next_ - 1]
    before = before[rows]
    started, ended = (integers(work.table, name) for name in ("start_ns", "end_ns"))
    since = np.where(work.launched == NEVER, started, work.launched)[before]
    since = np.where(before >= 0, since, min(int(started.min()), int(integers(calls, "start_ns").min())) - 1)
    times = [integers(calls, "start_ns"), since, work.launched[rows]]
    wait_at, low, high = axis_of(dataset, [of_wait, stream[rows], stream[rows]], times)
    order = np.argsort(wait_at, kind="stable")
    until = lookup(ended, positions(integers(calls, "kernel_id"), integers(work.table, "kernel_id")), NEVER)[order]
    low, high = np.searchsorted(wait_at[order], low, "right"), np.searchsorted(wait_at[order], high)
    latest = np.maximum(work.returned[rows], np.where(before >= 0, ended[before], NEVER))
    return greatest_of(until)(low, high, NEVER) > latest


def waits_of_streams(calls: pa.Table) -> Flags:
    """Which API calls make a stream wait."""
    names = labels(calls, "name")
    return np.isin(names.code, names.containing("streamwaitevent"))


class _Spans(NamedTuple):
    """What threads did, from when to when; ``module`` is that of calls, else -1."""

    thread: Ints
    start: Ints
    end: Ints
    module: Rows

    def at(self, rows: Rows | Flags) -> _Spans:
        return _Spans(*(column[rows] for column in self))

    def on(self, threads: Ints) -> _Spans:
        """Those of some threads, by their places."""
        own = self._replace(thread=positions(self.thread, threads))
        return own if (own.thread >= 0).all() else own.at(own.thread >= 0)


_NOTHING = _Spans(*np.zeros((4, 0), np.int64))


def _on_threads(dataset: Dataset, gaps: Sequence[Ints], done: Sequence[_Spans]) -> Iterator[Pieces]:
    """Idle stretches, cut wherever a thread begins or ends something.

    Given are their window, start, end (real times), thread, and kind, or -1 for what the thread does.
    """
    window, start, end, thread, kind = gaps
    thread, first = grouped((thread,))
    done = [spans.on(gaps[3][first]) for spans in done]
    groups = [thread, thread, *(spans.thread for spans in done for _ in range(2))]
    times = [start, end, *(column for spans in done for column in (spans.start, spans.end))]
    start, end, *placed = axis_of(dataset, groups, times)
    states = [covered(*span) for span in zip(placed[:-2:2], placed[1:-2:2], strict=True)]
    nested = nesting_order(*placed[-2:])
    begun, ended, module_of = placed[-2][nested], placed[-1][nested], done[-1].module[nested]
    del done, times, placed
    around = parents(begun, ended)[0]
    changes = [begun, np.sort(ended, kind="stable"), *(times for state in states for times in (state.start, state.end))]
    order = np.argsort(start, kind="stable")
    for rows in np.split(order, range(PORTION, order.size, PORTION)):
        since, until = start[rows[:1]], end[rows].max(initial=NEVER)
        between = [slice(*np.searchsorted(times, (*since, until))) for times in changes if since.size]
        edges = distinct_times([since, *(times[part] for times, part in zip(changes, between, strict=False))])
        row, edge, begin, stop = cut(start[rows], end[rows], edges)
        used, on_host, module = (np.zeros(edges.size, type_) for type_ in (bool, np.int8, np.int32))
        used[edge] = True
        at = edges[used]
        on_host[used] = np.select([state.hold(at) for state in states], _STATES, _HOST)
        module[used] = lookup(module_of, innermost(begun, ended, around, at, at + 1))
        row, on_host = rows[row], on_host[edge]
        yield Pieces(window[row], np.where(kind[row] < 0, on_host, kind[row]), module[edge], stop - begin)


def _done_by_threads(dataset: Dataset, modules: Hierarchy | None, work: Work) -> list[_Spans]:
    """When threads did each of ``_STATES``, and when they called modules."""
    columns = ["pid", "tid", "start_ns", "dur_ns"]
    waits, others = (_spans(dataset.table(name, columns)) for name in ("waits", "api_calls"))
    rows = np.flatnonzero(work.launched != NEVER)
    launches = _Spans(work.thread[rows], work.launched[rows], work.returned[rows], np.full(rows.size, -1, np.int8))
    called = _NOTHING
    if modules is not None:
        calls = dataset.table("calls", ["module_id", "pid", "tid", "start_ns", "end_ns"])
        called = _spans(calls)._replace(module=modules.rows(calls))
    return [waits, others, launches, *_phases(dataset), called]


def _phases(dataset: Dataset) -> list[_Spans]:
    """When threads compiled, and when they loaded data."""
    phases = labels(dataset.table("ranges", ["phase"]), "phase")
    if not phases.of("compile", "data").size:
        return [_NOTHING, _NOTHING]
    table = dataset.table("ranges", ["pid", "tid", "end_tid", "start_ns", "end_ns"])
    ends_here = ~np.asarray(table.column("end_tid").is_valid())
    return [_spans(table).at(ends_here & phases.among(name)) for name in ("compile", "data")]


def _spans(table: pa.Table) -> _Spans:
    start = integers(table, "start_ns")
    end = integers(table, "end_ns") if "end_ns" in table.column_names else start + integers(table, "dur_ns")
    return _Spans(thread_keys(table), start, end, np.full(start.size, -1, np.int8))

"""How the wall clock of steps divides: what each device did, and what it waited for while idle.

Every instant of a window (see :mod:`tracekit.steptime.windows`) has one kind, so that the kinds add up to the window.

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

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tracekit.aggregates.subtrees import Hierarchy, hierarchy, patterns
from tracekit.aggregates.weighted_kernels import axis_of, from_graph
from tracekit.arrays.codes import labels, lookup, positions
from tracekit.arrays.columns import in_order, integers, together, with_nulls
from tracekit.arrays.groups import grouped, maxima, sums, sums_by
from tracekit.arrays.intervals import covered, cut, distinct_times, innermost, nesting_order, parents, reach
from tracekit.arrays.slices import members
from tracekit.arrays.types import Columns, Flags, Ints, Rows
from tracekit.dataset.opening import Dataset
from tracekit.errors import UsageError
from tracekit.ranks.collectives import collectives_in
from tracekit.ranks.meetings import ranks_of
from tracekit.steptime.windows import Windows, host_spans, host_steps, steady, thread_keys, windows_of

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
#: The key under which a dataset keeps what its work waited for, of all reports.
WAITED = "budget"
IDS = ("pid", "device", "step_id")
_FURTHER = ["kernel_id", "kind", "pid", "context", "stream", "start_ns", "end_ns", "launch_name", "launch_start_ns"]
_FURTHER += ["graph_id", "graph_node_id"]
_READ = ["module_id", "tid", "step_id", "device", "collective", "launch_end_ns", *_FURTHER]


class Work(NamedTuple):
    """Device work by line (process and device), start and id."""

    table: pa.Table  # further columns
    line: Rows
    lines: tuple[Ints, ...]  # the processes and devices of the lines
    shift: Ints  # what the axis of the lines, on which work starts and ends, adds to times
    start: Ints
    end: Ints
    arrived: Ints  # when the last rank had begun a collective, where that is proven, else the start
    kind: Ints
    module: Rows
    thread: Ints  # that of the launch, which was launched and returned in real time
    launched: Ints
    returned: Ints


class Pieces(NamedTuple):
    """Stretches of windows in which nothing changes, and how long they last; ``module`` is -1 for none."""

    window: Rows
    kind: Ints
    module: Rows
    ns: Ints


def columns(dataset: Dataset) -> Columns:
    """The columns of :func:`frame`, made without pandas."""
    return together([*parts(dataset)])


def parts(dataset: Dataset) -> Iterator[Columns]:
    """The columns of :func:`frame` report by report, with one of them in memory at a time."""
    modules = hierarchy(dataset)
    return (_columns(dataset, *one, modules) for one in each(dataset, modules))


def _columns(dataset: Dataset, part: Dataset, found: Found, modules: Hierarchy) -> Columns:
    (window, kind, module), (ns,) = sums_by(found.pieces[:3], found.pieces[3:])
    order = np.lexsort((-ns, window))
    window, kind, module, ns = (column[order] for column in (window, kind, module, ns))
    window_ns = (found.windows.end - found.windows.start)[window]
    answer = {"report": np.full(window.size, part.reports[0], object)} if dataset.reports else {}
    ids = (*(values[found.windows.line] for values in found.lines), found.windows.step)
    answer |= {name: ids[window] for name, ids in with_nulls(dict(zip(IDS, ids, strict=True)), IDS).items()}
    return answer | {
        "kind": np.array(KINDS, object)[kind],
        "path": np.array([*modules.path, None], object)[module],
        "ns": ns,
        "share": ns / window_ns,
        "window_ns": window_ns,
    }


class Summed(NamedTuple):
    """The budget of a report as sums: of each window by kind, and of each line by name, outside collectives."""

    part: Dataset
    lines: tuple[Ints, ...]
    windows: Windows
    by_kind: Ints
    own: Ints


class Budgets(NamedTuple):
    """The budgets of all reports, and the time of all by name and kind; layers that are alike share a name."""

    names: list[str]
    total: Ints
    reports: list[Summed]

    @property
    def has_work(self) -> bool:
        """Whether a device worked for any time, so that its steps have a wall clock that something could save."""
        return bool(self.total[:, : COPY + 1].any())

    @property
    def windows(self) -> tuple[Rows, Ints]:
        """The line of every window, and its time by kind."""
        return _joined([(one.windows.line, one.lines[0].size, one.by_kind) for one in self.reports])


def _joined(reports: list[tuple[Rows, int, Ints]]) -> tuple[Rows, Ints]:
    """Windows of several reports, the lines of each behind those of the ones before."""
    line, lines, by_kind = zip(*reports, strict=True)
    before = np.cumsum([0, *lines[:-1]]).tolist()
    return np.concatenate([own + at for own, at in zip(line, before, strict=True)]), np.concatenate(by_kind)


def summed(dataset: Dataset, *, waits: bool = True) -> Budgets:
    """The budgets of all reports, with one of them in memory at a time; ``waits`` as for :func:`each`."""
    modules, reports = hierarchy(dataset), []
    paths = ["", *patterns(modules)]
    names = [*dict.fromkeys(paths)]
    name_of = np.array([*map({name: at for at, name in enumerate(names)}.__getitem__, paths)])
    total = np.zeros((len(names), len(KINDS)), np.int64)
    for part, found in each(dataset, modules, waits=waits):
        lines, line = found.lines[0].size, found.windows.line[found.pieces.window]
        by_name = found.of(line * len(names) + name_of[found.pieces.module + 1], lines * len(names))
        by_name = by_name.reshape(lines, len(names), len(KINDS))
        total += by_name.sum(axis=0)
        own = by_name.sum(axis=2) - by_name[..., MEETS].sum(axis=2)
        reports.append(Summed(part, found.lines, found.windows, found.by_kind(), own))
    return Budgets(names, total, reports)


#: How many modules :func:`overview` names for each kind.
_LEADING, _LEAST_SHARE = 3, 0.01


def overview(dataset: Dataset) -> Columns:
    """The budget by kind, for people: the kinds add up to a step as :mod:`tracekit.steptime.windows` has it.

    Returns:
        A row per kind that occurs, in the order of ``KINDS``: ``kind``, ``step_ns`` (in a step), ``share`` (of that),
        ``total_share`` (of all windows together) and ``leading``: the modules, or layers that are alike, with most of
        its time in all windows, each with its share of that.
    """
    return of_kinds(summed(dataset))


def windows(budgets: Budgets) -> Columns:
    """The ``step_id`` and ``window_ns`` of the windows of every process and device in order."""
    step_id = np.concatenate([one.windows.step for one in budgets.reports])
    return with_nulls({"step_id": step_id, "window_ns": budgets.windows[1].sum(axis=1)}, ["step_id"])


def of_kinds(budgets: Budgets) -> Columns:
    """The :func:`overview` of budgets."""
    line, windows = budgets.windows
    step_ns, every = steady(line, windows).means(line, windows)[-1], windows.sum(axis=0)
    used = np.flatnonzero(every)
    leading = np.fromiter((_leading(budgets.names, budgets.total[:, kind]) for kind in used), object, used.size)
    return {
        "kind": np.array(KINDS, object)[used],
        "step_ns": step_ns[used],
        "share": step_ns[used] / max(1, step_ns.sum()),
        "total_share": every[used] / max(1, every.sum()),
        "leading": leading,
    }


def _leading(names: list[str], times: Ints) -> list[tuple[str, float]]:
    first = [(names[at] or "(outside)", times[at] / times.sum()) for at in np.argsort(-times, kind="stable")[:_LEADING]]
    return [(name, float(share)) for name, share in first if share >= _LEAST_SHARE]


def by_window(dataset: Dataset) -> tuple[Rows, Ints]:
    """A number for the process and device of every window, and its time by kind, in the order of ``KINDS``."""
    found = (found for _, found in each(dataset, None))
    return _joined([(one.windows.line, one.lines[0].size, one.by_kind()) for one in found])


def step_lengths(dataset: Dataset) -> Iterator[tuple[Dataset, Ints, Ints]]:
    """For every report the step of each window, -1 if none is known, and how long it lasts in ns."""
    for part in _reports(dataset):
        windows = _work_of(part, None, waits=False)[1]
        yield part, windows.step, windows.end - windows.start


def waits_of_streams(dataset: Dataset) -> tuple[int, int]:
    """How many waits of streams there are, and of how many it is not known what they wait for."""
    number, unknown = 0, 0
    for part in dataset.by_report():
        calls = part.table("api_calls", ["name", "kernel_id"])
        names = labels(calls, "name")
        known = integers(calls, "kernel_id")[np.isin(names.code, names.containing("streamwaitevent"))] >= 0
        number, unknown = number + known.size, unknown + int((~known).sum())
    return number, unknown


class Found(NamedTuple):
    """The budget of a report; ``lines`` are the processes and devices of ``windows.line``."""

    lines: tuple[Ints, ...]
    windows: Windows
    pieces: Pieces

    def by_kind(self) -> Ints:
        """The time of each window by kind."""
        return self.of(self.pieces.window, self.windows.start.size)

    def of(self, row: Rows, rows: int) -> Ints:
        """The time of pieces by kind, added up in so many rows."""
        cell = row.astype(np.int64) * len(KINDS) + self.pieces.kind
        return sums(cell, self.pieces.ns, rows * len(KINDS)).reshape(rows, len(KINDS))


def _reports(dataset: Dataset) -> Iterator[Dataset]:
    if dataset.root is not None:
        raise UsageError("a budget is of whole devices; ask the whole dataset, without --path")
    return dataset.by_report()


def each(dataset: Dataset, modules: Hierarchy | None, *, waits: bool = True) -> Iterator[tuple[Dataset, Found]]:
    """The budget of every report, by module if these are given; without ``waits`` for last ranks it needs no clocks."""
    return ((part, _of_one(part, modules, waits)) for part in _reports(dataset))


def _of_one(dataset: Dataset, modules: Hierarchy | None, waits: bool) -> Found:  # noqa: FBT001
    work, windows = _work_of(dataset, modules, waits)
    parts, ended = [], np.append(NEVER, np.maximum.accumulate(work.end))
    # Work that begins when all before it has ended has nothing to do with that.
    apart = np.flatnonzero(work.start >= ended[:-1])
    firsts = apart.take(np.searchsorted(apart, np.arange(PORTION, work.start.size, PORTION)), mode="clip")
    for rows in np.split(np.arange(work.start.size), np.unique(firsts)):
        for begin, until, kind, module in _busy(work, rows):
            window, row, start, end = _inside(windows, begin, until)
            parts.append(Pieces(window, kind[row], module[row], end - start))
    begun = np.append(work.start, windows.end.max(initial=NEVER))
    next_ = np.flatnonzero(begun > ended)
    window, row, start, end = _inside(windows, ended[next_], begun[next_])
    parts += _idle_pieces(dataset, modules, work, windows, (window, start, end, next_[row]))
    return Found(work.lines, windows, Pieces(*(np.concatenate(column) for column in zip(*parts, strict=True))))


def _inside(windows: Windows, start: Ints, end: Ints) -> tuple[Rows, Rows, Ints, Ints]:
    """Stretches of time, cut into those of single windows: the window, the row of the stretch, start and end."""
    row, window = members(np.searchsorted(windows.end, start, "right"), np.searchsorted(windows.start, end))
    start, end = np.maximum(start[row], windows.start[window]), np.minimum(end[row], windows.end[window])
    lasts = np.flatnonzero(end > start)
    return window[lasts].astype(np.int32), row[lasts], start[lasts], end[lasts]


def _work_of(dataset: Dataset, modules: Hierarchy | None, waits: bool) -> tuple[Work, Windows]:  # noqa: FBT001
    table = dataset.table("kernels", _READ)
    rows = np.flatnonzero(~labels(table, "kind").among("cpu_op"))
    keys = [integers(table, name)[rows] for name in ("kernel_id", "start_ns", "device", "pid")]
    table = in_order(table, rows[np.lexsort(keys)])
    kind = np.full(table.num_rows, COMPUTE, np.int8)
    kind[labels(table, "kind").among("memcpy", "memset")] = COPY
    kind[collectives_in(table)] = COMMUNICATION
    ids = [integers(table, name).astype(np.int64) for name in ("pid", "device")]
    line, first = grouped(ids)
    step, begun, ended = (integers(table, name) for name in ("step_id", "start_ns", "end_ns"))
    windows = windows_of(line, step, begun, ended, host_steps(dataset))
    start, end, *borders = axis_of(dataset, [line, line, *[windows.line] * 2], [begun, ended, *windows[-2:]])
    meets = line[kind == COMMUNICATION] if waits else line[:0]
    arrived = start + _waited(dataset, meets, integers(table, "kernel_id"))
    module = (np.full(line.size, -1) if modules is None else modules.rows(table)).astype(np.int32)
    launch = [integers(table, f"launch_{name}_ns", NEVER) for name in ("start", "end")]
    times = ((start - begun)[first], start, end, np.minimum(arrived, end))
    lines = tuple(values[first] for values in ids)
    work = Work(table.select(_FURTHER), line, lines, *times, kind, module, thread_keys(table), *launch)
    return work, windows._replace(start=borders[0], end=borders[1])


def _waited(dataset: Dataset, lines: Rows, kernel_id: Ints) -> Ints:
    """How long each kernel waited for the last rank of its collective; 0 where it is not proven who took part."""
    if not lines.size or (lines.min() == lines.max() and not has_ranks(dataset.with_all_reports)):
        return np.zeros(kernel_id.size, np.int64)
    if WAITED not in dataset.known_of_all:
        dataset.known_of_all[WAITED] = ranks_of(dataset.with_all_reports).meetings.kernels()[::2]
    kernel, waited = dataset.known_of_all[WAITED]
    return lookup(waited, positions(kernel_id, kernel), missing=0)


def has_ranks(dataset: Dataset) -> bool:
    """Whether there are several processes, which may wait for each other."""
    return sum(len(report["processes"]) for report in dataset.entries) > 1


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
    kind, module = np.full(start.size, -1, np.int8), np.full(start.size, -1, np.int32)
    for of_kind in (COMPUTE, COMMUNICATION, COPY):
        own, idle = rows[work.kind[rows] == of_kind], np.flatnonzero(kind < 0)
        running = _running(work.start[own], work.end[own], start[idle])
        some = running >= 0
        kind[idle[some]], module[idle[some]] = of_kind, work.module[own[running[some]]]
    own = rows[work.kind[rows] == COMMUNICATION]
    kind[(kind == COMMUNICATION) & ~covered(work.arrived[own], work.end[own]).hold(start)] = WAIT
    busy = np.flatnonzero(kind >= 0)
    return start[busy], end[busy], kind[busy], module[busy]


def _running(start: Ints, end: Ints, at: Ints) -> Rows:
    """For each time, the row that started last of those that run then, or -1; rows all last and are sorted by start."""
    order = start.size - 1 - np.argsort(start[::-1], kind="stable")
    found = innermost(start[order], end[order], parents(start[order], end[order])[0], at, at + 1)
    return lookup(order, found)


# What devices waited for while they were idle.


def _idle_pieces(
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
    kind = _kinds_after_launch(dataset, work, next_[after], until[after])
    kind[lost[after]] = _UNKNOWN
    on_host = (window[host], start[host], until[host], thread[host], np.full(host.size, -1, np.int8))
    waiting = (window[after], until[after], end[after], thread[after], kind)
    return _on_threads(dataset, [*map(np.append, on_host, waiting)], _done_by_threads(dataset, modules, work))


def _kinds_after_launch(dataset: Dataset, work: Work, rows: Rows, since: Ints) -> Ints:
    """What the device waited for, since when it was idle and the launch of each of some work had returned."""
    names = labels(work.table, "launch_name")
    node = from_graph(work.table) | np.isin(names.code, names.containing("graphlaunch"))
    node &= ~labels(work.table, "kind").among("graph")
    before = reach(work.end)[1][rows - 1]
    same = node[before] & node[rows] & (rows > 0)
    for values in (work.launched, work.thread, work.line):
        same &= values[before] == values[rows]
    return np.select([same, _depends(dataset, work, rows, since)], [_GRAPH, _DEPENDENCY], _LATENCY).astype(np.int8)


def _depends(dataset: Dataset, work: Work, rows: Rows, since: Ints) -> Flags:
    """Whether a stream that starts some work was made to wait for other work, which did not end before some times."""
    calls = dataset.table("api_calls", ["pid", "context", "stream", "start_ns", "kernel_id"])
    waiting, awaited = awaited_by_streams(work.table, calls)
    ended = maxima(waiting, integers(work.table, "end_ns")[awaited], work.line.size)
    return np.asarray(ended[rows] >= since)


def awaited_by_streams(kernels: pa.Table, calls: pa.Table) -> tuple[Rows, Rows]:
    """For every wait of a stream that is known: the first work launched there later, and the work that it waits for."""
    awaited, stream = positions(integers(calls, "kernel_id"), integers(kernels, "kernel_id")), integers(calls, "stream")
    rows = np.flatnonzero((awaited >= 0) & (stream >= 0))
    both = ((integers(calls, name)[rows], integers(kernels, name)) for name in ("pid", "context", "stream"))
    group, _ = grouped([np.concatenate(columns).astype(np.int64) for columns in both])
    time = np.append(integers(calls, "start_ns")[rows], integers(kernels, "launch_start_ns", NEVER))
    by_stream = np.lexsort((time, group))
    # Waits stand before work, so that they come first where both are at one time.
    works = np.where(by_stream < rows.size, time.size, np.arange(time.size))
    place = np.empty(time.size, np.int64)
    place[by_stream] = np.minimum.accumulate(works[::-1])[::-1]
    first = np.append(by_stream, -1)[place[: rows.size]]
    some = (first >= 0) & (group[first] == group[: rows.size])
    return first[some] - rows.size, awaited[rows[some]]


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
    """Idle stretches (window, start, end, thread, and kind or -1), cut wherever a thread begins or ends something."""
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
    return _Spans(*host_spans(table), np.full(table.num_rows, -1, np.int8))

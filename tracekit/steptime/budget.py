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

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tracekit.aggregates.subtrees import Hierarchy, hierarchy, patterns
from tracekit.aggregates.weighted_kernels import axis_of
from tracekit.arrays.codes import lookup, positions
from tracekit.arrays.columns import together, with_nulls
from tracekit.arrays.groups import grouped, maxima, sums, sums_by
from tracekit.arrays.intervals import covered, cut, distinct_times, innermost, nesting_order, parents, reach
from tracekit.arrays.slices import members
from tracekit.arrays.types import Columns, Ints, Rows
from tracekit.dataset.opening import Dataset
from tracekit.errors import UsageError
from tracekit.ranks.meetings import ranks_of
from tracekit.steptime.timeline import NEVER, Spans, Timeline, Work, timeline_of, work_of
from tracekit.steptime.windows import Windows, host_steps, steady, windows_of

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
#: So many stretches of time are worked on at once: memory does not grow with their number, and caches serve.
PORTION = 1 << 16
#: The key under which a dataset keeps what its work waited for, of all reports.
WAITED = "budget"
IDS = ("pid", "device", "step_id")


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
    return (_columns(dataset, found, modules) for found in each(dataset, modules))


def _columns(dataset: Dataset, found: Found, modules: Hierarchy) -> Columns:
    (window, kind, module), (ns,) = sums_by(found.pieces[:3], found.pieces[3:])
    order = np.lexsort((-ns, window))
    window, kind, module, ns = (column[order] for column in (window, kind, module, ns))
    window_ns = (found.windows.end - found.windows.start)[window]
    answer = {"report": np.full(window.size, found.part.reports[0], object)} if dataset.reports else {}
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
        return together_by_kind((one.windows, one.by_kind) for one in self.reports)


def together_by_kind(reports: Iterable[tuple[Windows, Ints]]) -> tuple[Rows, Ints]:
    """Windows of several reports, the lines of each behind those of the ones before."""
    windows, by_kind = zip(*reports, strict=True)
    before = np.cumsum([0, *(own.line.max(initial=-1) + 1 for own in windows[:-1])])
    return np.concatenate([own.line + at for own, at in zip(windows, before, strict=True)]), np.concatenate(by_kind)


def summed(dataset: Dataset, *, waits: bool = True) -> Budgets:
    """The budgets of all reports, with one of them in memory at a time; ``waits`` as for :func:`each`."""
    modules, reports = hierarchy(dataset), []
    paths = ["", *patterns(modules)]
    names = [*dict.fromkeys(paths)]
    name_of = np.array([*map({name: at for at, name in enumerate(names)}.__getitem__, paths)])
    total = np.zeros((len(names), len(KINDS)), np.int64)
    for found in each(dataset, modules, waits=waits):
        lines, line = found.lines[0].size, found.windows.line[found.pieces.window]
        by_name = found.of(line * len(names) + name_of[found.pieces.module + 1], lines * len(names))
        by_name = by_name.reshape(lines, len(names), len(KINDS))
        total += by_name.sum(axis=0)
        own = by_name.sum(axis=2) - by_name[..., MEETS].sum(axis=2)
        reports.append(Summed(found.part, found.lines, found.windows, found.by_kind(), own))
    return Budgets(names, total, reports)


#: How many modules :func:`overview` names for each kind.
_LEADING, _LEAST_SHARE = 3, 0.01


def overview(dataset: Dataset) -> Columns:
    """The budget by kind, for people: the kinds add up to a step as :mod:`tracekit.steptime.windows` has it.

    Returns:
        A row per kind that occurs, in the order of ``KINDS``: ``kind``, ``step_ns`` (in a step), ``share`` (of that),
        ``total_share`` (of all windows together), ``windows`` (of how many ``step_ns`` is the mean) and ``leading``:
        the modules, or layers that are alike, with most of its time in all windows, each with its share of that.
    """
    return of_kinds(summed(dataset))


def windows(budgets: Budgets) -> Columns:
    """The ``step_id`` and ``window_ns`` of the windows of every process and device in order."""
    step_id = np.concatenate([one.windows.step for one in budgets.reports])
    return with_nulls({"step_id": step_id, "window_ns": budgets.windows[1].sum(axis=1)}, ["step_id"])


def of_kinds(budgets: Budgets) -> Columns:
    """The :func:`overview` of budgets."""
    line, windows = budgets.windows
    counted = steady(line, windows)
    step_ns, every = counted.means(line, windows)[-1], windows.sum(axis=0)
    used = np.flatnonzero(every)
    leading = np.fromiter((_leading(budgets.names, budgets.total[:, kind]) for kind in used), object, used.size)
    return {
        "kind": np.array(KINDS, object)[used],
        "step_ns": step_ns[used],
        "share": step_ns[used] / max(1, step_ns.sum()),
        "total_share": every[used] / max(1, every.sum()),
        "windows": np.full(used.size, counted.number.sum()),
        "leading": leading,
    }


def _leading(names: list[str], times: Ints) -> list[tuple[str, float]]:
    first = [(names[at] or "(outside)", times[at] / times.sum()) for at in np.argsort(-times, kind="stable")[:_LEADING]]
    return [(name, float(share)) for name, share in first if share >= _LEAST_SHARE]


def step_lengths(dataset: Dataset) -> Iterator[tuple[Dataset, Ints, Ints]]:
    """For every report the step of each window, -1 if none is known, and how long it lasts in ns."""
    for part in _reports(dataset):
        work = work_of(part, None)[2]
        windows = windows_of(work.line, work.step, work.start, work.end, host_steps(part))
        yield part, windows.step, windows.end - windows.start


class Found(NamedTuple):
    """The budget of a report; ``lines`` are the processes and devices of ``windows.line``."""

    part: Dataset
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


def each(dataset: Dataset, modules: Hierarchy | None, *, waits: bool = True) -> Iterator[Found]:
    """The budget of every report, by module if these are given; without ``waits`` for last ranks it needs no clocks."""
    for part in _reports(dataset):
        own = timeline_of(part, modules)
        yield divided(part, own, _waited(part, own.work) if waits else _NO_WAITS)


def divided(dataset: Dataset, timeline: Timeline, waited: tuple[Ints, Ints]) -> Found:
    """The budget of a report, given the kernels of collectives and how long each waited for the last rank."""
    placed = _placed(dataset, timeline, waited)
    work, windows = placed.work, placed.windows
    parts, ended = [], np.append(NEVER, np.maximum.accumulate(work.end))
    # Work that begins when all before it has ended has nothing to do with that.
    apart = np.flatnonzero(work.start >= ended[:-1])
    firsts = apart.take(np.searchsorted(apart, np.arange(PORTION, work.start.size, PORTION)), mode="clip")
    for rows in np.split(np.arange(work.start.size), np.unique(firsts)):
        for begin, until, kind, module in _busy(placed, rows):
            window, row, start, end = _inside(windows, begin, until)
            parts.append(Pieces(window, kind[row], module[row], end - start))
    begun = np.append(work.start, windows.end.max(initial=NEVER))
    next_ = np.flatnonzero(begun > ended)
    window, row, start, end = _inside(windows, ended[next_], begun[next_])
    parts += _idle_pieces(dataset, timeline, placed, (window, start, end, next_[row]))
    pieces = Pieces(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    return Found(dataset, timeline.lines, windows, pieces)


class _Placed(NamedTuple):
    """Work and windows with the times of all lines on one axis."""

    work: Work
    kind: Ints
    arrived: Ints  # when the last rank had begun a collective, where that is proven, else the start
    windows: Windows
    ahead: Ints  # what the axis of each line adds to times


def _placed(dataset: Dataset, timeline: Timeline, waited: tuple[Ints, Ints]) -> _Placed:
    work = timeline.work
    windows = windows_of(work.line, work.step, work.start, work.end, timeline.steps)
    times = [work.start, work.end, windows.start, windows.end]
    start, end, begin, until = axis_of(dataset, [work.line, work.line, windows.line, windows.line], times)
    kind = np.select([work.communicates, work.copies], [COMMUNICATION, COPY], COMPUTE).astype(np.int8)
    kernel, ns = waited
    arrived = np.minimum(start + lookup(ns, positions(work.kernel, kernel), missing=0), end)
    ahead = np.zeros(timeline.lines[0].size, np.int64)
    ahead[work.line] = start - work.start
    work, windows = work._replace(start=start, end=end), windows._replace(start=begin, end=until)
    return _Placed(work, kind, arrived, windows, ahead)


def _inside(windows: Windows, start: Ints, end: Ints) -> tuple[Rows, Rows, Ints, Ints]:
    """Stretches of time, cut into those of single windows: the window, the row of the stretch, start and end."""
    row, window = members(np.searchsorted(windows.end, start, "right"), np.searchsorted(windows.start, end))
    start, end = np.maximum(start[row], windows.start[window]), np.minimum(end[row], windows.end[window])
    lasts = np.flatnonzero(end > start)
    return window[lasts].astype(np.int32), row[lasts], start[lasts], end[lasts]


#: No kernels of collectives, and how long these waited.
_NO_WAITS = (np.zeros(0, np.int64), np.zeros(0, np.int64))


def _waited(dataset: Dataset, work: Work) -> tuple[Ints, Ints]:
    """The kernels of collectives of which it is proven who took part, and how long each waited for the last rank."""
    lines = work.line[work.communicates]
    if not lines.size or (lines.min() == lines.max() and not has_ranks(dataset.with_all_reports)):
        return _NO_WAITS
    if WAITED not in dataset.known_of_all:
        dataset.known_of_all[WAITED] = ranks_of(dataset.with_all_reports).meetings.kernels()[::2]
    waited: tuple[Ints, Ints] = dataset.known_of_all[WAITED]
    return waited


def has_ranks(dataset: Dataset) -> bool:
    """Whether there are several processes, which may wait for each other."""
    return sum(len(report["processes"]) for report in dataset.entries) > 1


def _busy(placed: _Placed, rows: Rows) -> Iterator[tuple[Ints, Ints, Ints, Rows]]:
    """When devices work: start, end, kind and module of work that runs alone, and of stretches in which several do."""
    work = placed.work
    rows = rows[work.end[rows] > work.start[rows]]
    start, end = work.start[rows], work.end[rows]
    apart = start >= np.append(NEVER, np.maximum.accumulate(end))[:-1]
    alone = apart & np.append(apart[1:], True) & (placed.arrived[rows] <= start)
    yield start[alone], end[alone], placed.kind[rows[alone]], work.module[rows[alone]]
    yield _together(placed, rows[~alone])


def _together(placed: _Placed, rows: Rows) -> tuple[Ints, Ints, Ints, Rows]:
    """The stretches of work that may overlap, cut wherever some starts or ends."""
    work, arrived = placed.work, placed.arrived
    edges = distinct_times((work.start[rows], work.end[rows], arrived[rows]))
    start, end = edges[:-1], edges[1:]
    kind, module = np.full(start.size, -1, np.int8), np.full(start.size, -1, np.int32)
    for of_kind in (COMPUTE, COMMUNICATION, COPY):
        own, idle = rows[placed.kind[rows] == of_kind], np.flatnonzero(kind < 0)
        running = _running(work.start[own], work.end[own], start[idle])
        some = running >= 0
        kind[idle[some]], module[idle[some]] = of_kind, work.module[own[running[some]]]
    own = rows[placed.kind[rows] == COMMUNICATION]
    kind[(kind == COMMUNICATION) & ~covered(arrived[own], work.end[own]).hold(start)] = WAIT
    busy = np.flatnonzero(kind >= 0)
    return start[busy], end[busy], kind[busy], module[busy]


def _running(start: Ints, end: Ints, at: Ints) -> Rows:
    """For each time, the row that started last of those that run then, or -1; rows all last and are sorted by start."""
    order = start.size - 1 - np.argsort(start[::-1], kind="stable")
    found = innermost(start[order], end[order], parents(start[order], end[order])[0], at, at + 1)
    return lookup(order, found)


# What devices waited for while they were idle.


def _idle_pieces(dataset: Dataset, timeline: Timeline, placed: _Placed, idle: Sequence[Ints]) -> Iterator[Pieces]:
    """What each idle stretch was spent on, given its window, start, end and the work that starts next."""
    work, windows, (window, start, end, next_) = placed.work, placed.windows, idle
    columns = work.start, work.thread, work.launched, work.returned
    begins, thread, launched, returned = (np.append(column, NEVER)[next_] for column in columns)
    # At the end of the last window nothing comes next: what the thread of the step does counts.
    last = (next_ == work.start.size) | (begins >= windows.end[window])
    lost = ~last & (launched == NEVER)
    thread = np.where(last, windows.thread[window], np.where(lost, NEVER, thread))
    # Threads have the times of the clock.
    start, end = (times - placed.ahead[windows.line[window]] for times in (start, end))
    until = np.where(last, end, np.where(lost, start, np.clip(returned, start, end)))
    host, after = np.flatnonzero(start < until), np.flatnonzero(until < end)
    kind = _kinds_after_launch(timeline, work, next_[after], until[after])
    kind[lost[after]] = _UNKNOWN
    on_host = (window[host], start[host], until[host], thread[host], np.full(host.size, -1, np.int8))
    waiting = (window[after], until[after], end[after], thread[after], kind)
    return _on_threads(dataset, [*map(np.append, on_host, waiting)], timeline)


def _kinds_after_launch(timeline: Timeline, work: Work, rows: Rows, since: Ints) -> Ints:
    """What the device waited for, since when it was idle and the launch of each of some work had returned."""
    before = reach(work.end)[1][rows - 1]
    same = work.from_replay[before] & work.from_replay[rows] & (rows > 0)
    for values in (work.launched, work.thread, work.line):
        same &= values[before] == values[rows]
    waiting, awaited = timeline.awaited
    ended = maxima(waiting, timeline.work.end[awaited], work.line.size)
    return np.select([same, ended[rows] >= since], [_GRAPH, _DEPENDENCY], _LATENCY).astype(np.int8)


def _on_threads(dataset: Dataset, gaps: Sequence[Ints], timeline: Timeline) -> Iterator[Pieces]:
    """Idle stretches (window, start, end, thread, and kind or -1), cut wherever a thread begins or ends something."""
    window, start, end, thread, kind = gaps
    thread, first = grouped((thread,))
    work = timeline.work
    launched = np.flatnonzero(work.launched != NEVER)
    launches = Spans(*(column[launched] for column in (work.thread, work.launched, work.returned, work.module)))
    # By ``_STATES``, and last the calls of modules.
    done = [timeline.waits, timeline.others, launches, *timeline.phases, timeline.calls]
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

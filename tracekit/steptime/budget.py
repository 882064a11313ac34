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

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tracekit.aggregates.subtrees import Hierarchy, hierarchy, patterns
from tracekit.aggregates.weighted_kernels import axis_of
from tracekit.arrays.codes import labels, lookup, positions
from tracekit.arrays.columns import in_order, integers, together, with_nulls
from tracekit.arrays.groups import grouped, sums, sums_by
from tracekit.arrays.intervals import covered, distinct_times, innermost, parents
from tracekit.arrays.slices import members
from tracekit.arrays.types import Columns, Ints, Rows
from tracekit.dataset.opening import Dataset
from tracekit.errors import UsageError
from tracekit.ranks.collectives import collectives_in
from tracekit.ranks.meetings import ranks_of
from tracekit.steptime import idle_time
from tracekit.steptime.idle_time import KINDS as KINDS, NEVER, PORTION, Pieces, Work
from tracekit.steptime.windows import Windows, host_steps, steady, thread_keys, windows_of

#: The key under which a dataset keeps what its work waited for, of all reports.
WAITED = "budget"
IDS = ("pid", "device", "step_id")
_FURTHER = ["kernel_id", "kind", "pid", "context", "stream", "start_ns", "end_ns", "launch_name"]
_FURTHER += ["graph_id", "graph_node_id"]
_READ = ["module_id", "tid", "step_id", "device", "collective", "launch_start_ns", "launch_end_ns", *_FURTHER]


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
        own = by_name.sum(axis=2) - by_name[..., idle_time.MEETS].sum(axis=2)
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
    calls = (part.table("api_calls", ["name", "kernel_id"]) for part in dataset.by_report())
    known = np.concatenate([integers(one, "kernel_id")[idle_time.waits_of_streams(one)] >= 0 for one in calls])
    return known.size, int((~known).sum())


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
    parts += idle_time.idle_pieces(dataset, modules, work, windows, (window, start, end, next_[row]))
    return Found(work.lines, windows, Pieces(*(np.concatenate(column) for column in zip(*parts, strict=True))))


def _inside(windows: Windows, start: Ints, end: Ints) -> tuple[Rows, Rows, Ints, Ints]:
    """Stretches of time, cut into those of single windows: the window, the row of the stretch, start and end."""
    row, window = members(np.searchsorted(windows.end, start, "right"), np.searchsorted(windows.start, end))
    start, end = np.maximum(start[row], windows.start[window]), np.minimum(end[row], windows.end[window])
    lasts = np.flatnonzero(end > start)
    return window[lasts].astype(np.int32), row[lasts], start[lasts], end[lasts]


def _work_of(dataset: Dataset, modules: Hierarchy | None, waits: bool) -> tuple[Work, Windows]:  # noqa: FBT001
    table = _of_devices(dataset.table("kernels", _READ))
    kind = np.full(table.num_rows, idle_time.COMPUTE, np.int8)
    kind[labels(table, "kind").among("memcpy", "memset")] = idle_time.COPY
    kind[collectives_in(table)] = idle_time.COMMUNICATION
    ids = [integers(table, name).astype(np.int64) for name in ("pid", "device")]
    line, first = grouped(ids)
    step, begun, ended = (integers(table, name) for name in ("step_id", "start_ns", "end_ns"))
    windows = windows_of(line, step, begun, ended, host_steps(dataset))
    start, end, *borders = axis_of(dataset, [line, line, *[windows.line] * 2], [begun, ended, *windows[-2:]])
    meets = line[kind == idle_time.COMMUNICATION] if waits else line[:0]
    arrived = start + _waited(dataset, meets, integers(table, "kernel_id"))
    module = (np.full(line.size, -1) if modules is None else modules.rows(table)).astype(np.int32)
    launch = [integers(table, f"launch_{name}_ns", NEVER) for name in ("start", "end")]
    times = ((start - begun)[first], start, end, np.minimum(arrived, end))
    lines = tuple(values[first] for values in ids)
    work = Work(table.select(_FURTHER), line, lines, *times, kind, module, thread_keys(table), *launch)
    return work, windows._replace(start=borders[0], end=borders[1])


def _of_devices(table: pa.Table) -> pa.Table:
    """The work of devices by process, device, start and id, in which order most of it is."""
    rows = np.flatnonzero(~labels(table, "kind").among("cpu_op"))
    keys = [integers(table, name)[rows] for name in ("kernel_id", "start_ns", "device", "pid")]
    return in_order(table, rows[np.lexsort(keys)])


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
    for of_kind in (idle_time.COMPUTE, idle_time.COMMUNICATION, idle_time.COPY):
        own, idle = rows[work.kind[rows] == of_kind], np.flatnonzero(kind < 0)
        running = _running(work.start[own], work.end[own], start[idle])
        some = running >= 0
        kind[idle[some]], module[idle[some]] = of_kind, work.module[own[running[some]]]
    own = rows[work.kind[rows] == idle_time.COMMUNICATION]
    kind[(kind == idle_time.COMMUNICATION) & ~covered(work.arrived[own], work.end[own]).hold(start)] = idle_time.WAIT
    busy = np.flatnonzero(kind >= 0)
    return start[busy], end[busy], kind[busy], module[busy]


def _running(start: Ints, end: Ints, at: Ints) -> Rows:
    """For each time, the row that started last of those that run then, the first of several; or -1.

    Rows are sorted by start, and all last.
    """
    order = start.size - 1 - np.argsort(start[::-1], kind="stable")
    found = innermost(start[order], end[order], parents(start[order], end[order])[0], at, at + 1)
    return lookup(order, found)

"""What would change the time of a step: a model of its dependencies, asked with changes.

``recorded`` reads what a report holds of calls, work and waits, ``model`` makes tasks of them, ``changes`` changes
these, and ``model`` gives the times then, which without changes are those that were measured. The answer is the budget
of the dataset with these times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.aggregates.subtrees import Hierarchy, hierarchy, patterns
from tracekit.arrays.codes import lookup, positions
from tracekit.arrays.columns import integers
from tracekit.arrays.groups import grouped, minima
from tracekit.arrays.types import Floats, Ints, Rows
from tracekit.dataset.opening import Dataset
from tracekit.errors import UsageError
from tracekit.ranks.meetings import Clock, Ranks, participations, ranks_of
from tracekit.steptime import budget
from tracekit.steptime.whatif.changes import Changes, Changing, Spans
from tracekit.steptime.whatif.model import Tasks, Times, arrivals, measured, simulated, tasks
from tracekit.steptime.whatif.recorded import NEVER, Recorded, joined, recorded
from tracekit.steptime.windows import host_spans, steady, thread_keys, windows_of

__all__ = ["Changes", "Prediction", "StepModel", "predict"]

_MEETS = ("communication", "communication_wait")
#: Up to which share of itself a range whose ends are equally likely has a time that tells it.
_TELLING = 0.03


@dataclass(frozen=True, slots=True)
class Prediction:
    """How long a step takes (see :mod:`tracekit.steptime.windows`) before and after changes, and its budget.

    Attributes:
        step_before_ns: As measured.
        step_after_ns: Under the model; None where only the range is known, by ``unproven`` or ``copies``.
        range_ns: The least and the most, where the report does not record all dependencies; else None.
        before: A row per kind of :mod:`tracekit.steptime.budget`: ``kind``, ``ns`` and ``share``.
        after: The same after the changes; empty where only the range is known.
        unproven: How many kernels of collectives there are of which not all ranks are known: these keep their waits.
        copies: How many copies take an unknown time with pinned memory.
        blocked: Patterns of the modules in which something waits for the device, so that no graph can be captured.
    """

    step_before_ns: int
    step_after_ns: int | None
    range_ns: tuple[int, int] | None
    before: list[dict[str, Any]]
    after: list[dict[str, Any]]
    unproven: int = 0
    copies: int = 0
    blocked: tuple[str, ...] = ()


class Report(NamedTuple):
    """A report, what it holds on its own ``clock``, and how many threads the reports before it have."""

    dataset: Dataset
    found: Recorded
    clock: Clock
    threads: int

    def spans(self, table: pa.Table) -> tuple[Rows, Ints, Ints]:
        """The thread of each row of a table in the model, or -1, and its start and end on the clock of that."""
        keys, start, end = host_spans(table)
        thread = positions(keys, self.found.threads)
        return np.where(thread >= 0, thread + self.threads, -1), self.clock.at(start), self.clock.at(end)


class StepModel:
    """The model of a dataset's steps: made once, asked often."""

    def __init__(self, dataset: Dataset, windows: tuple[Rows, Ints] | None = None) -> None:
        """Makes the model; ``windows`` are those of its :class:`~tracekit.steptime.budget.Budgets`, if known.

        Raises:
            UsageError: If the dataset is a subtree, or of a run without a GPU.
        """
        self._dataset, self._modules = dataset, hierarchy(dataset)
        windows = budget.by_window(dataset) if windows is None else windows
        #: Which windows count.
        self.steady = steady(*windows)
        self._before = _by_kind(self.steady.means(*windows)[-1])
        if not self._before:
            raise UsageError("no work of a GPU is in this dataset, so no step to predict")
        reports = [*dataset.by_report()]
        found = [recorded(report, self._modules) for report in reports]
        several = len(found) > 1 or budget.has_ranks(dataset) or found[0].work.line.max(initial=0) > 0
        ranks = ranks_of(dataset) if several else Ranks([[]], [], [Clock(0)], participations([[]], [Clock(0)]))
        threads = np.cumsum([0, *(one.threads.size for one in found[:-1])]).tolist()
        self.parts = [Report(*part) for part in zip(reports, found, ranks.clocks, threads, strict=True)]
        self._found = joined(found, [clock.at for clock in ranks.clocks])
        self._spans = _spans(self.parts, self._modules)
        kernel, number, _ = ranks.meetings.kernels()
        meeting = lookup(number, positions(self._found.work.kernel, kernel))
        streams = np.unique(self._found.work.stream).size > np.unique(self._found.work.context).size
        assumed = ["none"] if self._found.has_dependencies or not streams else ["late", "none", "all"]
        likely = not self._found.has_dependencies
        self._tasks = [tasks(self._found, meeting, assumed=one, waiting=likely) for one in assumed]
        self._unproven = self._found.work.collective & (meeting < 0)
        for one in {assumed[0], assumed[-1]} if (self._found.events.perhaps >= 0).any() else ():
            self._tasks.append(tasks(self._found, meeting, assumed=one, waiting=not likely))

    def predict(self, changes: Changes) -> Prediction:
        """What a step would take after changes.

        Raises:
            UsageError: If a pattern names no module, or no kernel.
        """
        changing = self.changing()
        after = self._budget(changing.apply(changes), changes)
        total = sum(row["ns"] for row in after)
        others = [total, *(self.step_ns(changes, one) for one in self._tasks[1:])]
        pinned = np.diff(self._found.work.pinned).any(axis=1) if changes.no_sync else np.zeros(0, bool)
        nodes = changes.as_graph and len({*self._tasks[0].node_after}) > 1
        extremes = [-1] * bool(pinned.any()) + [1] * bool(nodes)
        others += [self.step_ns(changes, one, extreme=extreme) for extreme in extremes for one in self._tasks]
        unproven = int(self._unproven.sum())
        unknown = self._unknown(changes, after) if unproven else []
        unknown += [self.step_ns(changes, extreme=-1)] if pinned.any() else []
        others += unknown
        names, events = ["*", *patterns(self._modules)], self._found.events
        blocked = {names[row + 1]: None for row in events.module[changing.preventing].tolist()}
        tells = changes.like_fastest_rank or all(abs(one - total) <= _TELLING * total for one in unknown)
        known = (min(others), max(others)) if len(others) > 1 else None
        return Prediction(
            step_before_ns=sum(self.before.values()),
            step_after_ns=total if tells else None,
            range_ns=known,
            before=self._before,
            after=after if tells else [],
            unproven=unproven,
            copies=int(pinned.sum()),
            blocked=tuple(blocked),
        )

    def step_ns(self, changes: Changes, model: Tasks | None = None, *, extreme: int = 0) -> int:
        """The likely time of :meth:`predict` alone, or under another model."""
        means = self._means(self.changing(model, extreme=extreme).apply(changes))
        return int(means[:-1].min() if changes.like_fastest_rank else means[-1])

    @property
    def before(self) -> dict[str, int]:
        """A step by kind of its budget."""
        return {row["kind"]: row["ns"] for row in self._before}

    @property
    def knows_dependencies(self) -> bool:
        """Whether the report records what streams wait for, or has no several streams."""
        return len(self._tasks) == 1

    def changing(self, model: Tasks | None = None, *, extreme: int = 0) -> Changing:
        """The model to be changed, with the likely dependencies where these are not recorded."""
        return Changing(self._found, model or self._tasks[0], self._modules, self._spans, extreme=extreme)

    def saved_ns(self, edit: Callable[[Changing], None], *, fastest: bool = False) -> int:
        """How much shorter a step is after a change; and if all ranks are like the one then fastest."""
        changing = self.changing()
        lasted = changing.tasks.lasts
        edit(changing)
        # Work that is gone begins no window.
        left = np.flatnonzero((changing.tasks.lasts > 0) | (lasted <= 0))
        means = self._means(changing.tasks, left)
        return sum(self.before.values()) - int(means[:-1].min() if fastest else means[-1])

    def _unknown(self, changes: Changes, after: list[dict[str, Any]]) -> list[int]:
        """How long the step may take, too, because nobody knows who waits for whom."""
        if not changes.like_fastest_rank:
            return [self._waiting_with_others(changes)]
        most = self.step_ns(replace(changes, like_fastest_rank=False))
        total = sum(row["ns"] for row in after)
        meets = sum(row["ns"] for row in after if row["kind"] in _MEETS)
        # At best all is as much faster as the fastest rank works less than the slowest.
        return [most, round(most * (total - meets) / max(1, most - meets))]

    def _waiting_with_others(self, changes: Changes) -> int:
        """The step where it changes as that of the slowest rank would alone, of whose collectives none waits."""
        model, rows = self._tasks[0], np.flatnonzero(self._unproven)
        group, first = grouped((self._found.work.name[rows],))
        lasts = model.lasts.copy()
        lasts[rows] = minima(group, lasts[rows], first.size)[group]  # the shortest did not wait
        alone = replace(model, lasts=lasts)
        before, after = (self._means(self.changing(alone).apply(one))[:-1].max() for one in (Changes(), changes))
        return round(sum(self.before.values()) * float(after) / max(1, int(before)))

    def _means(self, model: Tasks, rows: Rows | slice = slice(None)) -> Ints:
        """How long a step of some work takes, of each process and device and, the last one, of all."""
        times, work, events = simulated(model), self._found.work, self._found.events
        # Windows are told on the clocks of their reports.
        start, end = (
            np.concatenate([getattr(part.found.work, name) for part in self.parts]) - getattr(work, name) + moved
            for name, moved in (("start", times.start), ("end", times.end))
        )
        steps = self._found.steps_moved(times.event_start - events.start, times.event_end - events.end)
        windows = windows_of(work.line[rows], work.step[rows], start[rows], end[rows], steps)
        means: Ints = self.steady.means(windows.line, (windows.end - windows.start)[:, None])[:, 0]
        return means

    def _budget(self, model: Tasks, changes: Changes) -> list[dict[str, Any]]:
        times = simulated(model)
        moved = [after - before for after, before in zip(times, measured(self._found), strict=True)]
        parts, events, rows, waited = [], 0, 0, {budget.WAITED: self._waited(times, changes)}
        for part in self.parts:
            calls = slice(events, events + part.found.events.start.size)
            work = slice(rows, rows + part.found.work.start.size)
            by = Times(*(column[calls] for column in moved[:2]), *(column[work] for column in moved[2:]))
            event = np.where(model.event[work] >= 0, model.event[work] - events, -1)
            parts.append(_ShiftedReport(part, by, event, waited))
            events, rows = calls.stop, work.stop
        windows = budget.by_window(cast("Dataset", Altered(self._dataset, parts)))
        lines, every = np.split(self.steady.means(*windows), [-1])
        if not changes.like_fastest_rank:
            return _by_kind(every[0])
        return _by_kind(_like_fastest(lines) if self._unproven.any() else lines[lines.sum(axis=1).argmin()])

    def _waited(self, times: Times, changes: Changes) -> tuple[Ints, Ints]:
        """The kernels of collectives whose ranks are known, and how long each then waits for the last one."""
        meeting, work = self._tasks[0].meeting, self._found.work
        rows = np.flatnonzero(meeting >= 0)
        waited = arrivals(meeting, times.start)[meeting[rows]] - times.start[rows]
        waited *= not changes.like_fastest_rank
        return work.kernel[rows], waited


def predict(dataset: Dataset, changes: Changes) -> Prediction:
    """What a step would take after changes: ``StepModel(dataset).predict(changes)``, which raises the same."""
    return StepModel(dataset).predict(changes)


def _spans(parts: Sequence[Report], modules: Hierarchy) -> Spans:
    pieces = []
    for part in parts:
        calls = part.dataset.table("calls", ["module_id", "pid", "tid", "start_ns", "end_ns"])
        spans = Spans(*part.spans(calls), modules.rows(calls))
        pieces.append(Spans(*(column[spans.thread >= 0] for column in spans)))
    return Spans(*(np.concatenate(column) for column in zip(*pieces, strict=True)))


def _like_fastest(lines: Ints) -> Ints:
    """A step of the process and device that works the least, with the collectives of the one that waits least.

    So it is if all are like the fastest, without knowing who waits for whom.
    """
    meets = [budget.KINDS.index(kind) for kind in _MEETS]
    waiting = lines[:, meets].sum(axis=1)
    one: Ints = lines[(lines.sum(axis=1) - waiting).argmin()].copy()
    one[meets] = lines[waiting.argmin(), meets]
    return one


def _by_kind(step: Ints) -> list[dict[str, Any]]:
    total = max(1, int(step.sum()))
    pairs = zip(budget.KINDS, step.tolist(), strict=True)
    return [{"kind": kind, "ns": ns, "share": ns / total} for kind, ns in pairs if ns]


class Altered:
    """A dataset some tables of which are not as they were read: of each report, or put together from reports."""

    root = None

    def __init__(self, dataset: Dataset, parts: Sequence[Altered] = ()) -> None:
        self._dataset, self._parts = dataset, parts

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the dataset has
        return getattr(self._dataset, name)

    def by_report(self) -> Iterator[Altered]:
        """Its reports."""
        yield from self._parts or [self]


#: The columns of tables that hold times of the host, or of the device.
_TIMED = {
    **dict.fromkeys(("calls", "ranges", "steps"), ("start_ns", "end_ns")),
    **dict.fromkeys(("waits", "api_calls"), ("start_ns", "dur_ns")),
    "kernels": ("start_ns", "end_ns", "launch_start_ns", "launch_end_ns"),
}


class _ShiftedReport(Altered):
    """A report after changes.

    ``by`` is how far its times move, ``event`` the row of the call that then launches each work, or -1, and
    ``known_of_all`` what was worked out anew.
    """

    def __init__(self, report: Report, by: Times, event: Rows, known_of_all: dict[str, Any]) -> None:
        super().__init__(report.dataset)
        self._found, self._moved_by, self._event = report.found, by, event
        self.known_of_all = known_of_all

    def table(self, name: str, columns: Sequence[str]) -> pa.Table:
        """A table with the times after the changes."""
        if name not in _TIMED or not {*_TIMED[name]} & {*columns}:
            return self._dataset.table(name, columns)
        table = self._dataset.table(name, [*dict.fromkeys((*columns, *_TIMED[name], "pid", "tid"))])
        for column, values in zip(_TIMED[name], self._times(name, table), strict=True):
            at = table.column_names.index(column)
            null = np.asarray(table.column(column).is_null())
            table = table.set_column(at, table.schema.field(at), pa.array(values, pa.int64(), mask=null))
        return (self._replayed(table) if name == "kernels" else table).select(list(columns))

    def _replayed(self, table: pa.Table) -> pa.Table:
        """The kernels, of which those that a call now launches together are nodes of a graph."""
        events, moved_by = self._found.events, self._moved_by
        led = np.zeros(events.start.size + 1, dtype=bool)
        led[self._event[self._event != self._found.work.event]] = True
        call = lookup(np.where(led[self._event], self._event, -1), self._found.work_of)
        columns = {
            "launch_start_ns": lookup(events.start + moved_by.event_start, call),
            "launch_end_ns": lookup(events.end + moved_by.event_end, call),
            "graph_node_id": call,
        }
        for column in columns.keys() & {*table.column_names} if led.any() else ():
            at = table.column_names.index(column)
            values = pa.array(columns[column], table.schema.field(at).type)
            table = table.set_column(at, table.schema.field(at), pc.if_else(call >= 0, values, table.column(at)))
        return table

    def _times(self, name: str, table: pa.Table) -> Sequence[Ints]:
        """The columns ``_TIMED`` of a table after the changes."""
        by, keys, times = self._moved_by, thread_keys(table), [integers(table, at, NEVER) for at in _TIMED[name]]
        if name == "steps":
            return self._found.steps_moved(by.event_start, by.event_end)[2:]
        if name == "kernels":
            start, end = (lookup(moved, self._found.work_of, 0) for moved in (by.start, by.end))
            return [times[0] + start, times[1] + end, *(self._moved(keys, time) for time in times[2:])]
        if _TIMED[name][1] == "dur_ns":
            begin, until = self._moved(keys, times[0]), self._moved(keys, times[0] + times[1])
            return begin, until - begin
        return [self._moved(keys, time) for time in times]

    def _moved(self, keys: Ints, time: Ints) -> Ints:
        """Times on host threads: what lies within a CUDA call, or between two, keeps its share of that."""
        moved = time.copy()
        for key, (begin, edges, shifts) in self._edges.items():
            rows = np.flatnonzero((keys == key) & (time != NEVER))
            moved[rows] += np.rint(np.interp((time[rows] - begin).astype(float), edges, shifts)).astype(np.int64)
        return moved

    @cached_property
    def _edges(self) -> dict[int, tuple[int, Floats, Floats]]:
        """By thread, the first start, and since then the starts and ends of CUDA calls, and how far these move."""
        found, by, edges = self._found, self._moved_by, {}
        for number, key in enumerate(found.threads.tolist()):
            events = slice(*np.searchsorted(found.events.thread, (number, number + 1)))
            old = np.column_stack((found.events.start[events], found.events.end[events])).ravel()
            shifts = np.column_stack((by.event_start[events], by.event_end[events])).ravel()
            if old.size:
                edges[key] = int(old[0]), (old - old[0]).astype(float), shifts.astype(float)
        return edges

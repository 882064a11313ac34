"""What would change the time of a step: a model of its dependencies, asked with changes.

``recorded`` reads what a report holds of calls, work and waits, ``model`` makes tasks of them, ``changes`` changes
these, and ``model`` gives the times then, which without changes are those that were measured. The answer is the budget
of the dataset with these times.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from tracekit.aggregates.subtrees import hierarchy, patterns
from tracekit.aggregates.weighted_kernels import report_codes
from tracekit.arrays.codes import lookup, positions
from tracekit.arrays.groups import grouped, minima
from tracekit.arrays.types import Ints, Rows
from tracekit.dataset.opening import Dataset
from tracekit.errors import UsageError
from tracekit.ranks.meetings import Clock, Ranks, participations, ranks_of
from tracekit.steptime import budget
from tracekit.steptime.timeline import NEVER, Spans, Timeline, spans_of, timeline_of
from tracekit.steptime.whatif.changes import Changes, Changing
from tracekit.steptime.whatif.model import Tasks, Times, arrivals, measured, simulated, tasks
from tracekit.steptime.whatif.recorded import on_one_clock, recorded
from tracekit.steptime.windows import read, steady, windows_of

__all__ = ["Changes", "Prediction", "StepModel", "predict"]

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


class StepModel:
    """The model of a dataset's steps: made once, asked often."""

    def __init__(self, dataset: Dataset, windows: tuple[Rows, Ints] | None = None) -> None:
        """Makes the model; ``windows`` are those of its :class:`~tracekit.steptime.budget.Budgets`, if known.

        Raises:
            UsageError: If the dataset is a subtree, or of a run without a GPU.
        """
        self._dataset, self._modules = dataset, hierarchy(dataset)
        if windows is None:
            windows = budget.together_by_kind((one.windows, one.by_kind()) for one in budget.each(dataset, None))
        #: Which windows count.
        self.steady = steady(*windows)
        self._before = _by_kind(self.steady.means(*windows)[-1])
        if not self._before:
            raise UsageError("no work of a GPU is in this dataset, so no step to predict")
        self._recorded = recorded(dataset, self._modules)
        several = len(dataset.names) > 1 or budget.has_ranks(dataset) or self._recorded.work.line.any()
        ranks = ranks_of(dataset) if several else Ranks([[]], [], [Clock(0)], participations([[]], [Clock(0)]))
        self._clocks = ranks.clocks
        self._found = self._recorded.on_one_clock(self._clocks)
        calls = read(dataset, "calls", ["module_id", "pid", "tid", "start_ns", "end_ns"])
        spans = self.spans(calls)._replace(module=self._modules.rows(calls))
        self._calls = spans.at(spans.thread >= 0)
        kernel, number, _ = ranks.meetings.kernels()
        meeting = lookup(number, positions(self._found.work.kernel, kernel))
        streams = np.unique(self._found.work.stream).size > np.unique(self._found.work.context).size
        assumed = ["none"] if self._found.has_dependencies or not streams else ["late", "none", "all"]
        likely = not self._found.has_dependencies
        self._tasks = [tasks(self._found, meeting, assumed=one, waiting=likely) for one in assumed]
        self._unproven = self._found.work.collective & (meeting < 0)
        for one in {assumed[0], assumed[-1]} if (self._found.events.perhaps >= 0).any() else ():
            self._tasks.append(tasks(self._found, meeting, assumed=one, waiting=not likely))

    def spans(self, table: pa.Table) -> Spans:
        """The rows of a table as what threads of the model did, or -1, on its clock."""
        report, spans = report_codes(self._dataset, table), spans_of(table)
        thread = np.full(report.size, -1)
        for number in np.unique(report).tolist():
            own = np.flatnonzero(report == number)
            thread[own] = self._found.threads.of_report(number, spans.thread[own])
        start, end = (on_one_clock(self._clocks, report, time) for time in (spans.start, spans.end))
        return Spans(thread, start, end, spans.module)

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
        return Changing(self._found, model or self._tasks[0], self._modules, self._calls, extreme=extreme)

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
        kinds = {row["kind"]: row["ns"] for row in after}
        total = sum(kinds.values())
        meets = sum(kinds.get(budget.KINDS[kind], 0) for kind in budget.MEETS)
        # At best all is as much faster as the fastest rank works less than the slowest.
        return [most, round(most * (total - meets) / max(1, most - meets))]

    def _waiting_with_others(self, changes: Changes) -> int:
        """The step where it changes as that of the slowest rank would alone, of whose collectives none waits."""
        model, rows = self._tasks[0], np.flatnonzero(self._unproven)
        work = self._found.work
        group, first = grouped((work.report[rows], work.name[rows]))
        lasts = model.lasts.copy()
        lasts[rows] = minima(group, lasts[rows], first.size)[group]  # the shortest did not wait
        alone = replace(model, lasts=lasts)
        before, after = (self._means(self.changing(alone).apply(one))[:-1].max() for one in (Changes(), changes))
        return round(sum(self.before.values()) * float(after) / max(1, int(before)))

    def _means(self, model: Tasks, rows: Rows | slice = slice(None)) -> Ints:
        """How long a step of some work takes, of each process and device and, the last one, of all."""
        moved, work = self._moved(simulated(model)), self._recorded.work
        start, end = work.start + moved.start, work.end + moved.end
        steps = self._recorded.steps_moved(moved.event_start, moved.event_end)
        windows = windows_of(work.line[rows], work.step[rows], start[rows], end[rows], steps)
        means: Ints = self.steady.means(windows.line, (windows.end - windows.start)[:, None])[:, 0]
        return means

    def _moved(self, times: Times) -> Times:
        """How much later than measured times are."""
        return Times(*(after - before for after, before in zip(times, measured(self._found), strict=True)))

    def _budget(self, model: Tasks, changes: Changes) -> list[dict[str, Any]]:
        times = simulated(model)
        waited, moved = self._waited(times, changes), self._moved(times)
        reports = (
            budget.divided(part, self._after(timeline_of(part, None), report, model, moved), waited)
            for report, part in enumerate(self._dataset.by_report())
        )
        windows = budget.together_by_kind((one.windows, one.by_kind()) for one in reports)
        lines, every = np.split(self.steady.means(*windows), [-1])
        if not changes.like_fastest_rank:
            return _by_kind(every[0])
        return _by_kind(_like_fastest(lines) if self._unproven.any() else lines[lines.sum(axis=1).argmin()])

    def _after(self, before: Timeline, report: int, model: Tasks, moved: Times) -> Timeline:
        """What a report would hold after changes."""
        found, work = self._recorded, before.work
        later = self._later(report, moved)
        row = positions(work.kernel, found.work.kernel)
        # What calls now launch together are nodes of a graph.
        leads = np.zeros(found.events.start.size + 1, bool)
        leads[model.event[model.event != found.work.event]] = True
        call = np.where(leads[model.event], model.event, -1)[row]
        launched, returned = (
            np.where(call >= 0, lookup(time + by, call), later(work.thread, own))
            for time, by, own in (
                (found.events.start, moved.event_start, work.launched),
                (found.events.end, moved.event_end, work.returned),
            )
        )
        moved_work = work._replace(
            start=work.start + moved.start[row],
            end=work.end + moved.end[row],
            launched=launched,
            returned=returned,
            from_replay=work.from_replay | (call >= 0),
        )
        return before.with_work(moved_work)._replace(
            steps=found.steps_moved(moved.event_start, moved.event_end),
            waits=before.waits.moved(later),
            others=before.others.moved(later),
            phases=[spans.moved(later) for spans in before.phases],
        )

    def _later(self, report: int, moved: Times) -> Callable[[Ints, Ints], Ints]:
        """Moves times on threads of a report: what lies within a CUDA call, or between two, keeps its share of that."""
        events, threads, edges = self._recorded.events, self._recorded.threads, {}
        for number in np.flatnonzero(threads.report == report).tolist():
            own = slice(*np.searchsorted(events.thread, (number, number + 1)))
            old = np.column_stack((events.start[own], events.end[own])).ravel()
            shifts = np.column_stack((moved.event_start[own], moved.event_end[own])).ravel()
            edges[int(threads.key[number])] = old, shifts

        def later(thread: Ints, time: Ints) -> Ints:
            times = time.copy()
            for key, (old, shifts) in edges.items():
                rows = np.flatnonzero((thread == key) & (time != NEVER))
                if old.size:
                    shift = np.interp(time[rows] - old[0], old - old[0], shifts)
                    times[rows] += np.rint(shift).astype(np.int64)
            return times

        return later

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


def _like_fastest(lines: Ints) -> Ints:
    """A step of the process and device that works the least, with the collectives of the one that waits least.

    So it is if all are like the fastest, without knowing who waits for whom.
    """
    meets = [*budget.MEETS]
    waiting = lines[:, meets].sum(axis=1)
    one: Ints = lines[(lines.sum(axis=1) - waiting).argmin()].copy()
    one[meets] = lines[waiting.argmin(), meets]
    return one


def _by_kind(step: Ints) -> list[dict[str, Any]]:
    total = max(1, int(step.sum()))
    pairs = zip(budget.KINDS, step.tolist(), strict=True)
    return [{"kind": kind, "ns": ns, "share": ns / total} for kind, ns in pairs if ns]

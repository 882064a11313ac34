"""What would change the time of a step: a model of its dependencies, asked with changes.

``recorded`` reads what a report holds of calls, work and waits, ``model`` gives back the measured times and others
where something changes, ``changes`` are the changes. The answer is the budget of the times after them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa

from tracekit.analyses import budget
from tracekit.analyses.alignment.collectives import Lane, collectives
from tracekit.analyses.alignment.reports import Clock, aligned, met
from tracekit.analyses.base import Columns
from tracekit.analyses.subtrees import Hierarchy, hierarchy
from tracekit.analyses.whatif.changes import Changes, Changing, Spans
from tracekit.analyses.whatif.model import Tasks, Times, measured, played, tasks
from tracekit.analyses.whatif.recorded import NEVER, Recorded, joined, recorded, thread_keys
from tracekit.arrays.codes import lookup, positions
from tracekit.arrays.columns import integers
from tracekit.arrays.groups import maxima
from tracekit.arrays.types import Ints, Rows
from tracekit.dataset.opening import Dataset

__all__ = ["Changes", "Prediction", "StepModel", "predict"]


@dataclass(frozen=True, slots=True)
class Prediction:
    """The median window of a step on a device before and after changes, and its budget.

    Attributes:
        step_before_ns: As measured.
        step_after_ns: Under the model.
        range_ns: The least and the most, where the report does not record all dependencies; else None.
        before: A row per kind of :mod:`tracekit.analyses.budget`: ``kind``, ``ns`` and ``share``.
        after: The same after the changes.
    """

    step_before_ns: int
    step_after_ns: int
    range_ns: tuple[int, int] | None
    before: list[dict[str, Any]]
    after: list[dict[str, Any]]


class StepModel:
    """The model of a dataset's steps: made once, asked often."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset, self._modules = dataset, hierarchy(dataset)
        self._before = _Windows.of(budget.columns(dataset)).median()
        self._parts = [_Report.read(part, self._modules) for part in dataset.by_report()]
        lanes = collectives(dataset).lanes
        clocks = aligned(lanes)
        self._found = joined([part.found for part in self._parts], [clock.at for clock in clocks])
        self._spans = _spans(dataset, self._parts, clocks, self._modules)
        meeting = _meetings(self._found, lanes, clocks)
        assumptions = (False, True)[: 1 if self._found.has_dependencies or not _has_streams(self._found) else 2]
        self._tasks = [tasks(self._found, meeting, assumed=assumed) for assumed in assumptions]

    @classmethod
    def of(cls, dataset: Dataset) -> StepModel:
        """The model of a whole dataset.

        Raises:
            UsageError: If the dataset is a subtree.
        """
        return cls(dataset)

    def predict(self, changes: Changes) -> Prediction:
        """What a step would take after changes.

        Raises:
            UsageError: If a pattern names no module.
        """
        answers = [self._after(one, changes) for one in self._tasks]
        totals = sorted(sum(row["ns"] for row in rows) for rows in answers)
        first = sum(row["ns"] for row in answers[0])
        known = None if len(answers) == 1 else (totals[0], totals[-1])
        return Prediction(sum(row["ns"] for row in self._before), first, known, self._before, answers[0])

    def step_ns(self, changes: Changes) -> int:
        """The ``step_after_ns`` of :meth:`predict` alone, for many questions.

        Raises:
            UsageError: If a pattern names no module.
        """
        return self.predict(changes).step_after_ns

    def _after(self, model: Tasks, changes: Changes) -> list[dict[str, Any]]:
        changing = Changing(self._found, model, self._modules, self._spans)
        return _after(self._dataset, self._parts, self._found, changing, changes)


def predict(dataset: Dataset, changes: Changes) -> Prediction:
    """What a step would take after changes: ``StepModel.of(dataset).predict(changes)``.

    Raises:
        UsageError: If a pattern names no module, or the dataset is a subtree.
    """
    return StepModel.of(dataset).predict(changes)


def _has_streams(found: Recorded) -> bool:
    """Whether a device ran work on several streams, so that one may have waited for another."""
    return np.unique(found.work.stream).size > np.unique(found.work.context).size


def _meetings(found: Recorded, lanes: list[list[Lane]], clocks: Sequence[Clock]) -> Rows:
    """Of all work the number of the collective in which all of its ranks are known to have met, or -1."""
    meeting = np.full(found.work.start.size, -1)
    rows = met(lanes, clocks)
    kernel = np.full(rows.lane.size, -1)
    for at in np.unique(rows.lane).tolist():
        own = np.flatnonzero(rows.lane == at)
        kernel[own] = rows.lanes[at].kernel_id[rows.event[own]]
    place = positions(kernel, found.work.kernel)
    start, end = lookup(found.work.start, place, 0), lookup(found.work.end, place, 0)
    arrived = maxima(rows.meeting, start, rows.missing.size)
    # A rank that ends before another arrives was in another one.
    contradicted = np.zeros(rows.missing.size, dtype=bool)
    contradicted[rows.meeting[(place < 0) | (end < arrived[rows.meeting])]] = True
    proven = ((rows.missing == 0) & ~contradicted)[rows.meeting]
    meeting[place[proven]] = np.unique(rows.meeting[proven], return_inverse=True)[1]
    return meeting


def _spans(dataset: Dataset, parts: Sequence[_Report], clocks: Sequence[Clock], modules: Hierarchy) -> Spans:
    pieces, threads = [], 0
    for part, report, clock in zip(parts, dataset.by_report(), clocks, strict=True):
        calls = report.table("calls", ["module_id", "pid", "tid", "start_ns", "end_ns"])
        thread = positions(thread_keys(calls), part.found.threads)
        known = np.flatnonzero(thread >= 0)
        start, end = (clock.at(integers(calls, name))[known] for name in ("start_ns", "end_ns"))
        pieces.append(Spans(thread[known] + threads, start, end, modules.rows(calls)[known]))
        threads += part.found.threads.size
    return Spans(*(np.concatenate(column) for column in zip(*pieces, strict=True)))


def _after(
    dataset: Dataset, parts: Sequence[_Report], found: Recorded, changing: Changing, changes: Changes
) -> list[dict[str, Any]]:
    times = played(found, changing.apply(changes))
    moved = [after - before for after, before in zip(times, measured(found), strict=True)]
    changed, events, rows = [], 0, 0
    for part in parts:
        calls, work = part.found.events.start.size, part.found.work.start.size
        own = [column[events : events + calls] for column in moved[:2]]
        changed.append(_Changed(part, Times(*own, *(column[rows : rows + work] for column in moved[2:]))))
        events, rows = events + calls, rows + work
    windows = _Windows.of(budget.columns(cast("Dataset", _Parts(dataset, changed))))
    return (windows.fastest() if changes.like_fastest_rank else windows).median()


class _Windows(NamedTuple):
    """The time of windows by kind, a row each, and the process and device of each window."""

    ns: Ints
    line: list[tuple[object, ...]]

    @classmethod
    def of(cls, columns: Columns) -> _Windows:
        ns: dict[tuple[object, ...], Counter[str]] = {}
        names = [name for name in ("report", "pid", "device", "step_id") if name in columns]
        for *key, kind, time in zip(*(columns[name].tolist() for name in (*names, "kind", "ns")), strict=True):
            ns.setdefault(tuple(key), Counter())[kind] += time
        rows = [[counted[kind] for kind in budget.KINDS] for counted in ns.values()]
        return cls(np.array(rows, np.int64).reshape(-1, len(budget.KINDS)), [key[:-1] for key in ns])

    def median(self) -> list[dict[str, Any]]:
        """The median window by kind, of two in the middle the shorter one."""
        order = np.argsort(self.ns.sum(axis=1), kind="stable")
        middle = self.ns[order[(order.size - 1) // 2]] if order.size else np.zeros(len(budget.KINDS), np.int64)
        total = max(1, int(middle.sum()))
        pairs = zip(budget.KINDS, middle.tolist(), strict=True)
        return [{"kind": kind, "ns": ns, "share": ns / total} for kind, ns in pairs if ns]

    def fastest(self) -> _Windows:
        """Those of the process and device whose median is the shortest."""
        rows: dict[tuple[object, ...], list[int]] = {}
        for at, line in enumerate(self.line):
            rows.setdefault(line, []).append(at)
        parts = [_Windows(self.ns[own], [line] * len(own)) for line, own in rows.items()]
        return min(parts, key=lambda part: float(np.median(part.ns.sum(axis=1))), default=self)


class _Report(NamedTuple):
    """A report, and what it holds of dependencies."""

    dataset: Dataset
    found: Recorded

    @classmethod
    def read(cls, dataset: Dataset, modules: Hierarchy) -> _Report:
        return cls(dataset, recorded(dataset, modules))


class _Parts:
    """A dataset whose reports have other times."""

    root = None

    def __init__(self, dataset: Dataset, parts: Sequence[_Changed]) -> None:
        self._dataset, self._parts = dataset, parts

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the dataset has
        return getattr(self._dataset, name)

    def by_report(self) -> Iterator[_Changed]:
        yield from self._parts


class _Changed:
    """A report with the times after changes."""

    root = None

    def __init__(self, report: _Report, moved: Times) -> None:
        self._dataset, self._found, self._moved_by = report.dataset, report.found, moved

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the dataset has
        return getattr(self._dataset, name)

    @property
    def whole(self) -> _Changed:
        return self

    def by_report(self) -> Iterator[_Changed]:
        yield self

    def table(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """A table with the times after the changes."""
        needed = [] if columns is None else [column for column in ("pid", "tid") if column not in columns]
        asked = None if columns is None else [*columns, *needed]
        if name not in _TIMED or (columns is not None and not {*_TIMED[name]} & {*columns}):
            return self._dataset.table(name, columns)
        table = self._dataset.table(name, asked)
        for column, values in self._columns(name, table).items():
            at = table.column_names.index(column)
            null = np.asarray(table.column(column).is_null())
            table = table.set_column(at, table.schema.field(at), pa.array(values, pa.int64(), mask=null))
        return table if columns is None else table.select(list(columns))

    def _columns(self, name: str, table: pa.Table) -> Mapping[str, Ints]:
        host = [column for column in _TIMED[name] if column in table.column_names]
        keys = thread_keys(table)
        changed: dict[str, Ints] = {}
        if name == "kernels":
            rows = self._found.work_of
            for column, moved in (("start_ns", self._moved_by.start), ("end_ns", self._moved_by.end)):
                if column in host:
                    changed[column] = integers(table, column) + lookup(moved, rows, 0)
            host = [column for column in host if column.startswith("launch")]
        if "dur_ns" in host:
            start = integers(self._dataset.table(name, ["start_ns"]), "start_ns")
            end = start + integers(table, "dur_ns")
            begin, until = self._moved(keys, start), self._moved(keys, end)
            return {"dur_ns": until - begin} | ({"start_ns": begin} if "start_ns" in host else {})
        return changed | {column: self._moved(keys, integers(table, column, NEVER)) for column in host}

    def _moved(self, keys: Ints, time: Ints) -> Ints:
        """Times on host threads: what lies within a call, or between two, keeps its share of that."""
        found, by, moved = self._found, self._moved_by, time.copy()
        for number, key in enumerate(found.threads.tolist()):
            events = np.flatnonzero(found.events.thread == number)
            rows = np.flatnonzero((keys == key) & (time != NEVER))
            if not events.size or not rows.size:
                continue
            old = np.column_stack((found.events.start[events], found.events.end[events])).ravel()
            shifts = np.column_stack((by.event_start[events], by.event_end[events])).ravel()
            shift = np.interp(time[rows].astype(float), old.astype(float), shifts.astype(float))
            moved[rows] = time[rows] + np.rint(shift).astype(np.int64)
        return moved


#: The columns of tables that hold times of the host, or of the device.
_TIMED = {
    "kernels": ("start_ns", "end_ns", "launch_start_ns", "launch_end_ns"),
    "waits": ("start_ns", "dur_ns"),
    "api_calls": ("start_ns", "dur_ns"),
    "calls": ("start_ns", "end_ns"),
    "ranges": ("start_ns", "end_ns"),
}

"""A dataset with the times after changes, as :mod:`tracekit.steptime.budget` reads it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.arrays.codes import lookup
from tracekit.arrays.columns import integers
from tracekit.arrays.types import Floats, Ints, Rows
from tracekit.dataset.opening import Dataset
from tracekit.steptime.whatif.model import Times
from tracekit.steptime.whatif.recorded import NEVER, Recorded
from tracekit.steptime.windows import thread_keys

#: The columns of tables that hold times of the host, or of the device.
_TIMED = {
    "kernels": ("start_ns", "end_ns", "launch_start_ns", "launch_end_ns"),
    "waits": ("start_ns", "dur_ns"),
    "api_calls": ("start_ns", "dur_ns"),
    "calls": ("start_ns", "end_ns"),
    "ranges": ("start_ns", "end_ns"),
    "steps": ("start_ns", "end_ns"),
}


class Report(NamedTuple):
    """A report, and what it holds of dependencies, on its own clock."""

    dataset: Dataset
    found: Recorded


class TimeShifts(NamedTuple):
    """By how much the times of a report move, and of all work the row of the call that then launches it, or -1."""

    by: Times
    event: Rows


class Shifted:
    """A dataset whose reports have other times; ``known_of_all`` is what was worked out anew for them."""

    root = None

    def __init__(
        self, dataset: Dataset, parts: Sequence[tuple[Report, TimeShifts]], known_of_all: dict[str, Any]
    ) -> None:
        self._dataset, self._parts, self._known = dataset, parts, known_of_all

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the dataset has
        return getattr(self._dataset, name)

    def by_report(self) -> Iterator[_ShiftedReport]:
        """Its reports."""
        for report, moved in self._parts:
            yield _ShiftedReport(report, moved, self._known)


class _ShiftedReport:
    root = None

    def __init__(self, report: Report, moved: TimeShifts, known_of_all: dict[str, Any]) -> None:
        self._dataset, self._found = report.dataset, report.found
        self._moved_by, self._event = moved
        self.known_of_all = known_of_all

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the dataset has
        return getattr(self._dataset, name)

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

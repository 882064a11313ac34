"""A dataset with the times after changes, as :mod:`tracekit.analyses.budget` reads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tracekit.analyses.whatif.model import Times
from tracekit.analyses.whatif.recorded import NEVER, Recorded, thread_keys
from tracekit.arrays.codes import lookup
from tracekit.arrays.columns import integers
from tracekit.arrays.types import Ints
from tracekit.dataset.opening import Dataset

#: The columns of tables that hold times of the host, or of the device.
_TIMED = {
    "kernels": ("start_ns", "end_ns", "launch_start_ns", "launch_end_ns"),
    "waits": ("start_ns", "dur_ns"),
    "api_calls": ("start_ns", "dur_ns"),
    "calls": ("start_ns", "end_ns"),
    "ranges": ("start_ns", "end_ns"),
}


class Report(NamedTuple):
    """A report, and what it holds of dependencies."""

    dataset: Dataset
    found: Recorded


class Shifted:
    """A dataset whose reports have other times; ``known_of_all`` is what was worked out anew for them."""

    root = None

    def __init__(self, dataset: Dataset, parts: Sequence[tuple[Report, Times]], known_of_all: dict[str, Any]) -> None:
        self._dataset, self._parts, self._known = dataset, parts, known_of_all

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the dataset has
        return getattr(self._dataset, name)

    def by_report(self) -> Iterator[_ShiftedReport]:
        """Its reports."""
        for report, moved_by in self._parts:
            yield _ShiftedReport(report, moved_by, self._known)


class _ShiftedReport:
    root = None

    def __init__(self, report: Report, moved_by: Times, known_of_all: dict[str, Any]) -> None:
        self._dataset, self._found, self._moved_by = report.dataset, report.found, moved_by
        self.known_of_all = known_of_all

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the dataset has
        return getattr(self._dataset, name)

    def table(self, name: str, columns: Sequence[str]) -> pa.Table:
        """A table with the times after the changes."""
        if name not in _TIMED or not {*_TIMED[name]} & {*columns}:
            return self._dataset.table(name, columns)
        needed = [column for column in ("pid", "tid") if column not in columns]
        table = self._dataset.table(name, [*columns, *needed])
        for column, values in self._columns(name, table).items():
            at = table.column_names.index(column)
            null = np.asarray(table.column(column).is_null())
            table = table.set_column(at, table.schema.field(at), pa.array(values, pa.int64(), mask=null))
        return table.select(list(columns))

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
            start = integers(table, "start_ns") if "start_ns" in host else None
            if start is None:
                start = integers(self._dataset.table(name, ["start_ns"]), "start_ns")
            begin, until = self._moved(keys, start), self._moved(keys, start + integers(table, "dur_ns"))
            return {"dur_ns": until - begin} | ({"start_ns": begin} if "start_ns" in host else {})
        return changed | {column: self._moved(keys, integers(table, column, NEVER)) for column in host}

    def _moved(self, keys: Ints, time: Ints) -> Ints:
        """Times on host threads: what lies within a call of CUDA, or between two, keeps its share of that."""
        found, by, moved = self._found, self._moved_by, time.copy()
        for number, key in enumerate(found.threads.tolist()):
            events = np.arange(*np.searchsorted(found.events.thread, (number, number + 1)))
            rows = np.flatnonzero((keys == key) & (time != NEVER))
            if events.size and rows.size:
                old = np.column_stack((found.events.start[events], found.events.end[events])).ravel()
                shifts = np.column_stack((by.event_start[events], by.event_end[events])).ravel()
                moved[rows] += _between(old, shifts, time[rows])
        return moved


def _between(old: Ints, shifts: Ints, time: Ints) -> Ints:
    """How far times move, by how far the edges around them do."""
    shift = np.interp((time - old[0]).astype(float), (old - old[0]).astype(float), shifts.astype(float))
    whole: Ints = np.rint(shift).astype(np.int64)
    return whole

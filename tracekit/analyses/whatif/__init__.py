"""What would change the time of a step: a model of its dependencies, asked with changes.

``recorded`` reads what a report holds of calls, work and waits, ``model`` gives back the measured times and others
where something changes, ``changes`` are the changes. The answer is the budget of the times after them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa

from tracekit.analyses import budget
from tracekit.analyses.base import Columns
from tracekit.analyses.subtrees import Hierarchy, hierarchy
from tracekit.analyses.whatif.changes import Changes, Changing
from tracekit.analyses.whatif.model import Times, measured, played, tasks
from tracekit.analyses.whatif.recorded import NEVER, Recorded, recorded, thread_keys
from tracekit.arrays.columns import integers
from tracekit.arrays.types import Ints, Rows
from tracekit.dataset.opening import Dataset

__all__ = ["Changes", "Prediction", "predict"]


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


def predict(dataset: Dataset, changes: Changes) -> Prediction:
    """What a step would take after changes.

    Raises:
        UsageError: If a pattern names no module, or the dataset is a subtree.
    """
    modules = hierarchy(dataset)
    parts = [_Changed(part, modules, changes) for part in dataset.by_report()]
    before = _kinds(budget.overview(dataset))
    after = _kinds(budget.overview(cast(Dataset, _Parts(dataset, parts))))
    totals = [sum(row["ns"] for row in rows) for rows in (before, after)]
    return Prediction(totals[0], totals[1], None, before, after)


def _kinds(overview: Columns) -> list[dict[str, Any]]:
    columns = zip(overview["kind"].tolist(), overview["median_ns"].tolist(), overview["share"].tolist(), strict=True)
    return [{"kind": kind, "ns": ns, "share": share} for kind, ns, share in columns]


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

    def __init__(self, dataset: Dataset, modules: Hierarchy, changes: Changes) -> None:
        self._dataset = dataset
        self._found = found = recorded(dataset, modules)
        calls = dataset.table("calls", ["module_id", "pid", "tid", "start_ns", "end_ns"])
        self._times = played(found, Changing(found, tasks(found), modules, calls).apply(changes))

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
            for column, times in (("start_ns", self._times.start), ("end_ns", self._times.end)):
                if column in host:
                    changed[column] = np.where(rows >= 0, np.append(times, 0)[rows], integers(table, column))
            host = [column for column in host if column.startswith("launch")]
        if "dur_ns" in host:
            start = integers(self._dataset.table(name, ["start_ns"]), "start_ns")
            end = start + integers(table, "dur_ns")
            moved = self._moved(keys, start), self._moved(keys, end)
            return {"dur_ns": moved[1] - moved[0]} | ({"start_ns": moved[0]} if "start_ns" in host else {})
        return changed | {column: self._moved(keys, integers(table, column, NEVER)) for column in host}

    def _moved(self, keys: Ints, time: Ints) -> Ints:
        """Times on host threads: what lies within a call, or between two, keeps its share of that."""
        found, times, moved = self._found, self._times, time.copy()
        for number, key in enumerate(found.threads.tolist()):
            events = np.flatnonzero(found.events.thread == number)
            rows = np.flatnonzero((keys == key) & (time != NEVER))
            if not events.size or not rows.size:
                continue
            old = np.column_stack((found.events.start[events], found.events.end[events])).ravel()
            new = np.column_stack((times.event_start[events], times.event_end[events])).ravel()
            shift = np.interp(time[rows].astype(float), old.astype(float), (new - old).astype(float))
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

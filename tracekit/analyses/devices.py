"""Where work ran: devices of all reports laid end to end, so that arithmetic of intervals needs no loop over them.

A device belongs to one report: clocks of different reports are never compared. On a run without a GPU, operators run on
no device that the report names; the CPU of a report counts as one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.axis import measured_axis
from tracekit.arrays.columns import integers
from tracekit.arrays.lookups import positions
from tracekit.arrays.unions import union_within
from tracekit.dataset.opening import REPORT
from tracekit.errors import DatasetError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.dataset.opening import Dataset

#: Columns of ``kernels``: when the work ran, on which device.
DEVICE_TIMES = ("device", "start_ns", "end_ns")


class Axis(NamedTuple):
    """Device work on one axis that keeps distances; ``line`` is the place in ``lines``, pairs of report and device."""

    line: Rows
    lines: list[tuple[str | None, int | None]]
    start: Ints
    end: Ints


def kernels(dataset: Dataset, columns: Sequence[str]) -> pa.Table:
    """Columns of the device work, and its report in a dataset of several."""
    report = [REPORT] if dataset.reports else []
    return dataset.table("kernels", [*columns, *report])


def axis(dataset: Dataset, table: pa.Table) -> Axis:
    """All work of a table of kernels, which has the columns :data:`DEVICE_TIMES`, on one axis.

    Raises:
        DatasetError: If the times of all devices together span more than 64 bits.
    """
    device = integers(table, "device")
    devices = np.unique(device)
    line = report_codes(dataset, table) * devices.size + np.searchsorted(devices, device)
    reports: list[str | None] = [*dataset.reports] or [None]
    lines: list[tuple[str | None, int | None]] = [
        (report, None if device < 0 else device) for report in reports for device in devices.tolist()
    ]
    times = [integers(table, "start_ns"), integers(table, "end_ns")]
    placed = measured_axis([line] * len(times), times)
    if placed is None:
        raise DatasetError(
            dataset.folder,
            f"the work of its {len(lines)} devices spans more than 584 years in total",
            "parse the reports again, without the one whose times are damaged",
        )
    return Axis(line, lines, *placed)


def report_codes(dataset: Dataset, table: pa.Table) -> Rows:
    """The place of each row's report among the dataset's."""
    if not dataset.reports:
        return np.zeros(table.num_rows, dtype=np.int64)
    column = table.column(REPORT).combine_chunks()
    place = {name: at for at, name in enumerate(dataset.reports)}
    order = np.array([place[name] for name in column.dictionary.to_pylist()], dtype=np.int64)
    codes: Rows = order[np.asarray(column.indices)]
    return codes


def from_graph(table: pa.Table) -> Flags:
    """Which single pieces of work ran from a CUDA graph, by ``graph_id`` and ``graph_node_id``."""
    of_graph, of_node = (np.asarray(table.column(name).is_valid()) for name in ("graph_id", "graph_node_id"))
    from_graphs: Flags = of_graph | of_node
    return from_graphs


def steps_of(dataset: Dataset, table: pa.Table) -> Rows:
    """The row in the whole dataset's table ``steps`` for each entry of ``step_id``, -1 for none.

    The steps of a subtree alone would lack those that only replayed its graph captures.
    """
    steps = dataset.whole.table("steps", ["step_id"])
    return positions(integers(table, "step_id"), integers(steps, "step_id"))


def union(group: Rows, start: Ints, end: Ints, groups: int) -> Ints:
    """The length of the union of each group's intervals; group -1 is ignored."""
    kept = group >= 0
    alone = np.full(groups, -1, dtype=np.int64)
    flat = (alone, np.zeros(groups, dtype=np.int64), np.arange(1, groups + 1))
    return union_within(group[kept], flat, start[kept], end[kept])


class Covered(NamedTuple):
    """Disjoint intervals in order, and how much lies before each."""

    start: Ints
    end: Ints
    before: Ints

    def until(self, time: Ints) -> Ints:
        """How much of them lies before a time."""
        if not self.start.size:
            return np.zeros(time.size, dtype=np.int64)
        at = np.maximum(np.searchsorted(self.start, time, side="right") - 1, 0)
        partly = np.clip(time - self.start[at], 0, self.end[at] - self.start[at])
        until: Ints = self.before[at] + partly
        return until


def covered(start: Ints, end: Ints) -> Covered:
    """What intervals cover, each moment once."""
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    fresh = np.concatenate((np.ones(min(start.size, 1), bool), start[1:] > end[:-1]))
    first = np.flatnonzero(fresh)
    last = np.append(first[1:], start.size) - 1 if first.size else first
    start, end = start[first], end[last]
    return Covered(start, end, np.cumsum(end - start) - (end - start))

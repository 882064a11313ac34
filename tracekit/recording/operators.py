"""Operators that ran on a CPU, as work: its own thread started each one by running it, so it is its own launch."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from tracekit.arrays.columns import in_order, integers, nullable
from tracekit.arrays.intervals import nesting_order, one_axis, parents
from tracekit.recording.tables import CPU_OP, LAUNCHES, WORK

if TYPE_CHECKING:
    from tracekit.arrays.types import Ints


class Operators(NamedTuple):
    """Operators as work and as launches, and the time of each that was spent in operators it called."""

    work: pa.Table
    launches: pa.Table
    inside_ns: Ints

    def launched_beside(self, launches: pa.Table) -> pa.Table:
        """API calls and operators together, in the order of launches."""
        if not self.launches.num_rows:
            return launches
        both = pa.concat_tables([launches, self.launches]).combine_chunks()
        thread = integers(both, "thread")
        times = [integers(both, "start_ns"), integers(both, "end_ns")]
        return in_order(both, nesting_order(*one_axis([thread, thread], times)))

    def done_beside(self, work: pa.Table) -> tuple[pa.Table, Ints | None]:
        """Device work and operators together, and the time that each piece spent in others."""
        if not self.work.num_rows:
            return work, None
        both = pa.concat_tables([work, self.work]).combine_chunks()
        return both, np.concatenate((np.zeros(work.num_rows, np.int64), self.inside_ns))


def no_operators() -> Operators:
    """A recording without operators."""
    return Operators(WORK.empty(), LAUNCHES.empty(), np.empty(0, np.int64))


def operators_as_work(start: Ints, end: Ints, thread: Ints, process: Ints, name: Ints) -> Operators:
    """Operators as work that launched itself.

    Args:
        start: Their starts.
        end: Their ends.
        thread: Rows of their threads.
        process: Rows of their processes.
        name: Rows of their names, or -1.
    """
    # CUDA's correlation ids are not negative.
    correlation = -1 - np.arange(start.size)
    work: dict[str, object] = dict.fromkeys(column.name for column in WORK.columns)
    work |= {"kind": np.full(start.size, CPU_OP, np.int8), "start_ns": start, "end_ns": end}
    work |= {"process": process.astype(np.int32)}
    work |= {"correlation_id": correlation, "name": nullable(name, pa.int32())}
    work |= {"full_name": work["name"]}
    launches = {
        "start_ns": start,
        "end_ns": end,
        "thread": thread.astype(np.int32),
        "correlation_id": correlation,
        "name": None,
        "kernel": None,
    }
    return Operators(WORK.table(work), LAUNCHES.table(launches), _inside(start, end, thread))


def _inside(start: Ints, end: Ints, thread: Ints) -> Ints:
    """Time of the operators directly inside of each one."""
    first, last = one_axis([thread, thread], [start, end])
    order = nesting_order(first, last)
    parent, _ = parents(first[order], last[order])
    inside = np.zeros(start.size, np.int64)
    within = np.flatnonzero(parent >= 0)
    np.add.at(inside, order[parent[within]], (end - start)[order[within]])
    clipped: Ints = np.minimum(inside, end - start)
    return clipped

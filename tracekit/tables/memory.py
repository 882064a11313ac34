"""Columns of ``calls`` about memory: what torch's allocators did while each call was open, on its thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa

from tracekit.arrays.columns import integers
from tracekit.schema import Column

if TYPE_CHECKING:
    from tracekit.arrays.types import Ints, Rows
    from tracekit.trace.evidence import Evidence

COLUMNS = (
    Column(
        "allocated_bytes",
        pa.int64(),
        "Memory that torch's allocator handed out on its thread, in its subtree: of GPUs, or of the CPU in a run "
        "without one. Null if the report does not record it (profile_memory of torch.profiler).",
        nullable=True,
    ),
    Column(
        "retained_bytes",
        pa.int64(),
        "How much of that the call left more than it found: without the memory that was taken back meanwhile; "
        "negative if more was taken back. Null as allocated_bytes.",
        nullable=True,
    ),
)


class Allocated:
    """What allocators did on all threads."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        allocations = evidence.recording.allocations
        self._time, self._thread, size = (integers(allocations, name) for name in ("time_ns", "thread", "bytes"))
        self._sums = [np.concatenate(([0], np.cumsum(part))) for part in (np.maximum(size, 0), size)]

    def columns(self, rows: Rows) -> dict[str, object]:
        """The memory of some calls."""
        if not self._time.size:
            return {"allocated_bytes": None, "retained_bytes": None}
        ranges, calls = self._evidence.recording.ranges, self._evidence.calls
        at, ends = calls.range_row[rows], calls.last_range[rows]
        thread = integers(ranges, "thread")[at]
        first, last = np.zeros((2, rows.size), dtype=np.int64)
        for one in np.unique(self._thread).tolist():
            of_thread = thread == one
            first[of_thread] = self._places(one, integers(ranges, "start_ns")[at[of_thread]], "left")
            last[of_thread] = self._places(one, self._evidence.endings.end_ns[ends[of_thread]], "right")
        return {
            name: total[last] - total[first]
            for name, total in zip(("allocated_bytes", "retained_bytes"), self._sums, strict=True)
        }

    def _places(self, thread: int, times: Ints, side: Literal["left", "right"]) -> Ints:
        """Where some times stand among those of all threads, which are sorted by thread."""
        begin, end = np.searchsorted(self._thread, [thread, thread + 1])
        place: Ints = begin + np.searchsorted(self._time[begin:end], times, side)
        return place

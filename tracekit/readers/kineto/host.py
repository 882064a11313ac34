"""What happened on the host: annotations, operators and modules as ranges, API calls as launches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tracekit.arrays.columns import in_order, nullable
from tracekit.arrays.intervals import nesting_order, one_axis
from tracekit.causes.reports import NEVER_ENDED, NO_CORRELATION_ID
from tracekit.recording.tables import ALLOCATIONS, LAUNCHES, PUSH_POP, RANGES, Threads

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracekit.arrays.types import Ints
    from tracekit.readers.kineto.gathering import Columns
    from tracekit.recording.tally import Tally


def threads_of(ids: Sequence[tuple[int, int]]) -> tuple[Threads, Ints]:
    """The threads in the order of their ids, and the row there of each one given."""
    pairs = np.array(ids, dtype=np.int64).reshape(-1, 2)
    order = np.lexsort((pairs[:, 1], pairs[:, 0]))
    row = np.empty(order.size, dtype=np.int64)
    row[order] = np.arange(order.size)
    pid, tid = pairs[order].T
    process_pid, process = np.unique(pid, return_inverse=True)
    return Threads(pid=pid, tid=tid, process=process, process_pid=process_pid), row


def ranges_table(parts: Iterable[Columns], tally: Tally) -> pa.Table:
    """The table ``RANGES`` of events that have a text."""
    rows = [{"open": np.zeros_like(part["start"]), "made_on": np.full_like(part["start"], -1)} | part for part in parts]
    start, end, thread, text, never_ended, made_on = (
        np.concatenate([part[name] for part in rows]) for name in ("start", "end", "thread", "text", "open", "made_on")
    )
    tally.add("ranges", NEVER_ENDED, int(never_ended.sum()))
    columns: dict[str, object] = dict.fromkeys(column.name for column in RANGES.columns)
    columns |= {"start_ns": start, "end_ns": end, "open": never_ended.astype(bool)}
    columns |= {"kind": np.full(start.size, PUSH_POP, dtype=np.int8), "thread": thread.astype(np.int32)}
    columns |= {"text": nullable(text, pa.int32())}
    columns |= {"forward_thread": pa.array(made_on.astype(np.int32), mask=made_on == -1)}
    return in_order(RANGES.table(columns), _nested(start, end, thread))


def launches_table(calls: Columns, tally: Tally) -> pa.Table:
    """The table ``LAUNCHES`` of API calls."""
    linked = calls["correlation"] > 0
    tally.add("launches", NO_CORRELATION_ID, int((~linked).sum()))
    start, end, thread, name, correlation, kernel = (
        calls[column][linked] for column in ("start", "end", "thread", "name", "correlation", "kernel")
    )
    columns = {
        "start_ns": start,
        "end_ns": end,
        "thread": thread.astype(np.int32),
        "correlation_id": correlation,
        "name": nullable(name, pa.int32()),
        "kernel": nullable(kernel, pa.int32()),
    }
    return in_order(LAUNCHES.table(columns), _nested(start, end, thread))


def allocations_table(events: Columns) -> pa.Table:
    """The table ``ALLOCATIONS`` of what allocators did on GPUs; without any, on the CPU."""
    on_device = events["device_type"] > 0
    rows = np.flatnonzero(on_device if on_device.any() else events["bytes"] != 0)
    order = rows[np.lexsort((events["start"][rows], events["thread"][rows]))]
    time_ns, thread, size = (events[name][order] for name in ("start", "thread", "bytes"))
    return ALLOCATIONS.table({"time_ns": time_ns, "thread": thread.astype(np.int32), "bytes": size})


def _nested(start: Ints, end: Ints, thread: Ints) -> Ints:
    return nesting_order(*one_axis([thread, thread], [start, end]))

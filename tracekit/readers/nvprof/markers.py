"""NVTX markers: a range is two rows of one id, of which the first has its name.

The rows of a range need not be neighbours, and ids may come again. A range of a thread was pushed and popped, unless it
ended on another thread; one of a process was started and ended, and of it no thread is known.
"""

import numpy as np
import pyarrow as pa

from tracekit.arrays.columns import integers
from tracekit.arrays.intervals import nesting_order, one_axis
from tracekit.arrays.types import Flags, Ints
from tracekit.causes import MARK, NEVER_BEGAN, OTHER_EVENT
from tracekit.readers.nvprof import tables as nvprof
from tracekit.readers.nvprof.tables import object_keys, thread_rows
from tracekit.readers.nvprof.work import full_name
from tracekit.readers.rows import Names, times_of_ranges
from tracekit.readers.source import ENCODED, ENCODED_BLOB, Request
from tracekit.recording.provenance import LossCounters
from tracekit.recording.tables import PUSH_POP, START_END, Launches, Ranges


def marker_requests() -> dict[str, Request]:
    """What to read of markers."""
    columns = {"flags": pa.int64(), "timestamp": pa.int64(), "id": pa.int64(), "objectKind": pa.int64()}
    columns |= {"objectId": ENCODED_BLOB, "name": ENCODED, "domain": ENCODED}
    return {"marker": Request(nvprof.MARKER, columns)}


def paired(markers: pa.Table, counters: LossCounters) -> pa.Table:
    """Ranges out of the rows of markers, each with a column ``thread_key`` and ``end_key``; other rows are counted."""
    if not markers.num_rows:
        return pa.table({})
    flags = integers(markers, "flags", null=0)
    begins, ends = flags & nvprof.BEGIN != 0, flags & nvprof.END != 0
    marks = (flags & nvprof.INSTANT != 0) & ~begins & ~ends
    counters.add("events", MARK, int(marks.sum()))
    counters.add("events", OTHER_EVENT, int((~begins & ~ends & ~marks).sum()))
    key = object_keys(markers)
    used = np.flatnonzero(begins | ends)
    begin, end = _pairs(markers, key, used, begins & ~ends)
    counters.add("ranges", NEVER_BEGAN, int(ends.sum()) - int((end >= 0).sum()))
    time = integers(markers, "timestamp")
    rows = markers.take(pa.array(begin)).select([name for name in ("name", "domain") if name in markers.column_names])
    never_ended = end < 0
    at = np.where(never_ended, begin, end)
    return (
        rows.append_column("start", pa.array(time[begin]))
        .append_column("end", pa.array(time[at], mask=never_ended))
        .append_column("thread_key", pa.array(key[begin]))
        .append_column("end_key", pa.array(key[at]))
        .append_column("kind", pa.array(_kinds(markers, begin)))
    )


def _pairs(markers: pa.Table, key: Ints, used: Ints, begins: Flags) -> tuple[Ints, Ints]:
    number, process = integers(markers, "id", null=-1)[used], key[used] >> 32
    order = np.lexsort((~begins[used], integers(markers, "timestamp")[used], number, process))
    row, number, process = used[order], number[order], process[order]
    starts = begins[row]
    first = np.append(True, (number[1:] != number[:-1]) | (process[1:] != process[:-1]))
    last = np.append(first[1:], True)
    begin = np.flatnonzero(starts)
    following = np.minimum(begin + 1, row.size - 1)
    closed = ~last[begin] & ~starts[following]
    return row[begin], np.where(closed, row[following], -1)


def _kinds(markers: pa.Table, begin: Ints) -> Ints:
    if "objectKind" not in markers.column_names:
        return np.full(begin.size, PUSH_POP, dtype=np.int8)
    kind = integers(markers, "objectKind", null=nvprof.THREAD)[begin]
    return np.where(kind == nvprof.THREAD, PUSH_POP, START_END).astype(np.int8)


def ranges_table(
    ranges: pa.Table, texts: Names, domains: Names, known: Ints, launches: Launches, counters: LossCounters
) -> Ranges:
    """The ranges of :func:`paired`, sorted; finished launches may outlast a range that never ends."""
    if not ranges.num_rows:
        return Ranges.empty()
    thread, end_thread = (thread_rows(integers(ranges, name), known) for name in ("thread_key", "end_key"))
    start, end, never_ended = times_of_ranges(ranges, nvprof.MARKER.name, thread, launches, counters)
    moved = end_thread != thread
    kind = np.where(moved, START_END, integers(ranges, "kind")).astype(np.int8)
    table = Ranges.of(
        start_ns=start,
        end_ns=end,
        open=never_ended,
        kind=kind,
        thread=thread,
        end_thread=np.where(moved, end_thread, -1),
        domain=domains.rows(ranges, "domain"),
        text=texts.rows(ranges, "name", spelled=full_name),
    )
    return table.in_order(nesting_order(*one_axis([thread, thread], [start, end])))

"""NVTX markers: a range is two rows of one id, of which the first has its name.

The rows of a range need not be neighbours, and ids may come again. A range of a thread was pushed and popped, unless it
ended on another thread; one of a process was started and ended, and of it no thread is known.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from tracekit.arrays.columns import in_order, integers, nullable
from tracekit.arrays.intervals import nesting_order, one_axis
from tracekit.arrays.lookups import positions
from tracekit.causes.reports import MARK, NEVER_BEGAN, OTHER_EVENT
from tracekit.readers.nvprof import tables as nvprof
from tracekit.readers.nvprof.names import full_name
from tracekit.readers.nvprof.threads import object_keys, thread_rows
from tracekit.readers.requests import ENCODED, ENCODED_BLOB, Request
from tracekit.readers.rows.times import ends_of_ranges, start_and_end
from tracekit.recording.tables import PUSH_POP, RANGES, START_END

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints
    from tracekit.readers.rows.encoded import Names
    from tracekit.recording.tally import Tally

_PAYLOADS = {nvprof.DOUBLE: "<d", nvprof.UINT64: "<q", nvprof.INT64: "<q"}
_PAYLOAD_BYTES = 8


class Texts(NamedTuple):
    """Where texts of ranges and names of domains are kept."""

    texts: Names
    domains: Names


def marker_requests() -> dict[str, Request]:
    """What to read of markers and their payloads."""
    columns = {"flags": pa.int64(), "timestamp": pa.int64(), "id": pa.int64(), "objectKind": pa.int64()}
    columns |= {"objectId": ENCODED_BLOB, "name": ENCODED, "domain": ENCODED}
    payload = {"id": pa.int64(), "payloadKind": pa.int64(), "payload": ENCODED_BLOB}
    return {"marker": Request(nvprof.MARKER, columns), "payload": Request(nvprof.MARKER_DATA, payload)}


def paired(markers: pa.Table, tally: Tally) -> pa.Table:
    """Ranges out of the rows of markers, each with a column ``thread_key`` and ``end_key``; other rows are counted.

    Args:
        markers: Distinct rows of markers.
        tally: Where losses are counted.
    """
    if not markers.num_rows:
        return pa.table({})
    flags = integers(markers, "flags", null=0)
    begins, ends = flags & nvprof.BEGIN != 0, flags & nvprof.END != 0
    marks = (flags & nvprof.INSTANT != 0) & ~begins & ~ends
    tally.add("events", MARK, int(marks.sum()))
    tally.add("events", OTHER_EVENT, int((~begins & ~ends & ~marks).sum()))
    key = object_keys(markers)
    used = np.flatnonzero(begins | ends)
    begin, end = _pairs(markers, key, used, begins & ~ends)
    tally.add("ranges", NEVER_BEGAN, int(ends.sum()) - int((end >= 0).sum()))
    time = integers(markers, "timestamp")
    rows = markers.take(pa.array(begin)).select([name for name in ("id", "name", "domain") if name in _names(markers)])
    never_ended = end < 0
    at = np.where(never_ended, begin, end)
    return (
        rows.append_column("start", pa.array(time[begin]))
        .append_column("end", pa.array(time[at], mask=never_ended))
        .append_column("thread_key", pa.array(key[begin]))
        .append_column("end_key", pa.array(key[at]))
        .append_column("kind", pa.array(_kinds(markers, begin)))
    )


def _names(markers: pa.Table) -> list[str]:
    names: list[str] = markers.column_names
    return names


def _pairs(markers: pa.Table, key: Ints, used: Ints, begins: Flags) -> tuple[Ints, Ints]:
    """Rows that begin ranges, and for each the row that ends it, or -1."""
    group, time = _ids(markers, key)[used], integers(markers, "timestamp")[used]
    starts = begins[used]
    order = np.lexsort((~starts, time, group))
    row, group, starts = used[order], group[order], starts[order]
    first = np.append(True, group[1:] != group[:-1])
    last = np.append(first[1:], True)
    # An end that was recorded before the only start of its id still belongs to it.
    swapped = np.flatnonzero(first[:-1] & last[1:] & ~starts[:-1] & starts[1:])
    row[swapped], row[swapped + 1] = row[swapped + 1], row[swapped]
    starts[swapped], starts[swapped + 1] = True, False
    begin = np.flatnonzero(starts)
    following = np.minimum(begin + 1, row.size - 1)
    closed = ~last[begin] & ~starts[following]
    return row[begin], np.where(closed, row[following], -1)


def _ids(markers: pa.Table, key: Ints) -> Ints:
    """A number for each id of each process."""
    pids, process = np.unique(key >> 32, return_inverse=True)
    ids = integers(markers, "id", null=-1)
    if pids.size == 1:
        return ids
    _, number = np.unique(ids, return_inverse=True)
    return np.asarray(number.astype(np.int64) * pids.size + process)


def _kinds(markers: pa.Table, begin: Ints) -> Ints:
    if "objectKind" not in markers.column_names:
        return np.full(begin.size, PUSH_POP, dtype=np.int8)
    kind = integers(markers, "objectKind", null=nvprof.THREAD)[begin]
    return np.where(kind == nvprof.THREAD, PUSH_POP, START_END).astype(np.int8)


def ranges_table(ranges: pa.Table, texts: Texts, known: Ints, launches: pa.Table, tally: Tally) -> pa.Table:
    """The table ``RANGES``.

    Args:
        ranges: As :func:`paired` gives them, with payloads.
        texts: Where texts are kept.
        known: Keys of the report's threads.
        launches: The finished launches, which may outlast a range that never ends.
        tally: Where losses are counted.
    """
    if not ranges.num_rows:
        return RANGES.empty()
    thread, end_thread = (thread_rows(integers(ranges, name), known) for name in ("thread_key", "end_key"))
    start, end, never_ended = _closed(ranges, thread, launches, tally)
    moved = end_thread != thread
    kind = np.where(moved, START_END, integers(ranges, "kind")).astype(np.int8)
    table = RANGES.table(
        {
            "start_ns": start,
            "end_ns": end,
            "open": never_ended,
            "kind": kind,
            "thread": thread.astype(np.int32),
            "end_thread": nullable(np.where(moved, end_thread, -1), pa.int32()),
            "domain": nullable(_strings(ranges, "domain", texts.domains), pa.int32()),
            "text": nullable(_strings(ranges, "name", texts.texts), pa.int32()),
            "payload_int": ranges.column("payload_int"),
            "payload_float": ranges.column("payload_float"),
            "payload_json": None,
            "forward_thread": None,
        }
    )
    return in_order(table, nesting_order(*one_axis([thread, thread], [start, end])))


def _strings(ranges: pa.Table, column: str, names: Names) -> Ints:
    if column not in ranges.column_names:
        return np.full(ranges.num_rows, -1)
    return names.rows(ranges.column(column), spelled=full_name)


def _closed(ranges: pa.Table, thread: Ints, launches: pa.Table, tally: Tally) -> tuple[Ints, Ints, Flags]:
    """Start and end of every range; one that never ended is closed at the last time seen on its thread."""
    never_ended = np.asarray(ranges.column("end").is_null())
    ends = np.where(never_ended, integers(ranges, "start"), integers(ranges, "end"))
    at = ranges.column_names.index("end")
    start, end = start_and_end(ranges.set_column(at, "end", pa.array(ends)), nvprof.MARKER.name, "ranges", tally)
    return start, ends_of_ranges(end, never_ended, thread, launches, tally), never_ended


def with_payloads(ranges: pa.Table, payloads: pa.Table) -> pa.Table:
    """The ranges with the numbers that were given to them."""
    if not ranges.num_rows:
        return ranges
    whole, fraction = [pa.nulls(ranges.num_rows, type_) for type_ in (pa.int64(), pa.float64())]
    if payloads.num_rows and {"id", "payloadKind", "payload"} <= set(payloads.column_names):
        values = _numbers(payloads)
        owners = np.array(list(values), dtype=np.int64)
        row = positions(integers(ranges, "id", null=-1), owners)
        numbers = [*values.values(), None]
        of_range = [numbers[at] for at in row.tolist()]
        whole = pa.array([value if isinstance(value, int) else None for value in of_range], pa.int64())
        fraction = pa.array([value if isinstance(value, float) else None for value in of_range], pa.float64())
    return ranges.append_column("payload_int", whole).append_column("payload_float", fraction)


def _numbers(payloads: pa.Table) -> dict[int, int | float]:
    """Payloads by the id of their marker; those of other kinds than plain numbers are none."""
    columns = (payloads.column(name).to_pylist() for name in ("id", "payloadKind", "payload"))
    return {
        owner: struct.unpack(_PAYLOADS[kind], raw[:_PAYLOAD_BYTES])[0]
        for owner, kind, raw in zip(*columns, strict=True)
        if owner is not None and kind in _PAYLOADS and raw is not None and len(raw) >= _PAYLOAD_BYTES
    }

"""NVTX rows of a report: as ranges, nested or not, with texts and domains stored once; names of threads; backtraces.

Backtraces of Python are for whoever asks which line launched a kernel (``show lines``), and exports with
``--include-blobs``, since schema 3.16. Each is a binary payload of a mark in a domain of its own; what does not fit is
ignored. The layout, as seen in exports of nsys 2026: 32 bytes with the numbers of domain and schema and the sizes of
the payload and of the whole, little-endian; then the payload.
"""

import struct
from dataclasses import replace
from html import unescape
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tracekit.arrays.columns import integers, nullable
from tracekit.arrays.groups import grouped
from tracekit.arrays.intervals import one_axis
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.causes import MARK, OTHER_EVENT, RAW_EVENT
from tracekit.nsight import tables as nsight
from tracekit.readers.nsight.threads import GlobalIds
from tracekit.readers.rows import Names, encoded, strings_of, times_of_ranges
from tracekit.readers.source import ENCODED, ENCODED_BLOB, ENCODED_TEXT, Request
from tracekit.recording.provenance import LossCounters
from tracekit.recording.tables import PUSH_POP, START_END, Launches, Ranges, nested
from tracekit.recording.values import deepest, source_line, stack_text

#: Most reports have nothing in these.
_RARE_COLUMNS = {"endGlobalTid": ENCODED, "jsonTextId": ENCODED, "jsonText": ENCODED_TEXT, "binaryData": ENCODED_BLOB}
_RARE_COLUMNS |= dict.fromkeys(("uint64Value", "int64Value", "uint32Value", "int32Value"), pa.int64())
_RARE_COLUMNS |= dict.fromkeys(("doubleValue", "floatValue"), pa.float64())
_COLUMNS = {"start": pa.int64(), "end": pa.int64(), "eventType": pa.int32(), "globalTid": ENCODED, "textId": ENCODED}
_COLUMNS |= {"text": ENCODED_TEXT, "domainId": ENCODED}
#: What to read of the events.
REQUEST = Request(nsight.NVTX, _COLUMNS | _RARE_COLUMNS, rare=tuple(_RARE_COLUMNS))
#: Event types that become ranges or name their domains.
_EVENTS = (*nsight.PUSH_POP_RANGES, *nsight.START_END_RANGES, nsight.DOMAIN_CREATED)


def ranges_table(
    events: pa.Table, strings: pa.Table, ids: GlobalIds, launches: Launches, counters: LossCounters
) -> tuple[Ranges, list[str], list[str]]:
    """The ranges in rows of NVTX_EVENTS, the distinct texts and the distinct names of domains.

    Finished launches may outlast a range that never ends.
    """
    if not events.num_rows:
        return Ranges.empty(), [], []
    types = integers(events, "eventType")
    used = np.isin(types, _EVENTS)
    if not used.all():
        _count_others(types[~used], counters)
        events, types = events.filter(pa.array(used)), types[used]
    texts, text = _texts(events, strings, "text")
    is_domain = types == nsight.DOMAIN_CREATED
    domains, domain = _domains(events, is_domain, ids, texts, text)
    if is_domain.any():
        kept = ~is_domain
        events, types, text, domain = events.filter(pa.array(kept)), types[kept], text[kept], domain[kept]
    thread = ids.threads(events.column("globalTid"))
    start, end, never_ended = times_of_ranges(events, nsight.NVTX.name, thread, launches, counters)
    ended = ids.known_threads(events.column("endGlobalTid")) if "endGlobalTid" in events.column_names else thread
    payloads, payload = _texts(events, strings, "jsonText")
    ranges = Ranges.of(
        start_ns=start,
        end_ns=end,
        open=never_ended,
        kind=np.where(np.isin(types, nsight.START_END_RANGES), START_END, PUSH_POP),
        thread=thread,
        end_thread=np.where(ended == thread, -1, ended),
        domain=domain,
        text=text,
        payload_int=_first_of(events, "int64Value", "uint64Value", "int32Value", "uint32Value"),
        payload_float=_first_of(events, "doubleValue", "floatValue"),
        payload_json=pa.array(payloads, pa.string()).take(nullable(payload, pa.int32())) if payloads else None,
    )
    return nested(ranges), texts, domains


def named_threads(events: pa.Table, strings: pa.Table, ids: GlobalIds) -> list[tuple[int, str]]:
    """The names that NVTX gave to threads: row of the process and name."""
    if "eventType" not in events.column_names:
        return []
    naming = np.flatnonzero(integers(events, "eventType") == nsight.THREAD_NAMED)
    if not naming.size:
        return []
    rows = events.take(pa.array(naming))
    texts, text = _texts(rows, strings, "text")
    process = ids.process_of(rows.column("globalTid"))
    return [(process[at], texts[text[at]]) for at in np.flatnonzero(text >= 0)]


def _count_others(types: Ints, counters: LossCounters) -> None:
    marks, raw = np.isin(types, nsight.MARKS), np.isin(types, nsight.RAW_EVENTS)
    others = ~(marks | raw | (types == nsight.THREAD_NAMED))
    for cause, which in ((MARK, marks), (RAW_EVENT, raw), (OTHER_EVENT, others)):
        counters.add("events", cause, int(which.sum()))


def _texts(events: pa.Table, strings: pa.Table, column: str) -> tuple[list[str], Ints]:
    """The distinct texts, and for each row its text's number: the inline one or the registered one; -1 without either.

    A registered text comes before an empty inline one.
    """
    names = Names(strings)
    row, inline = names.rows(events, f"{column}Id"), names.rows_of_texts(events, column)
    use_inline = (inline >= 0) & ((inline != names.known("")) | (row < 0))
    return names.used, np.where(use_inline, inline, row) if use_inline.any() else row


def _domains(
    events: pa.Table, is_domain: Flags, ids: GlobalIds, texts: list[str], text: Ints
) -> tuple[list[str], Ints]:
    """The distinct domain names, and for each row its domain's number; -1 for the default domain.

    Domains are numbered per process, and named by the first row that does.
    """
    if "domainId" not in events.column_names:
        return [], np.full(events.num_rows, -1, dtype=np.int32)
    values, row = encoded(events.column("domainId"))
    numbers = np.append(np.asarray(values, dtype=np.int64), 0)
    if not numbers.any():
        return [], np.full(events.num_rows, -1, dtype=np.int32)
    number = numbers[row]
    domains = grouped((ids.process_of(events.column("globalTid")), number))
    named: dict[int, str] = {}
    for naming in np.flatnonzero(is_domain & (text >= 0)).tolist():
        named.setdefault(int(domains.group[naming]), texts[text[naming]])
    names: dict[str, int] = {}
    row_of = np.full(domains.first.size, -1, dtype=np.int32)
    for domain, own in enumerate(number[domains.first].tolist()):
        if own:
            row_of[domain] = names.setdefault(named.get(domain, f"domain#{own}"), len(names))
    return list(names), row_of[domains.group]


def _first_of(events: pa.Table, *columns: str) -> pa.Array | None:
    present = [events.column(name) for name in columns if name in events.column_names]
    filled = [column for column in present if column.null_count < len(column)]
    return pc.coalesce(*filled).combine_chunks() if filled else None


#: Backtraces that nsys takes (``--python-backtrace``, ``--python-sampling``), as reports of nsys 2023.4 have them: the
#: state of the thread, what took it (1 a sample, 2 an API call), the number of frames (upper bytes are not written);
#: then of each frame the ids of function and file among the strings, and the line, the innermost first.
_HEADER_BYTES, _HEAD, _HEAD_BYTES, _BY_CALL = 32, struct.Struct("<IIH"), 16, 2
_FRAME = np.dtype([("function", "<u8"), ("file", "<u8"), ("line", "<u8")])
_LAST_LINE = 10**9
_Frames: TypeAlias = NDArray[Any]


def with_backtraces(
    launches: Launches, failed: Launches, events: pa.Table, strings: pa.Table, ids: GlobalIds
) -> tuple[Launches, list[str]]:
    """The launches with the backtraces taken in them, or by them since the call before, and the distinct stacks."""
    if "binaryData" not in events.column_names or not len(launches):
        return launches, []
    blobs, blob = encoded(events.column("binaryData"))
    found = [_frames(payload) for payload in blobs.to_pylist()]
    stacks, of_blob = _stacks([frames for _, frames in found], strings)
    by_call = np.array([*(taken == _BY_CALL for taken, _ in found), False])
    marks = np.flatnonzero(np.isin(integers(events, "eventType"), nsight.MARKS) & (of_blob[blob] >= 0))
    taken = events.select(["start", "globalTid"]).take(pa.array(marks))
    thread, time, blob = ids.threads(taken.column("globalTid")), integers(taken, "start"), blob[marks]
    mark = _mark_of(launches, failed, thread, time, by_call[blob])
    return replace(launches, stack=np.append(of_blob[blob], -1)[mark]), stacks


def _frames(blob: bytes) -> tuple[int, _Frames]:
    payload = blob[_HEADER_BYTES:]
    taken, count = _HEAD.unpack_from(payload)[1:] if len(payload) >= _HEAD_BYTES else (0, -1)
    if len(payload) != _HEAD_BYTES + count * _FRAME.itemsize:
        return 0, np.empty(0, _FRAME)
    return taken, np.frombuffer(payload, _FRAME, offset=_HEAD_BYTES)


def _stacks(backtraces: list[_Frames], strings: pa.Table) -> tuple[list[str], Rows]:
    """The distinct stacks, and the row of that of each backtrace; -1 if a frame of it has no text, or all are torch's.

    The last row is -1, of marks without a payload.
    """
    ids = [np.unique(frames[name]) for frames in backtraces for name in ("function", "file")]
    texts = strings_of(strings, np.unique(np.concatenate([*ids, np.empty(0, np.uint64)])).astype(np.int64))
    known: dict[str, int] = {}
    most, rows = deepest(len(backtraces)), []
    for frames in backtraces:
        lines = _lines(frames, texts)
        rows.append(known.setdefault(stack_text(lines[:most]), len(known)) if lines else -1)
    return list(known), np.array([*rows, -1], dtype=np.int64)


def _lines(frames: _Frames, texts: dict[int, str]) -> list[str]:
    lines = []
    for function, file, number in frames.tolist():
        if function not in texts or file not in texts or not 0 < number < _LAST_LINE:
            return []
        if line := source_line(unescape(texts[file]), number, unescape(texts[function])):
            lines.append(line)
    return lines


def _mark_of(launches: Launches, failed: Launches, thread: Rows, time: Ints, by_call: Flags) -> Rows:
    """The last mark of each launch's thread until its end: taken in it, or by a call after the end of that before."""
    calls = Launches.concat([launches, failed])
    start, end, at = one_axis([calls.thread, calls.thread, thread], [calls.start_ns, calls.end_ns, time])
    order = np.argsort(at, kind="stable")
    mark = np.searchsorted(at[order], end[: len(launches)], side="right") - 1
    start, ended = start[: len(launches)], np.sort(end)
    before = np.append(ended, at.min(initial=0) - 1)[np.searchsorted(ended, start, side="right") - 1]
    row = np.append(order, -1)[mark]
    when, caller = np.append(at, 0)[row], np.append(thread, -1)[row]
    fits = (when >= start) | (np.append(by_call, False)[row] & (when >= before))
    return np.where((row >= 0) & (caller == launches.thread) & fits, row, -1)

"""Binary payloads of NVTX events, decoded: those of ranges as JSON, backtraces of Python as the stacks of API calls.

Ranges: for whoever exports with ``--include-blobs`` and not ``--include-json``, else the sizes of NCCL's collectives
are lost. The report stores the schemas beside them; only a single payload of plain integers is decoded.

Backtraces: for whoever asks which line launched a kernel (``show lines``). Each is a mark in a domain of its own.
Exports hold payloads since schema 3.16; what does not fit is ignored.

The layout, as seen in exports of nsys 2026: 32 bytes with the numbers of domain and schema and the sizes of the payload
and of the whole, little-endian; then the payload.
"""

import json
import struct
from collections import defaultdict
from dataclasses import replace
from html import unescape
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tracekit.arrays.columns import integers
from tracekit.arrays.intervals import one_axis
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.nsight import tables as nsight
from tracekit.readers.nsight.threads import GlobalIds
from tracekit.readers.rows import strings_of
from tracekit.readers.source import ENCODED_TEXT, TableSource, has
from tracekit.recording.tables import Launches
from tracekit.recording.values import deepest, source_line, stack_text

_HEADER = struct.Struct("<IIIIQQ")
#: Types of integers in NVTX's header ``nvToolsExtPayload.h``, the last of them ``size_t``, as Python reads them.
_FORMATS = dict(zip((*range(3, 19), 22), "hHiIqQqQbBhHiIqQQ", strict=True))
_COLUMNS = ("domainId", "schemaId", "flags", "type", "name", "offset")


def with_json(events: pa.Table, source: TableSource) -> pa.Table:
    """Rows of NVTX_EVENTS with binary payloads as ``jsonText``, where they can be read and have no such text."""
    if "binaryData" not in events.column_names:
        return events
    schemas, blobs = _schemas(source), events.column("binaryData").combine_chunks()
    decoded = [None if blob is None else _json(blob, schemas) for blob in blobs.dictionary.to_pylist()]
    texts = pa.chunked_array([pa.array(decoded, pa.string()).take(blobs.indices)])
    rest = events.drop_columns(["binaryData"])
    if "jsonText" in rest.column_names:
        texts, rest = pc.coalesce(rest.column("jsonText").cast(pa.string()), texts), rest.drop_columns(["jsonText"])
    return rest.append_column("jsonText", texts.dictionary_encode().cast(ENCODED_TEXT))


#: By domain and schema, formats and offsets of integers by their names.
_Schemas = dict[tuple[int, int], dict[str, set[tuple[str, int]]]]


def _payload_of(blob: bytes) -> tuple[tuple[int, int], bytes]:
    """The domain and schema of a binary payload, and its content; nothing if it is none."""
    if len(blob) < _HEADER.size:
        return (0, 0), b""
    domain, _, schema, _, size, whole = _HEADER.unpack_from(blob)
    fits = len(blob) == whole == _HEADER.size + size
    return (domain, schema), blob[_HEADER.size :] if fits else b""


def _json(blob: bytes, schemas: _Schemas) -> str | None:
    key, payload = _payload_of(blob)
    if not payload or key not in schemas:
        return None
    fields = [(name, kind, at) for name, forms in schemas[key].items() for kind, at in forms]
    if any(at + struct.calcsize(kind) > len(payload) for _, kind, at in fields):
        return None
    return json.dumps({name: struct.unpack_from(kind, payload, at)[0] for name, kind, at in fields})


def _schemas(source: TableSource) -> _Schemas:
    """The integers in each schema. Each process writes its own; a schema of which two differ is left out."""
    schemas: defaultdict[tuple[int, int], dict[str, set[tuple[str, int]]]] = defaultdict(dict)
    table = nsight.PAYLOAD_ENTRIES
    rows = source.values(table.name, _COLUMNS) if has(source, table, *_COLUMNS) else []
    for domain, schema, flags, kind, name, offset in rows:
        at = offset or 0
        if kind in _FORMATS and not flags and isinstance(name, str) and isinstance(at, int) and at >= 0:
            schemas[domain, schema].setdefault(name, set()).add((f"<{_FORMATS[kind]}", at))
    return {key: known for key, known in schemas.items() if all(len(forms) == 1 for forms in known.values())}


#: Backtraces that nsys takes (``--python-backtrace``, ``--python-sampling``), as reports of nsys 2023.4 have them: the
#: state of the thread, what took it (1 a sample, 2 an API call), the number of frames (upper bytes are not written);
#: then of each frame the ids of function and file among the strings, and the line, the innermost first.
_HEAD, _HEAD_BYTES, _BY_CALL = struct.Struct("<IIH"), 16, 2
_FRAME = np.dtype([("function", "<u8"), ("file", "<u8"), ("line", "<u8")])
_LAST_LINE = 10**9
_EDGES = ("start_ns", "end_ns")
_Frames: TypeAlias = "NDArray[Any]"


def with_backtraces(
    launches: Launches, failed: Launches, events: pa.Table, strings: pa.Table, ids: GlobalIds
) -> tuple[Launches, list[str]]:
    """The launches with the backtraces taken in them, or by them since the call before, and the distinct stacks."""
    if "binaryData" not in events.column_names or not len(launches):
        return launches, []
    blobs = events.column("binaryData").combine_chunks()
    found = [_frames(blob) for blob in blobs.dictionary.to_pylist()]
    stacks, of_blob = _stacks([frames for _, frames in found], strings)
    by_call = np.array([*(taken == _BY_CALL for taken, _ in found), False])
    blob = np.asarray(blobs.indices.fill_null(-1))
    marks = np.flatnonzero(np.isin(integers(events, "eventType"), nsight.MARKS) & (of_blob[blob] >= 0))
    taken = events.select(["start", "globalTid"]).take(pa.array(marks))
    thread, time, blob = ids.threads(taken.column("globalTid")), integers(taken, "start"), blob[marks]
    mark = _mark_of(launches, failed, thread, time, by_call[blob])
    return replace(launches, stack=np.append(of_blob[blob], -1)[mark]), stacks


def _frames(blob: bytes) -> tuple[int, _Frames]:
    payload = _payload_of(blob)[1]
    if len(payload) >= _HEAD_BYTES and (len(payload) - _HEAD_BYTES) % _FRAME.itemsize == 0:
        _, taken, count = _HEAD.unpack_from(payload)
        frames = np.frombuffer(payload, _FRAME, offset=_HEAD_BYTES)
        if count == frames.size:
            return taken, frames
    return 0, np.empty(0, _FRAME)


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
    for function, file, line in frames.tolist():
        if function not in texts or file not in texts or not 0 < line < _LAST_LINE:
            return []
        lines.append(source_line(unescape(texts[file]), line, unescape(texts[function])))
    return [line for line in lines if line is not None]


def _mark_of(launches: Launches, failed: Launches, thread: Rows, time: Ints, by_call: Flags) -> Rows:
    """The last mark of each launch's thread until its end: taken in it, or by a call after the end of that before."""
    starts, ends = (np.concatenate([getattr(calls, name) for calls in (launches, failed)]) for name in _EDGES)
    threads = np.append(launches.thread, failed.thread)
    start, end, at = one_axis([threads, threads, thread], [starts, ends, time])
    order = np.argsort(at, kind="stable")
    mark = np.searchsorted(at[order], end[: len(launches)], side="right") - 1
    start, ended = start[: len(launches)], np.sort(end)
    before = np.append(ended, at.min(initial=0) - 1)[np.searchsorted(ended, start, side="right") - 1]
    row = np.append(order, -1)[mark]
    when, caller = np.append(at, 0)[row], np.append(thread, -1)[row]
    fits = (when >= start) | (np.append(by_call, False)[row] & (when >= before))
    return np.where((row >= 0) & (caller == launches.thread) & fits, row, -1)

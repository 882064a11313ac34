"""Backtraces of Python that nsys takes (``--python-backtrace``, ``--python-sampling``), as the stacks of API calls.

For whoever asks which line launched a kernel (``show lines``) and recorded with one of these options.
Each is a mark in a domain of its own with a binary payload, as seen in reports of nsys 2023.4: the state of the thread,
what took it (1 a sample, 2 an API call) and the number of frames; then of each frame the ids of function and file among
the strings, and the line, the innermost first. Exports hold payloads since schema 3.16; what does not fit is ignored.
"""

import struct
from dataclasses import replace
from html import unescape
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tracekit.arrays.columns import integers
from tracekit.arrays.intervals import one_axis
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.nsight import tables as nsight
from tracekit.readers.nsight.payloads import payload_of
from tracekit.readers.nsight.threads import GlobalIds
from tracekit.readers.rows import strings_of
from tracekit.recording.tables import Launches
from tracekit.recording.values import deepest, source_line, stack_text

#: State of the thread, what took it, the number of frames (its upper bytes are not written).
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
    payload = payload_of(blob)[1]
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

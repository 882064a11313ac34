"""Steps, calls of modules and kernels as events of Chrome's trace format, which Perfetto opens too.

The format is Google's "Trace Event Format": complete events (``ph: X``) in microseconds on threads of processes, named
by metadata events (``ph: M``). Its processes here are the recorded ones and the devices, its threads the steps, module
calls and operators of a thread, and the streams of a device. Viewers drop slices of a thread that overlap without
nesting, which kernels of one stream do where a CUDA graph runs them side by side, and calls of one thread whose
markers are start/end ranges: those get lanes of their own.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.arrays.intervals import lanes
from tracekit.arrays.lanes import nested_lanes
from tracekit.arrays.text import json_text
from tracekit.dataset.opening import REPORT
from tracekit.exports.tracks import MODULES, OPERATORS, STEPS, WORK, Tracks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from gzip import GzipFile
    from io import BufferedWriter

    from tracekit.arrays.types import Ints
    from tracekit.dataset.opening import Dataset
    from tracekit.exports.times import Spelling
    from tracekit.progress import Progress

_STEP_COLUMNS = ["name", "start_ns", "end_ns", "pid", "rank", "tid"]
_STEP_ARGS = ["step_id", "kind", "index", "batch_size", "tokens"]
_CALL_COLUMNS = ["module_id", "start_ns", "end_ns", "pid", "rank", "tid"]
_CALL_ARGS = ["module", "phase", "inputs", "outputs", "kwargs", "step_id", "call_id", "gpu_time_ns"]
_WORK_COLUMNS = [
    "name",
    "kind",
    "start_ns",
    "end_ns",
    "pid",
    "rank",
    "tid",
    "device",
    "context",
    "stream",
]
_WORK_ARGS = ["module", "cause", "step_id", "call_id", "kernel_id", "full_name", "bytes"]
_OPERATOR = "cpu_op"


def write_timeline(file: BufferedWriter | GzipFile, dataset: Dataset, progress: Progress, spelled: Spelling) -> None:
    """Writes the whole trace, row group by row group.

    Args:
        file: Where to.
        dataset: The dataset.
        progress: Told how far it is.
        spelled: How times are written.
    """
    timeline = _Timeline(dataset, spelled)
    said = {
        "tracekit": dataset.manifest.get("tracekit"),
        "dataset": dataset.folder.name,
        "times_moved_by_ns": timeline.moved_by_ns,
    }
    # Perfetto's JSON knows no surrogates, by which ASCII would spell some letters.
    other = json.dumps(said, ensure_ascii=False).encode("utf-8", "replace")
    file.write(b'{"displayTimeUnit": "ns", "otherData": ' + other + b",\n")
    file.write(b'"traceEvents": [\n')
    separator = b""
    for events in timeline.events(progress):
        if len(events):
            file.write(separator)
            file.write(_lines(events))
            separator = b",\n"
    for event in timeline.tracks.events():
        file.write(separator + event.encode())
        separator = b",\n"
    file.write(b"\n]}\n")
    progress("exporting", 1.0)


def _lines(events: pa.Array) -> pa.Buffer:
    whole = pa.LargeListArray.from_arrays(pa.array([0, len(events)], pa.int64()), events)
    return pc.binary_join(whole, ",\n")[0].as_buffer()


class _Timeline:
    """The events of a dataset, and the tracks that they are on.

    Attributes:
        tracks: The tracks.
        moved_by_ns: How much later all is drawn than it was: Perfetto leaves out what is before 0.
    """

    def __init__(self, dataset: Dataset, spelled: Spelling) -> None:
        self._dataset = dataset
        self._spelled = spelled
        self.tracks = Tracks(dataset.reports)
        self._offset = _offsets(dataset)
        self.moved_by_ns = max(0, -_earliest(dataset, self._offset))
        self._more = [REPORT] if dataset.reports else []

    def events(self, progress: Progress) -> Iterator[pa.Array]:
        """JSON texts, of some ten thousand slices at a time."""
        rows, done = self._dataset.manifest["rows"], 0
        total = max(sum(rows[name] for name in ("steps", "calls", "kernels")), 1)
        for slices in (self._steps(), self._calls(), self._work()):
            for events in slices:
                done += len(events)
                yield events
                progress("exporting", done / total)

    def _steps(self) -> Iterator[pa.Array]:
        lane = self._lanes("steps", ["pid", "tid"])
        for piece, its in self._pieces("steps", _STEP_COLUMNS + _STEP_ARGS, lane):
            kind = np.full(piece.num_rows, STEPS)
            yield self._slices(piece, json_text(piece.column("name")), "step", (kind, its))

    def _calls(self) -> Iterator[pa.Array]:
        modules = self._dataset.table("modules", ["path", "name"]).to_pylist()
        short = pa.array([_short(one["path"], one["name"]) for one in modules], pa.string())
        names = json_text(short)
        lane = self._nested_lanes()
        for piece, its in self._pieces("calls", _CALL_COLUMNS + _CALL_ARGS, lane):
            name = names.take(piece.column("module_id").combine_chunks())
            kind = np.full(piece.num_rows, MODULES)
            yield self._slices(piece, name, "module", (kind, its))

    def _work(self) -> Iterator[pa.Array]:
        lane = self._lanes("kernels", ["pid", "device", "context", "stream"])
        for piece, its in self._pieces("kernels", _WORK_COLUMNS + _WORK_ARGS, lane):
            kind = piece.column("kind").cast(pa.string())
            on_host = np.asarray(pc.equal(kind, _OPERATOR))
            name = pc.coalesce(piece.column("name").cast(pa.string()), kind)
            tracks = np.where(on_host, OPERATORS, WORK), np.where(on_host, 0, its)
            yield self._slices(piece, json_text(name), "work", tracks)

    def _lanes(self, table: str, keys: list[str]) -> Ints:
        whole = self._dataset.table(table, [*keys, "start_ns", "end_ns", *self._more])
        start, end = (np.asarray(whole.column(name)) for name in ("start_ns", "end_ns"))
        return lanes(_numbered(whole, [*keys, *self._more]), start, end)

    def _nested_lanes(self) -> Ints:
        """The lanes of calls: start/end ranges that are calls can overlap those of their thread."""
        keys, times = ["pid", "tid", *self._more], ["start_ns", "end_ns"]
        whole = self._dataset.table("calls", [*keys, *times, "call_id", "parent_call_id"])
        start, end = (np.asarray(whole.column(name)) for name in times)
        above = pc.index_in(whole.column("parent_call_id"), value_set=whole.column("call_id"))
        parent = np.asarray(above.fill_null(-1).cast(pa.int64()))
        return nested_lanes(_numbered(whole, keys), start, end, parent)

    def _pieces(self, table: str, columns: list[str], lane: Ints) -> Iterator[tuple[pa.Table, Ints]]:
        """The rows with their lanes."""
        at = 0
        for piece in self._dataset.pieces(table, [*columns, *self._more]):
            yield piece, lane[at : at + piece.num_rows]
            at += piece.num_rows

    def _slices(self, piece: pa.Table, name: pa.Array, category: str, track: tuple[Ints, Ints]) -> pa.Array:
        """Complete events as JSON."""
        process, thread = self.tracks.numbered(piece, *track)
        later = self.moved_by_ns
        if REPORT in piece.column_names and piece.num_rows:
            later += self._offset[piece.column(REPORT)[0].as_py()]
        start, length = self._spelled(*(np.asarray(piece.column(one)) + later for one in ("start_ns", "end_ns")))
        args = [column for column in piece.column_names if column in _ARGS[category]]
        texts = [json_text(piece.column(column)) for column in args]
        parts: list[str | pa.Array] = ['{"ph": "X", "cat": "', category, '", "pid": ']
        parts += [pa.array(process).cast(pa.string()), ', "tid": ']
        parts += [pa.array(thread).cast(pa.string()), ', "ts": ', start]
        parts += [', "dur": ', length, ', "name": ', name, ', "args": {']
        for at, (column, text) in enumerate(zip(args, texts, strict=True)):
            parts += [f'{", " if at else ""}"{column}": ', pc.fill_null(text, "null")]
        return pc.binary_join_element_wise(*parts, "}}", "")


def _numbered(table: pa.Table, keys: list[str]) -> Ints:
    """A number for every row, the same for those whose keys are the same."""
    found = np.zeros(table.num_rows, np.int64)
    for key in keys:
        column = table.column(key).combine_chunks()
        if pa.types.is_dictionary(column.type):
            column = column.indices
        code = np.asarray(column.cast(pa.int64()).fill_null(-1))
        _, code = np.unique(code, return_inverse=True)
        _, found = np.unique(found * (int(code.max(initial=0)) + 1) + code, return_inverse=True)
    return found


_ARGS = {"step": _STEP_ARGS, "module": _CALL_ARGS, "work": ["kind", *_WORK_ARGS]}


def _short(path: str, name: str) -> str:
    """The name of a module; of a numbered one, its parent's too: ``layers.3``."""
    return ".".join(path.split(".")[-2:]) if name.isdecimal() else name


def _earliest(dataset: Dataset, offset: dict[str, int]) -> int:
    """When the first slice begins, on the clock of all; 0 if there is none."""
    return min(
        (
            pc.min(piece.column("start_ns")).as_py() + (offset[piece.column(REPORT)[0].as_py()] if offset else 0)
            for table in ("steps", "calls", "kernels")
            for piece in dataset.pieces(table, ["start_ns", *([REPORT] if offset else [])])
            if piece.num_rows
        ),
        default=0,
    )


def _offsets(dataset: Dataset) -> dict[str, int]:
    """What to add to the times of each report, so that those of all are on one clock; nothing if one does not know."""
    entries = dataset.manifest.get("reports", [])
    started = [entry["source"].get("started_utc_ns") for entry in entries]
    known = [one for one in started if one is not None]
    if len(known) < len(started):
        return dict.fromkeys(dataset.reports, 0)
    return {entry["name"]: at - min(known) for entry, at in zip(entries, known, strict=True)}

"""Steps, calls of modules and kernels as events of Chrome's trace format, which Perfetto opens too.

The format is Google's "Trace Event Format": complete events (``ph: X``) in microseconds on threads of processes, named
by metadata events (``ph: M``). Its processes are the recorded processes and the devices; its threads are the steps,
module calls and operators of a thread, and the streams of a device. Viewers drop slices of a thread that overlap
without nesting. Kernels of one stream do so where a CUDA graph runs them side by side, and so do calls whose markers
are start/end ranges: they get lanes of their own.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.analyses.nodes import noun
from tracekit.analyses.subtrees import hierarchy
from tracekit.arrays.columns import integers
from tracekit.arrays.groups import grouped
from tracekit.arrays.labels import labels
from tracekit.arrays.lanes import lanes, nested_lanes
from tracekit.arrays.lookups import positions
from tracekit.arrays.text import json_text
from tracekit.dataset.opening import REPORT
from tracekit.exports.tracks import CALLS, OPERATORS, STEPS, WORK, Tracks

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
        file: The file to write to.
        dataset: The dataset.
        progress: Called with the share that is done.
        spelled: How times are written.
    """
    timeline = _Timeline(dataset, spelled)
    file.write(b'{"displayTimeUnit": "ns", "otherData": ' + _other_data(dataset, timeline) + b",\n")
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


def _other_data(dataset: Dataset, timeline: _Timeline) -> bytes:
    fields = {
        "tracekit": dataset.manifest.get("tracekit"),
        "dataset": dataset.folder.name,
        "times_moved_by_ns": timeline.moved_by_ns,
    }
    # Perfetto's JSON has no surrogates, which ASCII would need for some letters.
    return json.dumps(fields, ensure_ascii=False).encode("utf-8", "replace")


def _lines(events: pa.Array) -> pa.Buffer:
    whole = pa.LargeListArray.from_arrays(pa.array([0, len(events)], pa.int64()), events)
    return pc.binary_join(whole, ",\n")[0].as_buffer()


class _Timeline:
    """The events of a dataset, and their tracks.

    Attributes:
        tracks: The tracks.
        moved_by_ns: How much later everything is drawn: Perfetto leaves out what begins before 0.
    """

    def __init__(self, dataset: Dataset, spelled: Spelling) -> None:
        self._dataset = dataset
        self._spelled = spelled
        self.tracks = Tracks(dataset.reports, f"{noun(dataset)}s")
        self._offset = _offsets(dataset)
        self.moved_by_ns = max(0, -_earliest(dataset, self._offset))
        self._report_column = [REPORT] if dataset.reports else []

    def events(self, progress: Progress) -> Iterator[pa.Array]:
        """Events as JSON, in batches of some ten thousand."""
        rows, done = self._dataset.manifest["rows"], 0
        total = max(sum(rows[name] for name in ("steps", "calls", "kernels")), 1)
        for slices in (self._steps(), self._calls(), self._work()):
            for events in slices:
                done += len(events)
                yield events
                progress("exporting", done / total)

    def _steps(self) -> Iterator[pa.Array]:
        lane = self._lanes("steps", ["pid", "tid"])
        for piece, lanes_ in self._pieces("steps", _STEP_COLUMNS + _STEP_ARGS, lane):
            kind = np.full(piece.num_rows, STEPS)
            yield self._slices(piece, json_text(piece.column("name")), "step", (kind, lanes_))

    def _calls(self) -> Iterator[pa.Array]:
        modules = hierarchy(self._dataset)
        short = [_short(name, above, modules.name) for name, above in zip(modules.name, modules.parent, strict=True)]
        names = json_text(pa.array(short, pa.string()))
        lane = self._nested_lanes()
        for piece, lanes_ in self._pieces("calls", _CALL_COLUMNS + _CALL_ARGS, lane):
            name = names.take(piece.column("module_id").combine_chunks())
            kind = np.full(piece.num_rows, CALLS)
            yield self._slices(piece, name, "module", (kind, lanes_))

    def _work(self) -> Iterator[pa.Array]:
        lane = self._lanes("kernels", ["pid", "device", "context", "stream"])
        for piece, lanes_ in self._pieces("kernels", _WORK_COLUMNS + _WORK_ARGS, lane):
            kind = piece.column("kind").cast(pa.string())
            on_host = np.asarray(pc.equal(kind, _OPERATOR))
            name = pc.coalesce(piece.column("name").cast(pa.string()), kind)
            tracks = np.where(on_host, OPERATORS, WORK), np.where(on_host, 0, lanes_)
            yield self._slices(piece, json_text(name), "work", tracks)

    def _lanes(self, table: str, keys: list[str]) -> Ints:
        whole = self._dataset.table(table, [*keys, "start_ns", "end_ns", *self._report_column])
        start, end = (np.asarray(whole.column(name)) for name in ("start_ns", "end_ns"))
        return lanes(_numbered(whole, [*keys, *self._report_column]), start, end)

    def _nested_lanes(self) -> Ints:
        """The lanes of calls: those of start/end ranges can overlap other calls of their thread."""
        keys, times = ["pid", "tid", *self._report_column], ["start_ns", "end_ns"]
        whole = self._dataset.table("calls", [*keys, *times, "call_id", "parent_call_id"])
        start, end = (np.asarray(whole.column(name)) for name in times)
        parent = positions(integers(whole, "parent_call_id"), integers(whole, "call_id"))
        return nested_lanes(_numbered(whole, keys), start, end, parent)

    def _pieces(self, table: str, columns: list[str], lane: Ints) -> Iterator[tuple[pa.Table, Ints]]:
        """The rows with their lanes."""
        first = 0
        for piece in self._dataset.pieces(table, [*columns, *self._report_column]):
            yield piece, lane[first : first + piece.num_rows]
            first += piece.num_rows

    def _slices(self, piece: pa.Table, name: pa.Array, category: str, track: tuple[Ints, Ints]) -> pa.Array:
        """Complete events as JSON."""
        process, thread = self.tracks.numbered(piece, *track)
        offset = self.moved_by_ns
        if REPORT in piece.column_names and piece.num_rows:
            offset += self._offset[piece.column(REPORT)[0].as_py()]
        start, length = self._spelled(*(np.asarray(piece.column(time)) + offset for time in ("start_ns", "end_ns")))
        parts: list[str | pa.Array] = ['{"ph": "X", "cat": "', category, '", "pid": ']
        parts += [pa.array(process).cast(pa.string()), ', "tid": ']
        parts += [pa.array(thread).cast(pa.string()), ', "ts": ', start]
        parts += [', "dur": ', length, ', "name": ', name, ', "args": {', *_args(piece, category)]
        return pc.binary_join_element_wise(*parts, "}}", "")


def _args(piece: pa.Table, category: str) -> Iterator[str | pa.Array]:
    """The members of the events' ``args``, one after the other."""
    separator = ""
    for column in piece.column_names:
        if column in _ARGS[category]:
            yield f'{separator}"{column}": '
            yield pc.fill_null(json_text(piece.column(column)), "null")
            separator = ", "


def _numbered(table: pa.Table, keys: list[str]) -> Ints:
    """A number for every row, the same for those whose keys are the same."""
    is_category = {key: pa.types.is_dictionary(table.schema.field(key).type) for key in keys}
    return grouped([labels(table, key).code if is_category[key] else integers(table, key) for key in keys]).group


_ARGS = {"step": _STEP_ARGS, "module": _CALL_ARGS, "work": ["kind", *_WORK_ARGS]}


def _short(name: str, parent: int, names: list[str]) -> str:
    """The name of a module; if it is a number, after its parent's: ``layers.3``."""
    return f"{names[parent]}.{name}" if name.isdecimal() and parent >= 0 else name


def _earliest(dataset: Dataset, offset: dict[str, int]) -> int:
    """When the first slice begins, on the common clock; 0 if there is none."""
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
    """What to add to the times of each report to put all on one clock; 0 if the start of some report is unknown."""
    entries = dataset.manifest.get("reports", [])
    started = [entry["source"].get("started_utc_ns") for entry in entries]
    known = [start_ns for start_ns in started if start_ns is not None]
    if len(known) < len(started):
        return dict.fromkeys(dataset.reports, 0)
    return {entry["name"]: start_ns - min(known) for entry, start_ns in zip(entries, known, strict=True)}

"""Steps, calls of modules and kernels as events of Chrome's trace format, which Perfetto opens too.

The format is Google's "Trace Event Format": complete events (``ph: X``) in microseconds on threads of processes, named
by metadata events (``ph: M``). Its processes are the recorded processes and the devices; its threads are the steps,
module calls, operators and ranges of a thread, and the streams of a device. Viewers drop slices of a thread that
overlap without nesting. Kernels of one stream do so where a CUDA graph runs them side by side, and so do start/end
ranges: they get lanes of their own.

Ranges, API calls and device work have the categories and members that torch.profiler gives them, and what else
:mod:`tracekit.readers.exported` needs to read the same tables again.
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
from tracekit.exports.about import about
from tracekit.exports.members import always, flag, member, sizes, where_known
from tracekit.exports.sessions import earliest, offsets
from tracekit.exports.tracks import CALLS, OPERATORS, RANGES, STEPS, WORK, Tracks
from tracekit.markers.scripted import FIELD, Node, hierarchy_texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from gzip import GzipFile
    from io import BufferedWriter

    from tracekit.arrays.types import Ints
    from tracekit.dataset.opening import Dataset
    from tracekit.exports.members import Part
    from tracekit.exports.times import Spelling
    from tracekit.progress import Progress

_STEP_COLUMNS = ["name", "start_ns", "end_ns", "pid", "rank", "tid"]
_STEP_ARGS = ["step_id", "kind", "index", "batch_size", "tokens"]
_CALL_COLUMNS = ["module_id", "start_ns", "end_ns", "pid", "rank", "tid"]
_CALL_ARGS = ["module", "phase", "inputs", "outputs", "kwargs", "step_id", "call_id", "range_id", "gpu_time_ns"]
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
_WORK_ARGS = ["kind", "module", "cause", "step_id", "call_id", "kernel_id", "full_name", "bytes"]
#: What is written where it is known, by column.
_WORK_MEMBERS = {
    **{name: name for name in ("device", "context", "stream", "method", "copy_kind", "graph_exec_id")},
    **{name: name for name in ("static_smem_bytes", "dynamic_smem_bytes")},
    "correlation_id": "correlation",
    "registers": "registers per thread",
    "graph_id": "graph id",
    "graph_node_id": "graph node id",
    "original_graph_node_id": "original_graph_node_id",
}
_SIZES = ("grid", "block")
#: Categories of work, as torch.profiler names them.
_CATEGORIES = {"memcpy": "gpu_memcpy", "memset": "gpu_memset"}
_OPERATOR = "cpu_op"

_RANGE_COLUMNS = ["text", "marker", "open", "start_ns", "end_ns", "pid", "rank", "tid", "module_id"]
_RANGE_MEMBERS = {
    **{name: name for name in ("domain", "end_tid", "payload_int", "payload_json")},
}
_LAUNCH_COLUMNS = ["pid", "rank", "tid", "correlation_id", "launch_name", "launch_start_ns", "launch_end_ns"]
_BATCH = 65_536
#: Five days: up to there, viewers' numbers hold times exactly.
_LATEST_NS = 432_000 * 10**9


def write_timeline(file: BufferedWriter | GzipFile, dataset: Dataset, progress: Progress, spelled: Spelling) -> None:
    """Writes the whole trace, row group by row group.

    Args:
        file: The file to write to.
        dataset: The dataset.
        progress: Called with the share that is done.
        spelled: How times are written.
    """
    timeline = _Timeline(dataset, spelled)
    file.write(b'{"displayTimeUnit": "ns", "otherData": ' + about(dataset, timeline.moved_by_ns) + b",\n")
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
    """The events of a dataset, and their tracks.

    Attributes:
        tracks: The tracks.
        moved_by_ns: How much later everything is drawn: Perfetto leaves out what begins before 0, and of times since
            1970 numbers do not hold the nanoseconds.
    """

    def __init__(self, dataset: Dataset, spelled: Spelling) -> None:
        self._dataset = dataset
        self._spelled = spelled
        self.tracks = Tracks(dataset.reports, f"{noun(dataset)}s")
        self._offset = offsets(dataset)
        first_ns = earliest(dataset, self._offset)
        self.moved_by_ns = 0 if 0 <= first_ns <= _LATEST_NS else -first_ns
        self._report_column = [REPORT] if dataset.reports else []
        self._modules = hierarchy(dataset)
        columns = self._modules.parent.tolist(), *self._modules[2:4], self._modules.kind
        texts = hierarchy_texts([Node(*node) for node in zip(*columns, strict=True)])
        members = [member(FIELD, text and json.dumps(text)) for text in texts]
        self._hierarchy_members = pa.array([*members, ""], pa.string())

    def events(self, progress: Progress) -> Iterator[pa.Array]:
        """Events as JSON, in batches of some ten thousand."""
        rows, done = self._dataset.manifest["rows"], 0
        total = max(sum(rows[name] for name in ("steps", "calls", "ranges", "kernels")), 1)
        for slices in (self._steps(), self._calls(), self._ranges(), self._launches(), self._work()):
            for events in slices:
                done += len(events)
                yield events
                progress("exporting", min(done / total, 1.0))

    def _steps(self) -> Iterator[pa.Array]:
        lane = self._lanes("steps", ["pid", "tid"])
        for piece, lanes_ in self._pieces("steps", _STEP_COLUMNS + _STEP_ARGS, lane):
            kind = np.full(piece.num_rows, STEPS)
            args = always(piece, _STEP_ARGS)
            yield self._slices(piece, json_text(piece.column("name")), "step", args, (kind, lanes_))

    def _calls(self) -> Iterator[pa.Array]:
        modules = self._modules
        short = [_short(name, above, modules.name) for name, above in zip(modules.name, modules.parent, strict=True)]
        names = json_text(pa.array(short, pa.string()))
        lane = self._nested_lanes("calls", "call_id", "parent_call_id")
        for piece, lanes_ in self._pieces("calls", _CALL_COLUMNS + _CALL_ARGS, lane):
            name = names.take(piece.column("module_id").combine_chunks())
            kind = np.full(piece.num_rows, CALLS)
            yield self._slices(piece, name, "module", always(piece, _CALL_ARGS), (kind, lanes_))

    def _ranges(self) -> Iterator[pa.Array]:
        """All ranges, also those that are no calls. Operators are ranges of their own only beside a device's work."""
        operator = "user_annotation" if self._runs_operators() else _OPERATOR
        lane = self._nested_lanes("ranges", "range_id", "parent_range_id")
        columns = [*_RANGE_COLUMNS, "range_id", "kind", *_RANGE_MEMBERS]
        for piece, lanes_ in self._pieces("ranges", columns, lane):
            is_operator = pc.equal(pc.fill_null(piece.column("marker").cast(pa.string()), ""), "operator")
            category = pc.if_else(is_operator, operator, "user_annotation").combine_chunks()
            args = [*always(piece, ["range_id", "kind"]), *where_known(piece, _RANGE_MEMBERS)]
            args += [flag(piece.column("open"), "finished", "false"), _nameless(piece, "text")]
            args += [pc.if_else(is_operator, self._hierarchies(piece), "").combine_chunks()]
            name = pc.fill_null(json_text(piece.column("text")), '""')
            yield self._slices(piece, name, category, args, (np.full(piece.num_rows, RANGES), lanes_))

    def _launches(self) -> Iterator[pa.Array]:
        """API calls that launched work, each once."""
        whole = self._dataset.table("kernels", [*_LAUNCH_COLUMNS, *self._report_column])
        whole = whole.filter(
            pc.and_(whole.column("launch_start_ns").is_valid(), whole.column("correlation_id").is_valid())
        )
        names = ["pid", "tid", "correlation_id", "launch_start_ns", *self._report_column]
        first = np.sort(grouped([_numbered(whole, [name]) for name in names]).first)
        calls = whole.take(pa.array(first)).rename_columns({"launch_start_ns": "start_ns", "launch_end_ns": "end_ns"})
        calls = calls.rename_columns({"correlation_id": "correlation"})
        for piece in calls.to_batches(_BATCH):
            table = pa.Table.from_batches([piece])
            track = np.full(piece.num_rows, RANGES), np.zeros(piece.num_rows, np.int64)
            name = pc.fill_null(json_text(table.column("launch_name")), '""')
            args = [*always(table, ["correlation"]), _nameless(table, "launch_name")]
            yield self._slices(table, name, "cuda_runtime", args, track)

    def _work(self) -> Iterator[pa.Array]:
        lane = self._lanes("kernels", ["pid", "device", "context", "stream"])
        axes = [f"{size}_{axis}" for size in _SIZES for axis in "xyz"]
        columns = dict.fromkeys([*_WORK_COLUMNS, *_WORK_ARGS, *_WORK_MEMBERS, *axes, "module_id"])
        for piece, lanes_ in self._pieces("kernels", list(columns), lane):
            kind = piece.column("kind").cast(pa.string()).combine_chunks()
            on_host = np.asarray(pc.equal(kind, _OPERATOR))
            name = pc.coalesce(piece.column("name").cast(pa.string()), kind)
            category = kind
            for plain, spelled in _CATEGORIES.items():
                category = pc.if_else(pc.equal(kind, plain), spelled, category)
            args = [*always(piece, _WORK_ARGS), *where_known(piece, _WORK_MEMBERS)]
            args += [part for size in _SIZES for part in sizes(piece, size)]
            args += [_nameless(piece, "name"), self._hierarchies(piece)]
            tracks = np.where(on_host, OPERATORS, WORK), np.where(on_host, 0, lanes_)
            yield self._slices(piece, json_text(name), category, args, tracks)

    def _runs_operators(self) -> bool:
        pieces = self._dataset.pieces("kernels", ["kind"])
        return any(pc.any(pc.equal(piece.column("kind").cast(pa.string()), _OPERATOR)).as_py() for piece in pieces)

    def _hierarchies(self, piece: pa.Table) -> pa.Array:
        """For every row the member that names its modules as PyTorch does; nothing where it has none."""
        rows = self._modules.rows(piece)
        return self._hierarchy_members.take(pa.array(np.where(rows < 0, len(self._hierarchy_members) - 1, rows)))

    def _lanes(self, table: str, keys: list[str]) -> Ints:
        whole = self._dataset.table(table, [*keys, "start_ns", "end_ns", *self._report_column])
        start, end = (np.asarray(whole.column(name)) for name in ("start_ns", "end_ns"))
        return lanes(_numbered(whole, [*keys, *self._report_column]), start, end)

    def _nested_lanes(self, table: str, key: str, parent_key: str) -> Ints:
        """The lanes of calls or ranges: start/end ranges can overlap others of their thread."""
        keys, times = ["pid", "tid", *self._report_column], ["start_ns", "end_ns"]
        whole = self._dataset.table(table, [*keys, *times, key, parent_key])
        start, end = (np.asarray(whole.column(name)) for name in times)
        parent = positions(integers(whole, parent_key), integers(whole, key))
        return nested_lanes(_numbered(whole, keys), start, end, parent)

    def _pieces(self, table: str, columns: list[str], lane: Ints) -> Iterator[tuple[pa.Table, Ints]]:
        """The rows with their lanes."""
        first = 0
        for piece in self._dataset.pieces(table, [*columns, *self._report_column]):
            yield piece, lane[first : first + piece.num_rows]
            first += piece.num_rows

    def _slices(
        self, piece: pa.Table, name: pa.Array, category: Part, args: Iterable[Part], track: tuple[Ints, Ints]
    ) -> pa.Array:
        """Complete events as JSON."""
        process, thread = self.tracks.numbered(piece, *track)
        offset = self.moved_by_ns
        if REPORT in piece.column_names and piece.num_rows:
            offset += self._offset[piece.column(REPORT)[0].as_py()]
        start, length = self._spelled(*(np.asarray(piece.column(time)) + offset for time in ("start_ns", "end_ns")))
        parts: list[Part] = ['{"ph": "X", "cat": "', category, '", "pid": ']
        parts += [pa.array(process).cast(pa.string()), ', "tid": ']
        parts += [pa.array(thread).cast(pa.string()), ', "ts": ', start]
        parts += [', "dur": ', length, ', "name": ', name, ', "args": {', *args]
        return pc.binary_join_element_wise(*parts, "}}", "")


def _nameless(piece: pa.Table, column: str) -> pa.Array:
    """The member of those events whose name stands for none."""
    return flag(piece.column(column).is_null(), "nameless")


def _numbered(table: pa.Table, keys: list[str]) -> Ints:
    """A number for every row, the same for those whose keys are the same."""
    is_category = {key: pa.types.is_dictionary(table.schema.field(key).type) for key in keys}
    return grouped([labels(table, key).code if is_category[key] else integers(table, key) for key in keys]).group


def _short(name: str, parent: int, names: list[str]) -> str:
    """The name of a module; if it is a number, after its parent's: ``layers.3``."""
    return f"{names[parent]}.{name}" if name.isdecimal() and parent >= 0 else name

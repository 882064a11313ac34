"""Steps, calls of modules and kernels as events of Chrome's trace format, which Perfetto opens too.

The format is Google's "Trace Event Format": complete events (``ph: X``) in microseconds on threads of processes, named
by metadata events (``ph: M``). Its processes are the recorded processes and the devices; its threads are the steps,
module calls, operators and ranges of a thread, and the streams of a device. Viewers drop slices of a thread that
overlap without nesting. Kernels of one stream do so where a CUDA graph runs them side by side, and so do start/end
ranges: they get lanes of their own.

Ranges, API calls and device work have the categories and members that torch.profiler gives them.
"""

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from io import BufferedWriter
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.aggregates.nodes import noun
from tracekit.aggregates.subtrees import hierarchy
from tracekit.arrays.codes import labels, positions
from tracekit.arrays.columns import integers
from tracekit.arrays.groups import grouped
from tracekit.arrays.intervals import lanes, nested_lanes
from tracekit.arrays.text import json_text
from tracekit.arrays.types import Ints
from tracekit.dataset.opening import REPORT, Dataset
from tracekit.exports.base import Target, exported_file
from tracekit.exports.tracks import CALLS, OPERATORS, RANGES, STEPS, WORK, Spelling, Tracks, for_sums, for_truncation
from tracekit.markers.torch_texts import FIELD, Node, hierarchy_texts
from tracekit.progress import Progress

#: A part of the JSON of events: texts of all rows, or one for all of them.
Part: TypeAlias = "str | pa.Array"

_STEP_COLUMNS = ["name", "start_ns", "end_ns", "pid", "rank", "tid"]
_STEP_ARGS = ["step_id", "kind", "index", "batch_size", "tokens"]
_CALL_COLUMNS = ["module_id", "start_ns", "end_ns", "pid", "rank", "tid"]
_CALL_ARGS = ["module", "phase", "inputs", "outputs", "kwargs", "step_id", "call_id", "range_id", "gpu_time_ns"]
_WORK_COLUMNS = ["name", "start_ns", "end_ns", "pid", "rank", "tid", "device", "context", "stream"]
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
_SIZES, _AXES = ("grid", "block"), "xyz"
#: Categories of work, as torch.profiler names them.
_CATEGORIES = {"memcpy": "gpu_memcpy", "memset": "gpu_memset"}
_OPERATOR = "cpu_op"
_RANGE_COLUMNS = ["text", "marker", "open", "start_ns", "end_ns", "pid", "rank", "tid", "module_id"]
_RANGE_MEMBERS = {name: name for name in ("domain", "end_tid", "payload_int", "payload_json")}
_LAUNCH_COLUMNS = ["pid", "rank", "tid", "correlation_id", "launch_name", "launch_start_ns", "launch_end_ns"]
_BEGINNINGS = (
    *((table, "start_ns") for table in ("steps", "calls", "ranges", "kernels")),
    ("kernels", "launch_start_ns"),
)
_BATCH = 65_536
#: Five days: up to there, viewers' numbers hold times exactly.
_LATEST_NS = 432_000 * 10**9
#: Level of gzip: fast enough not to slow the export; the highest saves a third and takes ten times as long.
_LEVEL = 1


def write_chrome(dataset: Dataset, target: Target, progress: Progress) -> None:
    """Writes Chrome's JSON, for chrome://tracing, Perfetto, speedscope and scripts."""
    with exported_file(dataset, target) as partial, partial.open("wb") as file:
        _write(file, dataset, progress, for_sums)


def write_perfetto(dataset: Dataset, target: Target, progress: Progress) -> None:
    """Writes Chrome's JSON compressed with gzip, which ui.perfetto.dev opens as it is.

    Perfetto's own protobuf would hold no more, and needs its events in the order of time, while our tables are sorted
    by module and written piece by piece.
    """
    with (
        exported_file(dataset, target) as partial,
        partial.open("wb") as file,
        gzip.GzipFile("", "wb", _LEVEL, file, mtime=0) as packed,
    ):
        _write(packed, dataset, progress, for_truncation)


def _write(file: BufferedWriter | gzip.GzipFile, dataset: Dataset, progress: Progress, spelled: Spelling) -> None:
    timeline = _Timeline(dataset, spelled)
    file.write(b'{"displayTimeUnit": "ns", "otherData": ' + _about(dataset, timeline.moved_by_ns) + b",\n")
    file.write(b'"traceEvents": [\n')
    separator = b""
    for events in timeline.events(progress):
        if len(events):
            file.write(separator)
            file.write(_joined(events))
            separator = b",\n"
    for event in timeline.tracks.events():
        file.write(separator + event.encode())
        separator = b",\n"
    file.write(b"\n]}\n")
    progress("exporting", 1.0)


def _about(dataset: Dataset, moved_by_ns: int) -> bytes:
    started = _started(dataset)
    fields = {
        "tracekit": dataset.manifest.get("tracekit"),
        "dataset": dataset.folder.name,
        "times_moved_by_ns": moved_by_ns,
        "started_utc_ns": min(started, default=None),
    }
    # Perfetto's JSON has no surrogates, which ASCII would need for some letters.
    return json.dumps(fields, ensure_ascii=False).encode("utf-8", "replace")


def _joined(events: pa.Array) -> pa.Buffer:
    whole = pa.LargeListArray.from_arrays(pa.array([0, len(events)], pa.int64()), events)
    return pc.binary_join(whole, ",\n")[0].as_buffer()


class _Timeline:
    """The events of a dataset, and their tracks.

    Everything is drawn ``moved_by_ns`` later: Perfetto leaves out what begins before 0, and of times since 1970
    numbers do not hold the nanoseconds.
    """

    def __init__(self, dataset: Dataset, spelled: Spelling) -> None:
        self._dataset = dataset
        self._spelled = spelled
        self.tracks = Tracks(dataset.reports, f"{noun(dataset)}s")
        self._offset = _offsets(dataset)
        first_ns = _earliest(dataset, self._offset)
        self.moved_by_ns = 0 if 0 <= first_ns <= _LATEST_NS else -first_ns
        self._report_column = [REPORT] if dataset.reports else []
        self._modules = hierarchy(dataset)
        columns = self._modules.parent.tolist(), *self._modules[2:4], self._modules.kind
        texts = hierarchy_texts([Node(*node) for node in zip(*columns, strict=True)])
        members = ["" if text is None else f', "{FIELD}": {json.dumps(text)}' for text in texts]
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
            args = _always(piece, _STEP_ARGS)
            yield self._slices(piece, json_text(piece.column("name")), "step", args, (kind, lanes_))

    def _calls(self) -> Iterator[pa.Array]:
        modules = self._modules
        short = [_short(name, above, modules.name) for name, above in zip(modules.name, modules.parent, strict=True)]
        names = json_text(pa.array(short, pa.string()))
        lane = self._nested_lanes("calls", "call_id", "parent_call_id")
        for piece, lanes_ in self._pieces("calls", _CALL_COLUMNS + _CALL_ARGS, lane):
            name = names.take(piece.column("module_id").combine_chunks())
            kind = np.full(piece.num_rows, CALLS)
            yield self._slices(piece, name, "module", _always(piece, _CALL_ARGS), (kind, lanes_))

    def _ranges(self) -> Iterator[pa.Array]:
        """All ranges, also those that are no calls. Operators are ranges of their own only if a device did the work."""
        operator = "user_annotation" if self._runs_operators() else _OPERATOR
        lane = self._nested_lanes("ranges", "range_id", "parent_range_id")
        columns = [*_RANGE_COLUMNS, "range_id", "kind", *_RANGE_MEMBERS]
        for piece, lanes_ in self._pieces("ranges", columns, lane):
            is_operator = pc.equal(pc.fill_null(piece.column("marker").cast(pa.string()), ""), "operator")
            category = pc.if_else(is_operator, operator, "user_annotation").combine_chunks()
            args = [*_always(piece, ["range_id", "kind"]), *_where_known(piece, _RANGE_MEMBERS)]
            args += [pc.if_else(piece.column("open"), ', "finished": false', "").combine_chunks()]
            args += [pc.if_else(is_operator, self._hierarchies(piece), "").combine_chunks()]
            name = pc.fill_null(json_text(piece.column("text")), '""')
            yield self._slices(piece, name, category, args, (np.full(piece.num_rows, RANGES), lanes_))

    def _launches(self) -> Iterator[pa.Array]:
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
            yield self._slices(table, name, "cuda_runtime", _always(table, ["correlation"]), track)

    def _work(self) -> Iterator[pa.Array]:
        lane = self._lanes("kernels", ["pid", "device", "context", "stream"])
        axes = [f"{size}_{axis}" for size in _SIZES for axis in _AXES]
        columns = dict.fromkeys([*_WORK_COLUMNS, *_WORK_ARGS, *_WORK_MEMBERS, *axes, "module_id"])
        for piece, lanes_ in self._pieces("kernels", list(columns), lane):
            kind = piece.column("kind").cast(pa.string()).combine_chunks()
            on_host = np.asarray(pc.equal(kind, _OPERATOR))
            name = pc.coalesce(piece.column("name").cast(pa.string()), kind)
            category = kind
            for plain, spelled in _CATEGORIES.items():
                category = pc.if_else(pc.equal(kind, plain), spelled, category)
            args = [*_always(piece, _WORK_ARGS), *_where_known(piece, _WORK_MEMBERS)]
            args += [part for size in _SIZES for part in _sizes(piece, size)]
            args.append(self._hierarchies(piece))
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
        keys, times = ["pid", "tid", *self._report_column], ["start_ns", "end_ns"]
        whole = self._dataset.table(table, [*keys, *times, key, parent_key])
        start, end = (np.asarray(whole.column(name)) for name in times)
        parent = positions(integers(whole, parent_key), integers(whole, key))
        return nested_lanes(_numbered(whole, keys), start, end, parent)

    def _pieces(self, table: str, columns: list[str], lane: Ints) -> Iterator[tuple[pa.Table, Ints]]:
        first = 0
        for piece in self._dataset.pieces(table, [*columns, *self._report_column]):
            yield piece, lane[first : first + piece.num_rows]
            first += piece.num_rows

    def _slices(
        self, piece: pa.Table, name: pa.Array, category: Part, args: Iterable[Part], track: tuple[Ints, Ints]
    ) -> pa.Array:
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


def _always(table: pa.Table, columns: Iterable[str]) -> Iterator[Part]:
    """Members that every event has, the first ones of its ``args``; null where they are not known."""
    separator = ""
    for column in columns:
        yield f'{separator}"{column}": '
        yield pc.fill_null(json_text(table.column(column)), "null")
        separator = ", "


def _where_known(table: pa.Table, columns: Mapping[str, str]) -> Iterator[Part]:
    for column, name in columns.items():
        values = table.column(column)
        if values.null_count < len(values):
            yield _member(name, json_text(values))


def _sizes(table: pa.Table, name: str) -> Iterator[Part]:
    columns = [table.column(f"{name}_{axis}").combine_chunks().cast(pa.string()) for axis in _AXES]
    if columns[0].null_count < len(columns[0]):
        inner = pc.binary_join_element_wise(*columns, ", ")
        yield _member(name, pc.binary_join_element_wise("[", inner, "]", ""))


def _member(name: str, text: pa.Array) -> pa.Array:
    return pc.fill_null(pc.binary_join_element_wise(f', "{name}": ', text, ""), "")


def _numbered(table: pa.Table, keys: list[str]) -> Ints:
    is_category = {key: pa.types.is_dictionary(table.schema.field(key).type) for key in keys}
    return grouped([labels(table, key).code if is_category[key] else integers(table, key) for key in keys]).group


def _short(name: str, parent: int, names: list[str]) -> str:
    return f"{names[parent]}.{name}" if name.isdecimal() and parent >= 0 else name


def _started(dataset: Dataset) -> list[int]:
    started = [entry["source"].get("started_utc_ns") for entry in dataset.entries]
    return [] if None in started else started


def _offsets(dataset: Dataset) -> dict[str, int]:
    started = _started(dataset) or [0] * len(dataset.reports)
    return {name: start_ns - min(started) for name, start_ns in zip(dataset.reports, started, strict=False)}


def _earliest(dataset: Dataset, offset: dict[str, int]) -> int:
    firsts = (
        (pc.min(piece.column(column)).as_py(), offset[piece.column(REPORT)[0].as_py()] if offset else 0)
        for table, column in _BEGINNINGS
        for piece in dataset.pieces(table, [column, *([REPORT] if offset else [])])
        if piece.num_rows
    )
    return min((first + later for first, later in firsts if first is not None), default=0)

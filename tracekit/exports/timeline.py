"""Steps, calls of modules and kernels as events of Chrome's trace format, which Perfetto opens too.

The format is Google's "Trace Event Format": complete events (``ph: X``) in microseconds on threads of processes, named
by metadata events (``ph: M``). Its processes are the recorded processes and the devices; its threads are the steps,
module calls, operators and ranges of a thread, and the streams of a device. Viewers drop slices of a thread that
overlap without nesting. Kernels of one stream do so where a CUDA graph runs them side by side, and so do start/end
ranges: they get lanes of their own.

Viewers that add start and length as floating-point numbers (speedscope) may place an end just after the start of the
next slice. Perfetto multiplies each by a thousand and drops the fraction, so that 52.207 us can become 52206 ns. Either
way slices that touch overlap: speedscope draws them one inside the other, Perfetto leaves one out.

Ranges, API calls and device work have the categories and members that torch.profiler gives them.
"""

import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import BufferedWriter
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.aggregates.nodes import noun
from tracekit.aggregates.subtrees import hierarchy
from tracekit.arrays.codes import labels, positions
from tracekit.arrays.columns import integers
from tracekit.arrays.groups import grouped
from tracekit.arrays.intervals import lanes
from tracekit.arrays.text import json_text
from tracekit.arrays.types import Ints
from tracekit.dataset.opening import REPORT, Dataset
from tracekit.exports.base import Target, exported_file
from tracekit.markers.torch_texts import FIELD, Node, hierarchy_texts
from tracekit.progress import Progress

#: A part of the JSON of events: texts of all rows, or one for all of them.
Part: TypeAlias = "str | pa.Array"
#: Start and end in nanoseconds → start and length in microseconds, as JSON.
Spelling: TypeAlias = "Callable[[Ints, Ints], tuple[pa.Array, pa.Array]]"

#: What is drawn for a thread, from top to bottom; calls are named for what their nodes are.
STEPS, CALLS, OPERATORS, RANGES, WORK = range(5)
_PLACE = ["start_ns", "end_ns", "pid", "rank", "tid"]
_STEP_ARGS = ["step_id", "kind", "index", "batch_size", "tokens"]
_CALL_ARGS = ["module", "phase", "inputs", "outputs", "kwargs", "step_id", "call_id", "range_id", "gpu_time_ns"]
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
_RANGE_MEMBERS = {name: name for name in ("domain", "end_tid", "payload_int", "payload_json")}
_LAUNCH_COLUMNS = ["pid", "rank", "tid", "correlation_id", "launch_name", "launch_start_ns", "launch_end_ns"]
_BATCH = 65_536
_UNKNOWN = -1
#: Five days: up to there, viewers' numbers hold times exactly.
_LATEST_NS = 432_000 * 10**9
#: Steps of a microsecond that binary numbers hold exactly, up to six days; each is 0.06 ns.
_STEPS_OF_US = 1 << 14
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
    about = {
        "tracekit": dataset.manifest.get("tracekit"),
        "dataset": dataset.folder.name,
        "times_moved_by_ns": timeline.moved_by_ns,
        "started_utc_ns": min(_started(dataset), default=None),
    }
    # Perfetto's JSON has no surrogates, which ASCII would need for some letters.
    other_data = json.dumps(about, ensure_ascii=False).encode("utf-8", "replace")
    file.write(b'{"displayTimeUnit": "ns", "otherData": ' + other_data + b',\n"traceEvents": [\n')
    separator = b""
    for events in filter(len, timeline.events(progress)):
        file.write(separator)
        whole = pa.LargeListArray.from_arrays(pa.array([0, len(events)], pa.int64()), events)
        file.write(pc.binary_join(whole, ",\n")[0].as_buffer())
        separator = b",\n"
    file.write(b"\n]}\n")
    progress("exporting", 1.0)


class _Timeline:
    """The events of a dataset, and their tracks.

    Everything is drawn ``moved_by_ns`` later: Perfetto leaves out what begins before 0, and of times since 1970
    numbers do not hold the nanoseconds.
    """

    def __init__(self, dataset: Dataset, spelled: Spelling) -> None:
        self._dataset = dataset
        self._spelled = spelled
        self._tracks = _Tracks(dataset.reports, f"{noun(dataset)}s")
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
        """Events as JSON, in batches of some ten thousand; those that name the tracks come last."""
        rows, done = self._dataset.manifest["rows"], 0
        total = max(sum(rows[name] for name in ("steps", "calls", "ranges", "kernels")), 1)
        for slices in (self._steps(), self._calls(), self._ranges(), self._launches(), self._work()):
            for events in slices:
                done += len(events)
                yield events
                progress("exporting", min(done / total, 1.0))
        yield pa.array(self._tracks.events(), pa.string())

    def _steps(self) -> Iterator[pa.Array]:
        lane = self._lanes("steps", ["pid", "tid"])
        for piece, lanes_ in self._pieces("steps", ["name", *_PLACE, *_STEP_ARGS], lane):
            name = json_text(piece.column("name"))
            yield self._slices(piece, name, "step", _always(piece, _STEP_ARGS), STEPS, lanes_)

    def _calls(self) -> Iterator[pa.Array]:
        modules = self._modules
        short = [
            f"{modules.name[above]}.{name}" if name.isdecimal() and above >= 0 else name
            for name, above in zip(modules.name, modules.parent, strict=True)
        ]
        names = json_text(pa.array(short, pa.string()))
        lane = self._lanes("calls", ["pid", "tid"], ("call_id", "parent_call_id"))
        for piece, lanes_ in self._pieces("calls", ["module_id", *_PLACE, *_CALL_ARGS], lane):
            name = names.take(piece.column("module_id").combine_chunks())
            yield self._slices(piece, name, "module", _always(piece, _CALL_ARGS), CALLS, lanes_)

    def _ranges(self) -> Iterator[pa.Array]:
        """All ranges, also those that are no calls. Operators are ranges of their own only if a device did the work."""
        pieces = self._dataset.pieces("kernels", ["kind"])
        on_host = any(pc.any(pc.equal(piece.column("kind").cast(pa.string()), _OPERATOR)).as_py() for piece in pieces)
        operator = "user_annotation" if on_host else _OPERATOR
        lane = self._lanes("ranges", ["pid", "tid"], ("range_id", "parent_range_id"))
        columns = ["text", "marker", "open", *_PLACE, "module_id", "range_id", "kind", *_RANGE_MEMBERS]
        for piece, lanes_ in self._pieces("ranges", columns, lane):
            is_operator = pc.equal(pc.fill_null(piece.column("marker").cast(pa.string()), ""), "operator")
            category = pc.if_else(is_operator, operator, "user_annotation").combine_chunks()
            args = [*_always(piece, ["range_id", "kind"]), *_where_known(piece, _RANGE_MEMBERS)]
            args += [pc.if_else(piece.column("open"), ', "finished": false', "").combine_chunks()]
            args += [pc.if_else(is_operator, self._hierarchies(piece), "").combine_chunks()]
            name = pc.fill_null(json_text(piece.column("text")), '""')
            yield self._slices(piece, name, category, args, RANGES, lanes_)

    def _launches(self) -> Iterator[pa.Array]:
        whole = self._dataset.table("kernels", [*_LAUNCH_COLUMNS, *self._report_column])
        whole = whole.filter(
            pc.and_(whole.column("launch_start_ns").is_valid(), whole.column("correlation_id").is_valid())
        )
        names = ["pid", "tid", "correlation_id", "launch_start_ns", *self._report_column]
        first = np.sort(grouped([_numbered(whole, [name]) for name in names]).first)
        renamed = {"launch_start_ns": "start_ns", "launch_end_ns": "end_ns", "correlation_id": "correlation"}
        for piece in whole.take(pa.array(first)).rename_columns(renamed).to_batches(_BATCH):
            table = pa.Table.from_batches([piece])
            name = pc.fill_null(json_text(table.column("launch_name")), '""')
            yield self._slices(table, name, "cuda_runtime", _always(table, ["correlation"]), RANGES, 0)

    def _work(self) -> Iterator[pa.Array]:
        lane = self._lanes("kernels", ["pid", "device", "context", "stream"])
        axes = [f"{size}_{axis}" for size in _SIZES for axis in _AXES]
        columns = dict.fromkeys(["name", *_PLACE, *_WORK_ARGS, *_WORK_MEMBERS, *axes, "module_id"])
        for piece, lanes_ in self._pieces("kernels", list(columns), lane):
            kind = piece.column("kind").cast(pa.string()).combine_chunks()
            on_host = np.asarray(pc.equal(kind, _OPERATOR))
            name = pc.coalesce(piece.column("name").cast(pa.string()), kind)
            category = kind
            for plain, spelled in _CATEGORIES.items():
                category = pc.if_else(pc.equal(kind, plain), spelled, category)
            args = [*_always(piece, _WORK_ARGS), *_where_known(piece, _WORK_MEMBERS), *_sizes(piece)]
            args.append(self._hierarchies(piece))
            tracks = np.where(on_host, OPERATORS, WORK), np.where(on_host, 0, lanes_)
            yield self._slices(piece, json_text(name), category, args, *tracks)

    def _hierarchies(self, piece: pa.Table) -> pa.Array:
        """For every row the member that names its modules as PyTorch does; nothing where it has none."""
        rows = self._modules.rows(piece)
        return self._hierarchy_members.take(pa.array(np.where(rows < 0, len(self._hierarchy_members) - 1, rows)))

    def _lanes(self, table: str, keys: list[str], ids: tuple[str, ...] = ()) -> Ints:
        """The lane of each row among those of equal keys; ids are columns of rows and their parents, if they nest."""
        keys = [*keys, *self._report_column]
        whole = self._dataset.table(table, ["start_ns", "end_ns", *keys, *ids])
        start, end = (np.asarray(whole.column(name)) for name in ("start_ns", "end_ns"))
        track = _numbered(whole, keys)
        parent = positions(integers(whole, ids[1]), integers(whole, ids[0])) if ids else None
        return lanes(track, start, end, parent)

    def _pieces(self, table: str, columns: list[str], lane: Ints) -> Iterator[tuple[pa.Table, Ints]]:
        first = 0
        for piece in self._dataset.pieces(table, [*columns, *self._report_column]):
            yield piece, lane[first : first + piece.num_rows]
            first += piece.num_rows

    def _slices(
        self, piece: pa.Table, name: pa.Array, category: Part, args: Iterable[Part], kind: Ints | int, lane: Ints | int
    ) -> pa.Array:
        process, thread = self._tracks.numbered(piece, kind, lane)
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


def _sizes(table: pa.Table) -> Iterator[Part]:
    for size in _SIZES:
        columns = [table.column(f"{size}_{axis}").combine_chunks().cast(pa.string()) for axis in _AXES]
        if columns[0].null_count < len(columns[0]):
            inner = pc.binary_join_element_wise(*columns, ", ")
            yield _member(size, pc.binary_join_element_wise("[", inner, "]", ""))


def _member(name: str, text: pa.Array) -> pa.Array:
    return pc.fill_null(pc.binary_join_element_wise(f', "{name}": ', text, ""), "")


def _numbered(table: pa.Table, keys: list[str]) -> Ints:
    is_category = {key: pa.types.is_dictionary(table.schema.field(key).type) for key in keys}
    return grouped([labels(table, key).code if is_category[key] else integers(table, key) for key in keys]).group


def _started(dataset: Dataset) -> list[int]:
    started = [entry["source"].get("started_utc_ns") for entry in dataset.entries]
    return [] if None in started else started


def _offsets(dataset: Dataset) -> dict[str, int]:
    started = _started(dataset) or [0] * len(dataset.reports)
    return {name: start_ns - min(started) for name, start_ns in zip(dataset.reports, started, strict=False)}


def _earliest(dataset: Dataset, offset: dict[str, int]) -> int:
    beginnings = [(table, "start_ns") for table in ("steps", "calls", "ranges", "kernels")]
    firsts = (
        (pc.min(piece.column(column)).as_py(), offset[piece.column(REPORT)[0].as_py()] if offset else 0)
        for table, column in (*beginnings, ("kernels", "launch_start_ns"))
        for piece in dataset.pieces(table, [column, *([REPORT] if offset else [])])
        if piece.num_rows
    )
    return min((first + later for first, later in firsts if first is not None), default=0)


class _Track(NamedTuple):
    """A track, by what its slices have in common; the fields are in the order by which tracks are sorted."""

    report: int
    on_device: int
    process: int
    rank: int
    device: int
    thread: int
    context: int
    stream: int
    kind: int
    lane: int

    @property
    def owner(self) -> tuple[int, int, int]:
        """What the viewer shows as a process: a process, or a device."""
        return self.report, self.on_device, self.device if self.on_device else self.process


class _Tracks:
    """Numbers tracks as they occur, and names them at the end; nodes is what calls belong to, such as ``modules``."""

    def __init__(self, reports: list[str], nodes: str) -> None:
        self._reports, self._kinds = reports, ("steps", nodes, "operators", "all ranges and API calls")
        self._number: dict[_Track, int] = {}
        self._process: dict[tuple[int, int, int], int] = {}

    def numbered(self, table: pa.Table, kind: Ints | int, lane: Ints | int) -> tuple[Ints, Ints]:
        """The process and thread of every row of a table, as the trace numbers them, by its kind and lane."""
        members = self._members(table, *(np.broadcast_to(number, table.num_rows) for number in (kind, lane)))
        code, first = grouped(members)
        tracks = [_Track(*(int(column[row]) for column in members)) for row in first]
        numbers = [self._number.setdefault(track, len(self._number) + 1) for track in tracks]
        processes = [self._process.setdefault(track.owner, len(self._process) + 1) for track in tracks]
        return np.array(processes, np.int64)[code], np.array(numbers, np.int64)[code]

    def _members(self, table: pa.Table, kind: Ints, lane: Ints) -> list[Ints]:
        def column(name: str) -> Ints:
            if name not in table.column_names:
                return np.full(table.num_rows, _UNKNOWN, np.int64)
            return integers(table, name, null=_UNKNOWN).astype(np.int64)

        on_device = kind == WORK
        report = np.zeros(table.num_rows, np.int64)
        if self._reports:
            named = table.column(REPORT).combine_chunks().dictionary_encode()
            places = [self._reports.index(name) for name in named.dictionary.to_pylist()]
            report = np.array(places)[np.asarray(named.indices)]
        rank, thread = (np.where(on_device, _UNKNOWN, column(name)) for name in ("rank", "tid"))
        process, device, context, stream = map(column, ("pid", "device", "context", "stream"))
        return [report, on_device.astype(np.int64), process, rank, device, thread, context, stream, kind, lane]

    def events(self) -> Iterator[str]:
        """Metadata events that name and sort the processes and tracks."""
        member = {track.owner: track for track in self._number}
        for position, (owner, number) in enumerate(sorted(self._process.items())):
            yield from _metadata("process", number, 0, self._process_name(member[owner]), position)
        for position, (track, number) in enumerate(sorted(self._number.items())):
            yield from _metadata("thread", self._process[track.owner], number, self._track_name(track), position)

    def _process_name(self, track: _Track) -> str:
        parts = [self._reports[track.report]] if self._reports else []
        if track.on_device:
            parts.append(f"device {_text(track.device)}")
        else:
            parts += [f"rank {track.rank}"] if track.rank != _UNKNOWN else []
            parts.append(f"process {_text(track.process)}")
        return " ".join(parts)

    def _track_name(self, track: _Track) -> str:
        if track.on_device:
            name = f"stream {_text(track.stream)}, context {_text(track.context)}, process {_text(track.process)}"
        else:
            name = f"{self._kinds[track.kind]} of thread {_text(track.thread)}"
        return f"{name} ({track.lane + 1})" if track.lane else name


def _text(number: int) -> str:
    return "unknown" if number == _UNKNOWN else str(number)


def _metadata(what: str, process: int, thread: int, name: str, position: int) -> Iterator[str]:
    for field, args in (("name", {"name": name}), ("sort_index", {"sort_index": position})):
        event = {"ph": "M", "pid": process, "tid": thread, "name": f"{what}_{field}", "args": args}
        yield json.dumps(event, ensure_ascii=False)


def for_sums(start_ns: Ints, end_ns: Ints) -> tuple[pa.Array, pa.Array]:
    """Start and length in steps whose sums are exact; rounded to a nanosecond they are the original times."""
    start, end = (np.rint(ns * (_STEPS_OF_US / 1_000)) for ns in (start_ns, end_ns))
    begin, length = (pa.array(steps / _STEPS_OF_US).cast(pa.string()) for steps in (start, end - start))
    return begin, length


def for_truncation(start_ns: Ints, end_ns: Ints) -> tuple[pa.Array, pa.Array]:
    """Start and length plus a quarter of a nanosecond, which the viewer drops."""
    begin, length = (_decimal(ns) for ns in (start_ns, end_ns - start_ns))
    return begin, length


def _decimal(ns: Ints) -> pa.Array:
    whole, rest = (pa.array(part).cast(pa.string()) for part in np.divmod(ns, 1_000))
    return pc.binary_join_element_wise(whole, ".", pc.utf8_lpad(rest, 3, "0"), "25", "")

"""Kineto's Chrome trace (that of torch.profiler), converted into rows of Nsight's tables.

Kineto records one process; the traces of several become one report. Times become nanoseconds since the first event.
Names of our own ranges are numbers that stand for texts (:mod:`tracekit.capture.recorder`); other annotations have the
names that Kineto writes, which are not always those of the program.

``--hierarchy`` keeps the trace itself, too: with the texts of our markers, of all processes in one file. Every event
has a line of its own, so that it can be read and changed piece by piece. Ids that count separately in each process are
moved apart. Which module an operator belongs to is decided where reports are read.
"""

import gzip
import os
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from typing_extensions import override

from tracekit.arrays.intervals import one_axis
from tracekit.arrays.types import Ints
from tracekit.errors import CaptureError, ReportError
from tracekit.files import reason_of, whole_file
from tracekit.kineto.arguments import direction_of
from tracekit.kineto.columns import ANNOTATION, CALL, KERNEL, MEMCPY, MEMSET, OPERATOR, Columns, Gathering, identity
from tracekit.kineto.stream import Piece, Trace
from tracekit.markers.phases import phase_of
from tracekit.nsight.tables import short_name
from tracekit.recording.provenance import LossCounters

Row = dict[str, Any]
#: How far the starts of evaluations of one process were moved, by name, thread and start.
Moved = dict[tuple[str, int, int], int]
#: Nsight's numbers and labels for CUpti_ActivityMemoryKind, less one.
MEMORY_LABELS = ("Pageable", "Pinned", "Device", "Array", "Managed")
#: Prefix of the names of our ranges in Kineto's trace; a number follows.
NUMBERED = "tracekit:"

_NUMBERED = re.compile(rf"{NUMBERED}(\d{{1,9}})", re.ASCII)
_PUSH_POP = 59
#: Nsight's columns of device work by those of a trace.
_DEVICE = {"contextId": "context", "streamId": "stream", "correlationId": "correlation"}
_OF_KERNELS = {f"{size}{axis}": f"{size}_{axis.lower()}" for size in ("grid", "block") for axis in "XYZ"}
_OF_KERNELS |= {"registersPerThread": "registers"}
#: ``Memcpy HtoD (Pageable -> Device)``, ``Memset (Device)``.
_MEMORY = re.compile(r"\((\w+)(?: -> (\w+))?\)")
_EVALUATION = "autograd::engine::evaluate_function: "
_NEVER = 2**62
_BASE, _END_BYTES = re.compile(rb'"baseTimeNanoseconds": ?(\d+)'), 1 << 16
_ENCODER = msgspec.json.Encoder()
#: Events that are written at once, as many small pieces take long to compress; rows that become integers at a time.
_BATCH, _ROWS = 10_000, 50_000
#: Fast enough not to delay the end of the program.
_LEVEL = 1
_RANGES = ("cpu_op", "user_annotation")
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")
#: Ids that count per process, and what sets those of several processes apart.
_IDS = ("correlation", "External id")
_IDS_BITS, _PIDS_BITS = 32, 23
#: True of one process only.
_OF_ONE_PROCESS = ("distributedInfo", "trace_id")
_Progress = Callable[[int], object]


class IntegerRows(Collection[Row]):
    """Rows of integers of at least 0, by columns, in several parts; others are None."""

    def __init__(self, parts: Sequence[Mapping[str, Ints]]) -> None:
        self._parts = parts

    @override
    def __len__(self) -> int:
        return sum(next(iter(part.values())).size for part in self._parts)

    @override
    def __contains__(self, row: object) -> bool:
        return any(each == row for each in self)

    @override
    def __iter__(self) -> Iterator[Row]:
        for part in self._parts:
            for first in range(0, next(iter(part.values())).size, _ROWS):
                columns = [_with_none(column[first : first + _ROWS]) for column in part.values()]
                yield from (dict(zip(part, row, strict=True)) for row in zip(*columns, strict=True))


def _with_none(column: Ints) -> list[int | None]:
    values: list[int | None] = column.tolist()
    return [value if value is not None and value >= 0 else None for value in values] if column.min() < 0 else values


@dataclass
class Rows:
    """Rows of Nsight's tables. Texts are stored once, in ``strings``; a text's index is its id."""

    ranges: IntegerRows
    api_calls: IntegerRows
    kernels: IntegerRows
    memcpys: IntegerRows
    memsets: IntegerRows
    operators: IntegerRows
    phases: IntegerRows
    threads: list[Row]
    strings: list[str]
    started_utc_ns: int
    numbered: int
    moved: list[Moved]

    @property
    def on_device(self) -> bool:
        """Whether anything ran on a GPU."""
        return bool(self.kernels or self.memcpys or self.memsets)

    def tables(self) -> dict[str, Collection[Row]]:
        """The rows by name of table.

        Operators are work only where no GPU did any; else those that mark a phase are ranges.
        """
        return {
            "StringIds": [{"id": number, "value": text} for number, text in enumerate(self.strings)],
            "ThreadNames": self.threads,
            "NVTX_EVENTS": [*self.ranges, *self.phases] if self.on_device else self.ranges,
            "CUPTI_ACTIVITY_KIND_RUNTIME": self.api_calls,
            "CUPTI_ACTIVITY_KIND_KERNEL": self.kernels,
            "CUPTI_ACTIVITY_KIND_MEMCPY": self.memcpys,
            "CUPTI_ACTIVITY_KIND_MEMSET": self.memsets,
            "TRACEKIT_CPU_OPS": [] if self.on_device else self.operators,
        }


def global_tid(pid: int, tid: int) -> int:
    """Nsight's 64-bit id of a thread; thread 0 stands for the process."""
    return 1 << 48 | (pid & 0xFFFFFF) << 24 | tid & 0xFFFFFF


class ProcessTrace(NamedTuple):
    """The file of Kineto's trace of one process, with what it lacks.

    These are the texts that the numbers of our ranges stand for, and the numbers that the process's GPUs have in the
    report.
    """

    path: Path
    texts: Sequence[str]
    pid: int
    devices: Mapping[int, int] = {}

    def marker_text(self, name: str) -> str | None:
        """The text that the name of one of our ranges stands for; None for other names."""
        match = _NUMBERED.fullmatch(name)
        number = int(match[1]) if match else len(self.texts)
        return self.texts[number] if number < len(self.texts) else None


def base_ns(trace: Path) -> int:
    """From when the times of a trace count; releases of torch write it before or behind the events."""
    with trace.open("rb") as file:
        beginning = file.read(_END_BYTES)
        file.seek(-min(_END_BYTES, trace.stat().st_size), os.SEEK_END)
        match = _BASE.search(beginning + file.read())
    return int(match[1]) if match else 0


def _pieces(trace: Trace, progress: _Progress) -> Iterator[Piece]:
    position = 0
    try:
        for piece in trace.pieces():
            yield piece
            progress(piece.position - position)
            position = piece.position
        invalid = trace.cut_at is not None
    except ReportError:
        invalid = True
    if invalid:
        advice = "record with --engine nsys, or use another torch release"
        raise CaptureError(f"torch.profiler wrote a trace that is not valid JSON; {advice}")


def rows_of_processes(processes: Iterable[ProcessTrace], *, ops: bool = False, progress: _Progress = bool) -> Rows:
    """Converts the traces of several processes to the rows of one report. Kineto's times come from the machine's clock.

    ``progress`` is called with each number of bytes read.
    """
    ids, moved, numbered = dict[str, int](), list[Moved](), 0
    tables = defaultdict[str, list[Columns]](list)
    for process in processes:
        converter = _Converter(process, ids, progress)
        for name, columns in converter.tables(ops=ops).items():
            tables[name].append(columns)
        numbered += converter.numbered
        moved.append(converter.moved)
    every = [columns for parts in tables.values() for columns in parts]
    zero_ns = min((int(columns["start"].min()) for columns in every if columns["start"].size), default=0)
    for columns in every:
        end = np.where(columns["end"] < columns["start"], -1, columns["end"] - zero_ns)
        columns.update(start=columns["start"] - zero_ns, end=end)
    threads = _threads(np.concatenate([columns["globalTid"] for columns in every if "globalTid" in columns]), ids)
    rows = {name: IntegerRows(parts) for name, parts in tables.items()}
    return Rows(**rows, threads=threads, strings=list(ids), started_utc_ns=zero_ns, numbered=numbered, moved=moved)


def _threads(tids: Ints, ids: dict[str, int]) -> list[Row]:
    main, other = (ids.setdefault(text, len(ids)) for text in ("main thread", "thread"))
    return [
        {"nameId": main if tid & 0xFFFFFF == tid >> 24 & 0xFFFFFF else other, "priority": 0, "globalTid": tid}
        for tid in np.unique(tids).tolist()
    ]


class _Converter:
    """The events of one process as columns of Nsight's tables: -1 is None; what never ended ends before its start."""

    def __init__(self, process: ProcessTrace, ids: dict[str, int], progress: _Progress) -> None:
        gathering, trace = Gathering(LossCounters()), Trace(process.path)
        for piece in _pieces(trace, progress):
            gathering.add(piece)
        self._process, self._ids, self._base_ns = process, ids, base_ns(process.path)
        self._rows, self._names, self._texts = gathering.names, list(gathering.names), list(gathering.texts)
        self._tids = np.array([global_tid(process.pid, tid) for _, tid in gathering.threads], dtype=np.int64)
        self._events = {kind: gathering.table(kind) for kind in (CALL, KERNEL, MEMCPY, MEMSET)}
        is_ours = np.array([process.marker_text(name) is not None for name in self._names], dtype=bool)
        operators, annotations = gathering.table(OPERATOR), gathering.table(ANNOTATION)
        # Some releases of torch write our ranges as operators.
        marks = is_ours[operators["name"]]
        self._operators = {name: column[~marks] for name, column in operators.items()}
        columns = ("start", "end", "thread", "name", "open")
        self._ranges = {name: np.append(annotations[name], operators[name][marks]) for name in columns}
        ours = is_ours[self._ranges["name"]]
        self.numbered = int(ours.sum())
        self.moved = self._begin_with_their_nodes({name: column[ours] for name, column in self._ranges.items()})

    def _begin_with_their_nodes(self, ours: Columns) -> Moved:
        """Moves the start of evaluations of backward nodes to that of the node; returns how far.

        An evaluation begins with the node's hooks. One that opens or closes ranges of ours there lies in the ranges of
        two modules: it belongs to the second one's, and the hooks to none.
        """
        operators, thread = self._operators, self._operators["thread"]
        times = (operators["start"], operators["end"], ours["start"], ours["end"])
        start, end, opened, closed = one_axis([thread, thread, ours["thread"], ours["thread"]], times)
        changes = np.append(np.sort(np.append(opened, closed)), _NEVER)
        moved: Moved = {}
        for name in [name for name in self._names if name.startswith(_EVALUATION)]:
            both = (self._rows.get(one, -1) for one in (name, name.removeprefix(_EVALUATION)))
            rows, nodes = (np.flatnonzero(operators["name"] == row) for row in both)
            nodes = nodes[np.argsort(start[nodes], kind="stable")]
            place = np.searchsorted(start[nodes], start[rows])
            begin = np.append(start[nodes], _NEVER)[place]
            late = (changes[np.searchsorted(changes, start[rows])] < begin) & (begin <= end[rows])
            for row, node in zip(rows[late].tolist(), nodes[place[late]].tolist(), strict=True):
                began, begins = int(operators["start"][row]), int(operators["start"][node])
                moved[name, int(self._tids[thread[row]]), began] = begins - began
                operators["start"][row] = begins
        return moved

    def tables(self, *, ops: bool) -> dict[str, Columns]:
        """The columns by name of table; with ``ops``, operators are ranges, too, else those that mark a phase."""
        operators, names = self._operators, self._operators["name"]
        ranges = self._as_ranges(self._ranges, self._by_name(self._ranges["name"], self._range_id))
        marking = np.flatnonzero(self._by_name(names, lambda name: phase_of(name) is not None) * (not ops))
        phases = {name: column[marking] for name, column in operators.items()}
        if ops:
            copies = self._as_ranges(operators, np.array([*map(self._id, self._operator_texts())], dtype=np.int64))
            ranges = {name: np.append(column, copies[name]) for name, column in ranges.items()}
        return {
            "ranges": ranges,
            "phases": self._as_ranges(phases, self._by_name(phases["name"], self._id)),
            "operators": self._on_thread(operators) | {"nameId": self._by_name(names, self._id)},
            "api_calls": self._api_calls(self._events[CALL]),
            "kernels": self._kernels(self._events[KERNEL]),
            "memcpys": self._of_memory(MEMCPY, copyKind=direction_of, srcKind=_memory, dstKind=partial(_memory, end=2)),
            "memsets": self._of_memory(MEMSET, memKind=_memory),
        }

    def _api_calls(self, calls: Columns) -> Columns:
        return self._on_thread(calls) | {
            "eventClass": self._by_name(calls["name"], _event_class),
            "nameId": self._by_name(calls["name"], self._id),
            "correlationId": calls["correlation"],
            "returnValue": np.zeros_like(calls["start"]),
        }

    def _kernels(self, kernels: Columns) -> Columns:
        return self._on_device(kernels) | {
            "demangledName": self._by_name(kernels["name"], self._id),
            "shortName": self._by_name(kernels["name"], lambda name: self._id(short_name(name))),
            "graphId": np.where(kernels["graph"] > 0, kernels["graph"], -1),
            **{theirs: kernels[ours] for theirs, ours in _OF_KERNELS.items()},
        }

    def _of_memory(self, kind: str, **by_name: Callable[[str], int]) -> Columns:
        rows = self._events[kind]
        values = {column: self._by_name(rows["name"], value) for column, value in by_name.items()}
        return self._on_device(rows) | {"bytes": rows["bytes"]} | values

    def _on_device(self, rows: Columns) -> Columns:
        """The columns that all device work has in common. Kineto writes 0 where there is no CUDA graph."""
        devices, which = np.unique(rows["device"], return_inverse=True)
        numbers = [self._process.devices.get(device, device) for device in devices.tolist()]
        return self._spans(rows) | {
            "deviceId": np.array(numbers, dtype=np.int64)[which],
            **{theirs: rows[ours] for theirs, ours in _DEVICE.items()},
            "globalPid": np.full_like(rows["start"], global_tid(self._process.pid, 0)),
            "graphNodeId": np.where(rows["graph_node"] > 0, rows["graph_node"], -1),
        }

    def _as_ranges(self, rows: Columns, text_ids: Ints) -> Columns:
        return self._on_thread(rows) | {
            "eventType": np.full_like(rows["start"], _PUSH_POP),
            "textId": text_ids,
            "domainId": np.zeros_like(rows["start"]),
        }

    def _on_thread(self, rows: Columns) -> Columns:
        return self._spans(rows) | {"globalTid": self._tids[rows["thread"]]}

    def _spans(self, rows: Columns) -> Columns:
        start, end = (rows[name] + self._base_ns for name in ("start", "end"))
        return {"start": start, "end": np.where(rows.get("open", False), start - 1, end)}

    def _operator_texts(self) -> Iterator[str]:
        """Texts as ``emit_nvtx`` spells them, with a number by which operators are known from other ranges."""
        for number, row in enumerate(self._operators["text"].tolist()):
            name, behind, sizes = self._texts[row].partition(", sizes = ")
            yield f"{name}, op_id = {number}{behind}{sizes}"

    def _by_name(self, rows: Ints, value: Callable[[str], int]) -> Ints:
        distinct, which = np.unique(rows, return_inverse=True)
        return np.array([value(self._names[row]) for row in distinct.tolist()], dtype=np.int64)[which]

    def _id(self, text: str) -> int:
        return self._ids.setdefault(text, len(self._ids))

    def _range_id(self, name: str) -> int:
        text = self._process.marker_text(name)
        return self._id(name if text is None else text)


def _event_class(name: str) -> int:
    """Nsight's number of calls of CUDA's driver, which is 1, or of its runtime."""
    return int(name.startswith("cu") and not name.startswith("cuda"))


def _memory(name: str, end: int = 1) -> int:
    """Nsight's number of the memory that a copy comes from or goes to, or that is set."""
    match = _MEMORY.search(name)
    return MEMORY_LABELS.index(match[end]) if match and match[end] in MEMORY_LABELS else -1


def nanoseconds(microseconds: float) -> int:
    """Kineto's microseconds as nanoseconds.

    They have three decimals and count from a base at most three months ago, so a double holds them exactly. Their
    product with 1000 would not be exact, so whole part and decimals are converted separately.
    """
    whole = int(microseconds)
    return whole * 1000 + round((microseconds - whole) * 1000)


def keep_chrome_trace(
    processes: Sequence[ProcessTrace], rows: Rows, place: Path, warnings: list[str], progress: _Progress = bool
) -> None:
    """Writes the traces of the processes of one machine as one. A failure is a warning: the report is worth more."""
    try:
        _write(processes, rows, place, progress)
    except (OSError, CaptureError, UnicodeEncodeError) as error:
        reason = reason_of(error) if isinstance(error, OSError) else error
        warnings.append(f"{place}: the Chrome trace could not be written: {reason}")


def _write(processes: Sequence[ProcessTrace], rows: Rows, place: Path, progress: _Progress) -> None:
    first, *others = processes
    left_out = ("traceEvents", *(_OF_ONE_PROCESS if others else ()))
    trace = Trace(first.path)
    with closing(trace.pieces()) as pieces:
        next(pieces, None)
    about = {name: value for name, value in trace.header.items() if name not in left_out}
    with whole_file(place) as partial, gzip.open(partial, "wb", _LEVEL) as file:
        file.write(_lines([about])[:-1] + b',"traceEvents":[')
        events, separator = _events_of_all(processes, rows, progress), b"\n"
        while batch := list(islice(events, _BATCH)):
            file.write(separator + _lines(batch))
            separator = b",\n"
        file.write(b"\n]}\n")


def _lines(values: Sequence[Row]) -> bytes:
    return _ENCODER.encode_lines(values)[:-1].replace(b"\n", b",\n")


def _events_of_all(processes: Iterable[ProcessTrace], rows: Rows, progress: _Progress) -> Iterator[Row]:
    first_ns: int | None = None
    for number, (process, moved) in enumerate(zip(processes, rows.moved, strict=True)):
        own_ns = base_ns(process.path)
        first_ns = own_ns if first_ns is None else first_ns
        for piece in _pieces(Trace(process.path), progress):
            for event in piece.whole():
                kept = _named(event, process, moved)
                yield _apart(kept, process, number, own_ns - first_ns) if number else kept


def _named(event: Row, process: ProcessTrace, moved: Moved) -> Row:
    """An event with the name that the program gave it, and the time when the node begins that it evaluates."""
    category, name = event.get("cat"), str(event.get("name"))
    if event.get("ph") != "X" or category not in (*_RANGES, "gpu_user_annotation"):
        return event
    if (text := process.marker_text(name)) is not None:
        return event | {"cat": category.replace("cpu_op", "user_annotation"), "name": text}
    start, duration = nanoseconds(event["ts"]), nanoseconds(event.get("dur", 0))
    late_ns = moved.get((name, global_tid(process.pid, identity(event["tid"])), start)) if moved else None
    return event | {"ts": (start + late_ns) / 1_000, "dur": (duration - late_ns) / 1_000} if late_ns else event


def _apart(event: Row, process: ProcessTrace, number: int, later_ns: int) -> Row:
    event = dict(event)
    if later_ns and "ts" in event:
        event["ts"] = (nanoseconds(event["ts"]) + later_ns) / 1_000
    if isinstance(event.get("pid"), int) and event["pid"] != process.pid:
        # Devices are processes, too: streams of the same number must not share a track.
        event["pid"] += number << _PIDS_BITS
    if isinstance(event.get("id"), int):
        event["id"] += number << _IDS_BITS
    if isinstance(args := event.get("args"), dict):
        moved = {name: args[name] + (number << _IDS_BITS) for name in _IDS if isinstance(args.get(name), int)}
        if "device" in args and event.get("cat") in _ON_DEVICE:
            moved["device"] = process.devices.get(args["device"], args["device"])
        event["args"] = args | moved
    return event

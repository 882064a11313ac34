"""Kineto's Chrome trace (that of torch.profiler): read piece by piece, and converted into rows of Nsight's tables.

Kineto records one process; the traces of several become one report. Times become nanoseconds since the first event.
Names of our own ranges are numbers that stand for texts (:mod:`tracekit.capture.recorder`); other annotations keep
their names.

``--hierarchy`` keeps the trace itself, too: with the texts of our markers, of all processes in one file. Every event
has a line of its own, so that it can be read and changed piece by piece. Ids that count separately in each process are
moved apart. Which module an operator belongs to is decided where reports are read.
"""

import gzip
import json
import re
from array import array
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from tracekit.capture.rows import COPY_LABELS, MEMORY_LABELS, IntegerRows, Row, Rows, Span, global_tid
from tracekit.errors import CaptureError
from tracekit.files import reason_of, whole_file
from tracekit.markers.phases import phase_of
from tracekit.nsight.tables import short_name

#: Prefix of the names of our ranges in Kineto's trace; a number follows.
NUMBERED = "tracekit:"

_NUMBERED = re.compile(rf"{NUMBERED}(\d{{1,9}})", re.ASCII)
#: Names that Kineto passes on as they are. It calls others "unknown", leaves quotes in them unescaped, or writes a
#: slash for a backslash.
_UNHARMED = re.compile(r'(?!unknown$)[^"/\\\x00-\x1f\x7f-\U0010ffff]+')
_PUSH_POP = 59
_RUNTIME, _DRIVER = 0, 1
#: Nsight's numbers by Kineto's names: ``Memcpy HtoD (Pageable -> Device)``.
_COPY_KINDS = {f"{label[0]}to{label.partition('-to-')[2][0]}": kind for kind, label in COPY_LABELS.items() if kind}
_MEMORY_KINDS = {label: kind for kind, label in MEMORY_LABELS.items()}
_MEMCPY = re.compile(r"Memcpy (\w+)(?: \((\w+) -> (\w+)\))?")
_MEMSET = re.compile(r"Memset(?: \((\w+)\))?")
_EVALUATION = "autograd::engine::evaluate_function: "
_NEVER = 2**63
_PIECE_BYTES = 4 << 20
_EVENTS = b'"traceEvents": ['
#: Ends of an event that another one follows, and of the list of events.
_END, _LAST = b"\n  },\n", b"\n  ]"
_BASE = re.compile(rb'"baseTimeNanoseconds": (\d+)')
#: An annotation's name in Kineto's trace. Kineto does not escape quotes in it.
_QUOTED = re.compile(rb'("cat": "\w*user_annotation",\s*"name": ").*(",\s*"pid": )')
_ENCODER, _DECODER = msgspec.json.Encoder(), msgspec.json.Decoder(list[Row])
#: Events that are written at once: many small pieces take long to compress.
_BATCH = 10_000
#: Fast enough not to delay the end of the program.
_LEVEL = 1
_RANGES = ("cpu_op", "user_annotation")
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")
#: Ids that count per process, and what sets those of several processes apart.
_IDS = ("correlation", "External id")
_IDS_BITS, _PIDS_BITS = 32, 23
#: True of one process only.
_OF_ONE_PROCESS = ("distributedInfo", "trace_id")


class ProcessTrace(NamedTuple):
    """Kineto's trace of one process, with what it lacks.

    These are the texts that the numbers of our ranges stand for, the names of annotations by their times since the
    trace's base, and the numbers that the process's GPUs have in the report.
    """

    trace: Row
    texts: Sequence[str]
    pid: int
    names: Callable[[], Mapping[Span, str]] = dict
    devices: Mapping[int, int] = {}

    def marker_text(self, name: str) -> str | None:
        """The text that the name of one of our ranges stands for; None for other names."""
        match = _NUMBERED.fullmatch(name)
        number = int(match[1]) if match else len(self.texts)
        return self.texts[number] if number < len(self.texts) else None

    def annotation_name(self, name: str, start: int, end: int) -> str:
        """The name of an annotation as the program gave it, by its times since the trace's base."""
        return name if _UNHARMED.fullmatch(name) else self.names().get((start, end), name)


def rows_of_processes(processes: Iterable[ProcessTrace], *, ops: bool = False) -> Rows:
    """Converts the traces of several processes to the rows of one report. Kineto's times are of the machine's clock."""
    converter = _Converter(ops=ops)
    for process in processes:
        converter.add(process)
    return converter.converted()


class _Converter:
    def __init__(self, *, ops: bool) -> None:
        self._rows = Rows()
        self._evaluations = _Evaluations()
        self._ids: dict[str, int] = {}
        self._ops = ops
        self._base_ns: int | None = None
        self._first_ns: int | None = None
        #: The process whose events are converted, and what is added to its times.
        self._process = ProcessTrace({}, (), 0)
        self._offset_ns = 0
        self._by_category: dict[str, Callable[[Row, Row], None]] = {
            "cpu_op": self._operator,
            "user_annotation": self._range,
            "cuda_runtime": partial(self._api_call, _RUNTIME),
            "cuda_driver": partial(self._api_call, _DRIVER),
            "kernel": self._kernel,
            "gpu_memcpy": self._memcpy,
            "gpu_memset": self._memset,
        }

    def add(self, process: ProcessTrace) -> None:
        """Converts the trace of one more process."""
        base_ns = int(process.trace.get("baseTimeNanoseconds", 0))
        self._base_ns = base_ns if self._base_ns is None else self._base_ns
        self._process, self._offset_ns = process, base_ns - self._base_ns
        for event in process.trace["traceEvents"]:
            convert = self._by_category.get(event.get("cat")) if event.get("ph") == "X" else None
            if convert is not None:
                start = nanoseconds(event["ts"]) + self._offset_ns
                self._first_ns = start if self._first_ns is None else min(self._first_ns, start)
                convert(event, {"start": start, "end": start + nanoseconds(event.get("dur", 0))})

    def converted(self) -> Rows:
        rows = self._rows
        self._evaluations.begin_with_their_nodes(rows.operators, self._ids)
        zero_ns = rows.count_from(self._first_ns or 0)
        rows.threads = self._threads()
        rows.strings = list(self._ids)
        rows.started_utc_ns = (self._base_ns or 0) + zero_ns
        return rows

    def _threads(self) -> list[Row]:
        rows = self._rows
        tids = {tid for table in (rows.ranges, rows.api_calls, rows.operators) for tid in table.values("globalTid")}
        main, other = self._id("main thread"), self._id("thread")
        return [
            {"nameId": main if tid & 0xFFFFFF == tid >> 24 & 0xFFFFFF else other, "priority": 0, "globalTid": tid}
            for tid in sorted(tids)
        ]

    def _id(self, text: str) -> int:
        return self._ids.setdefault(text, len(self._ids))

    def _tid(self, event: Row) -> Row:
        return {"globalTid": global_tid(self._process.pid, int(event["tid"]))}

    def _range(self, event: Row, span: Row, text: str | None = None) -> None:
        ours = text is None and (text := self._process.marker_text(event["name"])) is not None
        if text is None:
            start, end = (span[key] - self._offset_ns for key in ("start", "end"))
            text = self._process.annotation_name(event["name"], start, end)
        if event.get("args", {}).get("finished", True) is False:
            span = span | {"end": None}
        self._rows.ranges.append(self._range_row(event, span, text))
        if ours:
            self._rows.numbered += 1
            self._evaluations.range_added(self._rows.ranges)

    def _range_row(self, event: Row, span: Row, text: str) -> Row:
        return span | {"eventType": _PUSH_POP, "textId": self._id(text), "domainId": 0} | self._tid(event)

    def _operator(self, event: Row, span: Row) -> None:
        rows, name, copies = self._rows, event["name"], None
        if self._process.marker_text(name) is not None:
            self._range(event, span)
            return
        rows.operators.append(span | {"nameId": self._id(name)} | self._tid(event))
        if self._ops:
            copies = rows.ranges
            self._range(event, span, _operator_text(event))
        elif _tells_phase(name):
            copies = rows.phases
            copies.append(self._range_row(event, span, name))
        self._evaluations.operator_added(name, rows.operators, copies)

    def _api_call(self, kind: int, event: Row, span: Row) -> None:
        row = {"eventClass": kind, "nameId": self._id(event["name"]), "returnValue": 0}
        row["correlationId"] = event["args"].get("correlation")
        self._rows.api_calls.append(span | row | self._tid(event))

    def _device(self, event: Row, span: Row) -> Row:
        """The columns that all device work has in common. Kineto writes 0 where there is no CUDA graph."""
        args = event["args"]
        device = args.get("device")
        return span | {
            "deviceId": self._process.devices.get(device, device),
            "contextId": args.get("context"),
            "streamId": args.get("stream"),
            "correlationId": args.get("correlation"),
            "globalPid": global_tid(self._process.pid, 0),
            "graphNodeId": args.get("graph node id") or None,
        }

    def _kernel(self, event: Row, span: Row) -> None:
        args, name = event["args"], event["name"]
        grid, block = (args.get(key) or (None, None, None) for key in ("grid", "block"))
        row = self._device(event, span) | {
            "demangledName": self._id(name),
            "shortName": self._id(short_name(name)),
            "registersPerThread": args.get("registers per thread"),
            "graphId": args.get("graph id") or None,
        }
        row |= dict(zip(("gridX", "gridY", "gridZ"), grid, strict=True))
        row |= dict(zip(("blockX", "blockY", "blockZ"), block, strict=True))
        self._rows.kernels.append(row)

    def _memcpy(self, event: Row, span: Row) -> None:
        match = _MEMCPY.match(event["name"])
        kind, source, destination = match.groups("") if match else ("", "", "")
        row = {
            "bytes": event["args"].get("bytes"),
            "copyKind": _COPY_KINDS.get(kind, 0),
            "srcKind": _MEMORY_KINDS.get(source),
            "dstKind": _MEMORY_KINDS.get(destination),
        }
        self._rows.memcpys.append(self._device(event, span) | row)

    def _memset(self, event: Row, span: Row) -> None:
        match = _MEMSET.match(event["name"])
        kind = _MEMORY_KINDS.get(match[1]) if match else None
        row = {"bytes": event["args"].get("bytes"), "memKind": kind}
        self._rows.memsets.append(self._device(event, span) | row)


@lru_cache(maxsize=4_096)
def _tells_phase(name: str) -> bool:
    return phase_of(name) is not None


def nanoseconds(microseconds: float) -> int:
    """Kineto's microseconds as nanoseconds.

    They have three decimals and count from a base at most three months ago, so a double holds them exactly. Their
    product with 1000 would not be exact, so whole part and decimals are converted separately.
    """
    whole = int(microseconds)
    return whole * 1000 + round((microseconds - whole) * 1000)


def _operator_text(event: Row) -> str:
    args = event.get("args", {})
    sequence = args.get("Sequence number")
    text = event["name"] + (f", seq = {sequence}" if sequence is not None else "")
    text += f", op_id = {args.get('External id', 0)}"
    sizes = args.get("Input Dims")
    return text if sizes is None else f"{text}, sizes = {sizes}"


class _Evaluation(NamedTuple):
    """The row of an evaluation among the operators, and the rows that have a copy of it, with its row there."""

    node: str
    operator: int
    copy: tuple[IntegerRows, int] | None


class _Evaluations:
    """Evaluations of backward nodes, whose hooks open and close our ranges.

    An evaluation begins with the node's hooks. One that opens or closes ranges there lies in the ranges of two modules:
    it belongs to the second one's, and the hooks to none. So its rows begin where the node begins.
    """

    def __init__(self) -> None:
        self._evaluations: list[_Evaluation] = []
        self._changes: dict[int, array[int]] = {}

    def operator_added(self, name: str, operators: IntegerRows, copies: IntegerRows | None) -> None:
        """Notes the last row of the operators, if it is an evaluation, and the last row of those that copy it."""
        if name.startswith(_EVALUATION):
            copy = None if copies is None else (copies, len(copies) - 1)
            self._evaluations.append(_Evaluation(name.removeprefix(_EVALUATION), len(operators) - 1, copy))

    def range_added(self, ranges: IntegerRows) -> None:
        tid, *times = (ranges.values(name)[-1] for name in ("globalTid", "start", "end"))
        self._changes.setdefault(tid, array("q")).extend(times)

    def begin_with_their_nodes(self, operators: IntegerRows, ids: Mapping[str, int]) -> None:
        """Moves the start of evaluations that begin with hooks of ours to the start of their node."""
        starts = _node_starts(operators, {ids[one.node] for one in self._evaluations if one.node in ids})
        changes = {tid: sorted(times) for tid, times in self._changes.items()}
        for evaluation in self._evaluations:
            row = evaluation.operator
            tid, start, end = (operators.values(name)[row] for name in ("globalTid", "start", "end"))
            node = _next(starts.get((tid, ids.get(evaluation.node, -1)), ()), start)
            if _next(changes.get(tid, ()), start) < node <= end:
                operators.replace(row, "start", node)
                if evaluation.copy is not None:
                    rows, copy = evaluation.copy
                    rows.replace(copy, "start", node)


def _node_starts(operators: IntegerRows, names: set[int]) -> dict[tuple[int, int], list[int]]:
    starts: dict[tuple[int, int], list[int]] = {}
    columns = (operators.values(name) for name in ("globalTid", "nameId", "start"))
    for tid, name, start in zip(*columns, strict=True) if names else ():
        if name in names:
            starts.setdefault((tid, name), []).append(start)
    for times in starts.values():
        times.sort()
    return starts


def _next(times: Sequence[int], start: int) -> int:
    at = bisect_left(times, start)
    return times[at] if at < len(times) else _NEVER


def trace_in(path: Path, progress: Callable[[int], object] = bool) -> Row:
    """The trace in a file: what stands before its events, and ``traceEvents``.

    The events are read while they are iterated over, once, and ``progress`` is called with each number of bytes read.
    If quotes in the names of annotations make the JSON invalid, these names are empty.
    """
    with path.open("rb") as file:
        head = file.read(_PIECE_BYTES)
    base = _BASE.search(head)
    about: Row = {}
    with suppress(ValueError):
        about = json.loads(head.partition(_EVENTS)[0].rstrip().rstrip(b",") + b"}")
    return about | {"baseTimeNanoseconds": int(base[1]) if base else 0, "traceEvents": _events(path, progress)}


def _events(path: Path, progress: Callable[[int], object]) -> Iterator[Row]:
    with path.open("rb") as file:
        first = file.read(_PIECE_BYTES)
        _, start, events = first.partition(_EVENTS)
        if not start:
            yield from _whole(first + file.read())
            return
        progress(len(first))
        rest = yield from _all_but_last(file, events, progress)
    last = rest.rpartition(_LAST)[0]
    if (parsed := _parsed(last)) is None:
        raise _invalid()
    yield from parsed


def _all_but_last(file: BinaryIO, rest: bytes, progress: Callable[[int], object]) -> Generator[Row, None, bytes]:
    while piece := file.read(_PIECE_BYTES):
        rest += piece
        events, end, after = rest.rpartition(_END)
        # What looks like an event's end may be part of a name: then the piece is read together with the next one.
        if end and (parsed := _parsed(events + _END.rstrip(b",\n"))) is not None:
            yield from parsed
            rest = after
        progress(len(piece))
    return rest


def _whole(content: bytes) -> list[Row]:
    try:
        events: list[Row] = json.loads(content)["traceEvents"]
    except (ValueError, KeyError):
        raise _invalid() from None
    return events


def _parsed(events: bytes) -> list[Row] | None:
    with suppress(ValueError):
        return _DECODER.decode(b"[%b]" % events)
    for text in (events, _QUOTED.sub(rb"\1\2", events)):
        with suppress(ValueError):  # the standard library also reads half pairs of UTF-16 and NaN
            rows: list[Row] = json.loads(b"[%b]" % text)
            return rows
    return None


def _invalid() -> CaptureError:
    return CaptureError(
        "torch.profiler wrote a trace that is not valid JSON; record with --engine nsys, or use another torch release"
    )


def keep_chrome_trace(processes: Sequence[ProcessTrace], rows: Rows, place: Path, warnings: list[str]) -> None:
    """Writes the traces of the processes of one machine as one. A failure is a warning: the report is worth more."""
    try:
        _write(processes, rows, place)
    except OSError as error:
        warnings.append(f"{place}: the Chrome trace could not be written ({reason_of(error)})")
    except CaptureError as error:
        warnings.append(f"{place}: the Chrome trace could not be written: {error}")


def _write(processes: Sequence[ProcessTrace], rows: Rows, place: Path) -> None:
    first, *others = (process.trace for process in processes)
    left_out = ("traceEvents", *(_OF_ONE_PROCESS if others else ()))
    about = {name: value for name, value in first.items() if name not in left_out}
    with whole_file(place) as partial, gzip.open(partial, "wb", _LEVEL) as file:
        file.write(_lines([about])[:-1] + b',"traceEvents":[')
        events, separator = _events_of_all(processes, iter(rows.operators.values("start"))), b"\n"
        while batch := list(islice(events, _BATCH)):
            file.write(separator + _lines(batch))
            separator = b",\n"
        file.write(b"\n]}\n")


def _lines(values: Sequence[Row]) -> bytes:
    try:
        return _ENCODER.encode_lines(values)[:-1].replace(b"\n", b",\n")
    except UnicodeEncodeError:
        texts = (json.dumps(value, ensure_ascii=False, separators=(",", ":")) for value in values)
        return ",\n".join(texts).encode("utf-8", "replace")


def _events_of_all(processes: Iterable[ProcessTrace], starts: Iterator[int]) -> Iterator[Row]:
    base_ns: int | None = None
    for number, process in enumerate(processes):
        own_base_ns = process.trace["baseTimeNanoseconds"]
        base_ns = own_base_ns if base_ns is None else base_ns
        for event in process.trace["traceEvents"]:
            kept = _named(event, process)
            if kept.get("cat") == "cpu_op" and kept.get("ph") == "X":
                kept = _beginning(kept, next(starts) - own_base_ns + base_ns)
            yield _apart(kept, process, number, own_base_ns - base_ns) if number else kept


def _named(event: Row, process: ProcessTrace) -> Row:
    if event.get("ph") != "X" or event.get("cat") not in (*_RANGES, "gpu_user_annotation"):
        return event
    name = str(event["name"])
    if (text := process.marker_text(name)) is not None:
        category = event["cat"].replace("cpu_op", "user_annotation")
        return event | {"cat": category, "name": text}
    if event["cat"] == "user_annotation":
        start = nanoseconds(event["ts"])
        return event | {"name": process.annotation_name(name, start, start + nanoseconds(event.get("dur", 0)))}
    return event


def _beginning(event: Row, start_ns: int) -> Row:
    late_ns = start_ns - nanoseconds(event["ts"])
    if not late_ns:
        return event
    return event | {"ts": start_ns / 1_000, "dur": (nanoseconds(event["dur"]) - late_ns) / 1_000}


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

"""Converts what torch.profiler recorded (Kineto's Chrome trace) into rows of Nsight's tables.

Kineto records one process; the traces of several become one report. Times become nanoseconds since the first event.
Names of our own ranges are numbers that stand for texts (:mod:`tracekit.capture.recorder`); other annotations keep
their names.
"""

from __future__ import annotations

import re
from functools import lru_cache, partial
from typing import TYPE_CHECKING, NamedTuple

from tracekit.capture.evaluations import Evaluations
from tracekit.capture.rows import COPY_LABELS, MEMORY_LABELS, Rows, global_tid
from tracekit.markers.phases import phase_of
from tracekit.nsight.kernel_names import short_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tracekit.capture.rows import Row, Span

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


def rows_of(
    trace: Row,
    texts: Sequence[str],
    pid: int,
    *,
    ops: bool = False,
    names: Callable[[], Mapping[Span, str]] = dict,
) -> Rows:
    """Converts the trace of one process.

    Args:
        trace: Kineto's Chrome trace; its events may be an iterator.
        texts: The texts that the numbers of our own ranges stand for.
        pid: The process id.
        ops: Whether every operator also becomes a range, spelled as ``emit_nvtx`` spells it.
        names: Returns the names of annotations by their times since the trace's base; called only if there are names
            that Kineto garbled, as it does if they are not plain ASCII.
    """
    return rows_of_processes([ProcessTrace(trace, texts, pid, names)], ops=ops)


class ProcessTrace(NamedTuple):
    """The trace of one process.

    Attributes:
        trace: Kineto's Chrome trace; its events may be an iterator.
        texts: The texts that the numbers of our own ranges stand for.
        pid: The process id.
        names: Returns the names of annotations by their times since the trace's base.
        devices: The numbers that the process's GPUs have in the report; a GPU that is missing keeps its own.
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
    """Converts the traces of several processes of one machine to the rows of one report.

    Kineto counts all times from a moment that it tells, by the machine's clock, so they need no alignment.
    """
    converter = _Converter(ops=ops)
    for process in processes:
        converter.add(process)
    return converter.converted()


class _Converter:
    """Collects rows, with one method per category of Kineto's events."""

    def __init__(self, *, ops: bool) -> None:
        self._rows = Rows()
        self._evaluations = Evaluations()
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
        """The rows of all traces."""
        rows = self._rows
        self._evaluations.begin_with_their_nodes(rows.operators, self._ids)
        zero_ns = rows.count_from(self._first_ns or 0)
        rows.threads = self._threads()
        rows.strings = list(self._ids)
        rows.started_utc_ns = (self._base_ns or 0) + zero_ns
        return rows

    def _threads(self) -> list[Row]:
        """The threads that have events. Kineto knows no names; the main thread's id is that of the process."""
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
    """``aten::addmm, seq = 4, op_id = 12, sizes = [[8], [2, 4]]``, as ``emit_nvtx`` spells it."""
    args = event.get("args", {})
    sequence = args.get("Sequence number")
    text = event["name"] + (f", seq = {sequence}" if sequence is not None else "")
    text += f", op_id = {args.get('External id', 0)}"
    sizes = args.get("Input Dims")
    return text if sizes is None else f"{text}, sizes = {sizes}"

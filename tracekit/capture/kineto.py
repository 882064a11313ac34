"""What torch.profiler wrote of a run (Kineto's Chrome trace) as rows of Nsight's tables.

Of this process alone: Kineto records no other. Times become nanoseconds since the first event. Names of our own
ranges stand for texts (:mod:`tracekit.capture.recorder`); other annotations keep their names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

#: What the names of our ranges begin with in torch's trace; a number follows.
NUMBERED = "tracekit:"

_NUMBERED = re.compile(rf"{NUMBERED}(\d{{1,9}})", re.ASCII)
_PUSH_POP = 59
_RUNTIME, _DRIVER = 0, 1
#: CUpti_ActivityMemcpyKind and CUpti_ActivityMemoryKind less one, as Nsight's tables number and label them.
COPY_LABELS = {
    0: "Unknown",
    1: "Host-to-Device",
    2: "Device-to-Host",
    3: "Host-to-Array",
    4: "Array-to-Host",
    5: "Array-to-Array",
    6: "Array-to-Device",
    7: "Device-to-Array",
    8: "Device-to-Device",
    9: "Host-to-Host",
    10: "Peer-to-Peer",
}
MEMORY_LABELS = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed"}
#: The same by Kineto's names: ``Memcpy HtoD (Pageable -> Device)``.
_COPY_KINDS = {f"{label[0]}to{label.partition('-to-')[2][0]}": at for at, label in COPY_LABELS.items() if at}
_MEMORY_KINDS = {label: at for at, label in MEMORY_LABELS.items()}
_COPY = re.compile(r"Memcpy (\w+)(?: \((\w+) -> (\w+)\))?")
_SET = re.compile(r"Memset(?: \((\w+)\))?")

Row = dict[str, Any]
Span = tuple[int, int]


@dataclass
class Rows:
    """Rows of Nsight's tables; every text is in ``strings``, at the place that is its id.

    Attributes:
        ranges: NVTX_EVENTS.
        calls: CUPTI_ACTIVITY_KIND_RUNTIME.
        kernels: CUPTI_ACTIVITY_KIND_KERNEL.
        copies: CUPTI_ACTIVITY_KIND_MEMCPY.
        sets: CUPTI_ACTIVITY_KIND_MEMSET.
        operators: Operators, in tracekit's own table.
        threads: ThreadNames.
        strings: The distinct texts.
        started_utc_ns: Time 0, nanoseconds since 1970.
        numbered: How many of the ranges are our own.
    """

    ranges: list[Row] = field(default_factory=list)
    calls: list[Row] = field(default_factory=list)
    kernels: list[Row] = field(default_factory=list)
    copies: list[Row] = field(default_factory=list)
    sets: list[Row] = field(default_factory=list)
    operators: list[Row] = field(default_factory=list)
    threads: list[Row] = field(default_factory=list)
    strings: list[str] = field(default_factory=list)
    started_utc_ns: int = 0
    numbered: int = 0

    @property
    def on_device(self) -> bool:
        """Whether anything ran on a GPU."""
        return bool(self.kernels or self.copies or self.sets)

    def tables(self) -> dict[str, list[Row]]:
        """The rows by the names of their tables. Operators count as work only where no GPU did any."""
        return {
            "StringIds": [{"id": at, "value": text} for at, text in enumerate(self.strings)],
            "ThreadNames": self.threads,
            "NVTX_EVENTS": self.ranges,
            "CUPTI_ACTIVITY_KIND_RUNTIME": self.calls,
            "CUPTI_ACTIVITY_KIND_KERNEL": self.kernels,
            "CUPTI_ACTIVITY_KIND_MEMCPY": self.copies,
            "CUPTI_ACTIVITY_KIND_MEMSET": self.sets,
            "TRACEKIT_CPU_OPS": [] if self.on_device else self.operators,
        }


def global_tid(pid: int, tid: int) -> int:
    """Nsight's 64-bit id of a thread; thread 0 stands for the process."""
    return 1 << 48 | (pid & 0xFFFFFF) << 24 | tid & 0xFFFFFF


def rows_of(
    trace: Row,
    texts: Sequence[str],
    pid: int,
    *,
    ops: bool = False,
    names: Mapping[Span, str] | None = None,
) -> Rows:
    """Rows of one process's trace.

    Args:
        trace: Kineto's Chrome trace.
        texts: What the numbers of our own ranges stand for.
        pid: The process.
        ops: Whether every operator also becomes a range, in the words of ``emit_nvtx``.
        names: What annotations were called, by their times since the trace's base; Kineto itself spoils names
            that are not plain ASCII.
    """
    writer = _Writer(texts, pid, names or {}, ops=ops)
    events = [
        (writer.writers[event["cat"]], event)
        for event in trace["traceEvents"]
        if event.get("ph") == "X" and event.get("cat") in writer.writers
    ]
    writer.zero_ns = min((_ns(event["ts"]) for _, event in events), default=0)
    for write, event in events:
        start = _ns(event["ts"]) - writer.zero_ns
        write(event, {"start": start, "end": start + _ns(event.get("dur", 0))})
    return writer.finished(int(trace.get("baseTimeNanoseconds", 0)))


class _Writer:
    """Rows as they grow, one method per category of Kineto's events."""

    def __init__(self, texts: Sequence[str], pid: int, names: Mapping[Span, str], *, ops: bool) -> None:
        self.zero_ns = 0
        self._names = names
        self._rows = Rows()
        self._ids: dict[str, int] = {}
        self._texts = texts
        self._pid = pid
        self._ops = ops
        self.writers: dict[str, Callable[[Row, Row], None]] = {
            "cpu_op": self._operator,
            "user_annotation": self._range,
            "cuda_runtime": partial(self._call, _RUNTIME),
            "cuda_driver": partial(self._call, _DRIVER),
            "kernel": self._kernel,
            "gpu_memcpy": self._copy,
            "gpu_memset": self._set,
        }

    def finished(self, base_ns: int) -> Rows:
        """The rows."""
        rows = self._rows
        tids = {row["globalTid"] for table in (rows.ranges, rows.calls, rows.operators) for row in table}
        main, other = self._id("main thread"), self._id("thread")
        rows.threads = [
            {
                "nameId": main if tid & 0xFFFFFF == self._pid else other,
                "priority": 0,
                "globalTid": tid,
            }
            for tid in sorted(tids)
        ]
        rows.strings = list(self._ids)
        rows.started_utc_ns = base_ns + self.zero_ns
        return rows

    def _id(self, text: str) -> int:
        return self._ids.setdefault(text, len(self._ids))

    def _tid(self, event: Row) -> Row:
        return {"globalTid": global_tid(self._pid, int(event["tid"]))}

    def _ours(self, name: str) -> str | None:
        """The text that a name stands for, if we gave it."""
        found = _NUMBERED.fullmatch(name)
        number = int(found[1]) if found else len(self._texts)
        return self._texts[number] if number < len(self._texts) else None

    def _range(self, event: Row, span: Row, text: str | None = None) -> None:
        if text is None and (text := self._ours(event["name"])) is not None:
            self._rows.numbered += 1
        if text is None:
            when = (self.zero_ns + span["start"], self.zero_ns + span["end"])
            text = self._names.get(when, event["name"])
        if event.get("args", {}).get("finished", True) is False:
            span = span | {"end": None}
        row = {
            "eventType": _PUSH_POP,
            "textId": self._id(text),
            "domainId": 0,
        }
        self._rows.ranges.append(span | row | self._tid(event))

    def _operator(self, event: Row, span: Row) -> None:
        if self._ours(event["name"]) is not None:
            self._range(event, span)
            return
        self._rows.operators.append(span | {"nameId": self._id(event["name"])} | self._tid(event))
        if self._ops:
            self._range(event, span, _in_words(event))

    def _call(self, kind: int, event: Row, span: Row) -> None:
        about = {"eventClass": kind, "nameId": self._id(event["name"]), "returnValue": 0}
        about["correlationId"] = event["args"].get("correlation")
        self._rows.calls.append(span | about | self._tid(event))

    def _device(self, event: Row, span: Row) -> Row:
        """What every piece of device work says; Kineto's 0 stands for no graph."""
        args = event["args"]
        return span | {
            "deviceId": args.get("device"),
            "contextId": args.get("context"),
            "streamId": args.get("stream"),
            "correlationId": args.get("correlation"),
            "globalPid": global_tid(self._pid, 0),
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

    def _copy(self, event: Row, span: Row) -> None:
        found = _COPY.match(event["name"])
        kind, source, goal = found.groups("") if found else ("", "", "")
        self._rows.copies.append(
            self._device(event, span)
            | {
                "bytes": event["args"].get("bytes"),
                "copyKind": _COPY_KINDS.get(kind, 0),
                "srcKind": _MEMORY_KINDS.get(source),
                "dstKind": _MEMORY_KINDS.get(goal),
            }
        )

    def _set(self, event: Row, span: Row) -> None:
        found = _SET.match(event["name"])
        kind = _MEMORY_KINDS.get(found[1]) if found else None
        about = {"bytes": event["args"].get("bytes"), "memKind": kind}
        self._rows.sets.append(self._device(event, span) | about)


def short_name(name: str) -> str:
    """A kernel's name without return type, namespaces, template arguments and parameters, as Nsight shortens it.

    >>> short_name("void at::native::(anonymous namespace)::sum<4, at::Op<int> >(int, at::Op<int>)")
    'sum'
    """
    plain = name.replace("(anonymous namespace)", "")
    kept: list[str] = []
    angles = parentheses = 0
    for letter in plain:
        if letter in "()":
            if not angles:
                break
            parentheses += 1 if letter == "(" else -1
        elif letter in "<>" and not parentheses:
            angles += 1 if letter == "<" else -1
        elif not angles:
            kept.append(letter)
    words = "".join(kept).split("::")[-1].split()
    return words[-1] if words and not angles else name


def _ns(microseconds: float) -> int:
    """Kineto writes microseconds with three decimals since a base of the last three months: a double tells them apart.

    Their product with 1000 is no longer exact, so the decimals go alone.
    """
    whole = int(microseconds)
    return whole * 1000 + round((microseconds - whole) * 1000)


def _in_words(event: Row) -> str:
    """``aten::addmm, seq = 4, op_id = 12, sizes = [[8], [2, 4]]``, as ``emit_nvtx`` spells it."""
    args = event.get("args", {})
    sequence = args.get("Sequence number")
    text = event["name"] + (f", seq = {sequence}" if sequence is not None else "")
    text += f", op_id = {args.get('External id', 0)}"
    sizes = args.get("Input Dims")
    return text if sizes is None else f"{text}, sizes = {sizes}"

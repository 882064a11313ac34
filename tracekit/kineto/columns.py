"""Events of a trace, piece by piece, as columns: one table for each kind of event."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, TypeVar
from zlib import crc32

import msgspec
import numpy as np
from numpy.typing import NDArray

from tracekit.arrays.types import Flags, Floats, Ints
from tracekit.causes import ABSURD_TIME, ENDS_BEFORE_START, OTHER_EVENT, UNKNOWN_EVENT
from tracekit.kineto.arguments import collective_of, fields_of, line_of, named_modules, texts_of
from tracekit.kineto.stream import Args, Event, ExactTimes, Number, Piece, args_of
from tracekit.markers.torch_texts import PREFIX
from tracekit.recording.provenance import LossCounters
from tracekit.recording.values import Collective

_RANGES = OPERATOR, ANNOTATION, MODULE = ("operator", "annotation", "module")
_OTHERS = FUNCTION, ALLOCATION, FLOW, SYNC, CALL = ("function", "allocation", "flow", "sync", "call")
DEVICE_WORK = KERNEL, MEMCPY, MEMSET = ("kernel", "memcpy", "memset")
KINDS = (*_RANGES, *_OTHERS, *DEVICE_WORK)
#: What a function may be, apart from a module's call: one called forward, one that has a line, or both.
FORWARD, LINE = "forward", "line"
#: What the names of functions end with that compute modules.
CALLED_FORWARD = ": forward"
#: Kineto's categories since 2020, in lower case.
_CATEGORIES = {
    OPERATOR: ("cpu_op", "operator"),
    ANNOTATION: ("user_annotation", "nvtx"),
    FUNCTION: ("python_function",),
    KERNEL: ("kernel", "concurrent_kernel"),
    MEMCPY: ("gpu_memcpy", "memcpy"),
    MEMSET: ("gpu_memset", "memset"),
    SYNC: ("cuda_sync",),
    # What allocators do, as the Python exporter writes it (torch 2.14): a point with a duration until the trace ends.
    ALLOCATION: ("cpu_instant_event",),
    CALL: [of + api for api in ("runtime", "driver") for of in ("", "cuda_", "hip_", "xpu_", "mtia_", "privateuse1_")],
}
#: Other events: of categories that are not read, names of processes and threads, points, and what is no event.
_OTHER, _NAMES, _POINT, _UNKNOWN, _NEEDLESS = _APART = ("other", "names", "point", "unknown", "needless")
_CODE = {kind: number for number, kind in enumerate((*KINDS, *_APART))}
_CODE_OF_CATEGORY: dict[str | None, int] = {
    spelled: _CODE[kind]
    for kind, names in _CATEGORIES.items()
    for name in names
    for spelled in (name, name.capitalize())
}
#: Kinds that are neither ranges nor launches nor work.
AUXILIARY = (FUNCTION, FORWARD, LINE, ALLOCATION, FLOW, SYNC)
#: Categories of events that are not needed: ranges drawn again on the GPU, the profiler's own.
_NOT_NEEDED = {"gpu_user_annotation", "trace", "overhead", "cuda_event"}
#: Categories of accelerators whose work is not read, by their beginnings.
_OTHER_DEVICES = ("mtia_", "glow_", "hpu_", "xpu_", "privateuse1_")
#: Events without a duration: names, points, flows, counters.
_PHASES = {"M": _NAMES, **dict.fromkeys("iIstfC", _POINT)}
#: What events are for the counters; all others are ranges.
SUBJECTS = {CALL: "launches", **dict.fromkeys(DEVICE_WORK, "kernels"), **dict.fromkeys(AUXILIARY, "events")}
#: Points that are needed: what allocators do, and both ends of flows from operators to the nodes of autograd they made.
_POINT_KINDS: dict[tuple[object, object], str]
_POINT_KINDS = {("i", "[memory]"): ALLOCATION, ("s", "fwdbwd"): FLOW, ("f", "fwdbwd"): FLOW}
_OF_DEVICE = ("device", "context", "stream", "correlation", "bytes", "graph", "graph_node")
#: Arguments of events that are integers.
_INTEGERS = {
    **dict.fromkeys(DEVICE_WORK, _OF_DEVICE),
    KERNEL: (*_OF_DEVICE, "registers"),
    SYNC: ("device", "context", "stream", "correlation", "event_stream", "recorded_by"),
    ALLOCATION: ("device_type", "device_id", "address", "total", "allocated"),
    CALL: ("correlation",),
    OPERATOR: ("forward_thread",),
}
_DIMENSIONS = 3

#: A column by name.
Columns = dict[str, "Ints"]
#: Arguments as they are written, and what they describe.
_Fields = tuple[bytes, ...]
_Value = TypeVar("_Value")


class Gathering:
    """The columns of all pieces so far, and the row of every host thread, by ids of process and thread."""

    def __init__(self, counters: LossCounters) -> None:
        self.threads: dict[tuple[int, int], int] = {}
        self.names: dict[str, int] = {}
        self.texts: dict[str, int] = {}
        self.lines: dict[str, int] = {}
        self.collectives: dict[Collective, int] = {}
        self.annotations: dict[tuple[int, ...], int] = {}
        self.other_devices: set[str] = set()
        self.process_names: dict[int, str] = {}
        self.thread_names: dict[tuple[int, int], str] = {}
        self._chunks: defaultdict[str, list[Columns]] = defaultdict(list)
        self._rows_of_texts: dict[tuple[object, ...], int] = {}
        self._rows_of_threads: dict[tuple[object, object], int] = {}
        #: Functions by their names; of each its code, and the rows of its name if it is called forward and of its line.
        self._functions: dict[Number, int] = {}
        self._read_functions: list[tuple[int, int, int]] = []
        self._counters = counters

    def add(self, piece: Piece) -> None:
        """Adds the events of one more piece."""
        events, kind_of, other = piece.events, _CODE_OF_CATEGORY.get, _CODE[_OTHER]
        codes = [kind_of(event.cat, other) if event.ph == "X" else _code_of_point(event) for event in events]
        code = np.array(codes, dtype=np.int8)
        function = self._functions_of(events, code)
        rows = {kind: np.flatnonzero(code == number).tolist() for number, kind in enumerate((*KINDS, *_APART))}
        self._counters.add("events", UNKNOWN_EVENT, len(rows[_UNKNOWN]))
        self._add_names([events[row] for row in rows[_NAMES]])
        self._counters.add("events", OTHER_EVENT, len(rows[FUNCTION]) + len(rows[_NEEDLESS]))
        self._count_others(Counter(events[row].cat for row in rows[_OTHER]))
        for kind in KINDS:
            if rows[kind]:
                self._add_events(kind, piece, rows[kind], function)

    def table(self, kind: str) -> Columns:
        """All events of a kind."""
        chunks = self._chunks.pop(kind, None) or [self._columns(kind, [], _EMPTY)]
        return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}

    def tables(self) -> dict[str, Columns]:
        """All events by kind; in place of functions those called forward and those that have a line, named by these."""
        events = {kind: self.table(kind) for kind in KINDS}
        functions = events.pop(FUNCTION)
        _, forward, line = np.array(self._read_functions, dtype=np.int64).reshape(-1, 3)[functions["name"]].T
        return events | {FORWARD: _with_names(functions, forward), LINE: _with_names(functions, line)}

    def texts_of_names(self, name: Ints) -> Ints:
        """Rows of texts that are names."""
        names = list(self.names)
        distinct, which = np.unique(name, return_inverse=True)
        return _rows([names[row] for row in distinct], self.texts)[which]

    def _functions_of(self, events: Sequence[Event], code: Ints) -> Ints:
        """Numbers of functions by their names, -1 for other events; says in ``code`` what each one is."""
        rows, known = np.flatnonzero(code == _CODE[FUNCTION]), self._functions
        functions = [events[row] for row in rows.tolist()]
        try:  # three of four events may be functions, but few names are new
            numbers = [known[event.name] for event in functions]
        except KeyError:
            numbers = [self._function(event.name) for event in functions]
        function = np.full(code.size, -1, dtype=np.int64)
        function[rows] = numbers
        code[rows] = np.array([kind for kind, _, _ in self._read_functions], dtype=np.int8)[function[rows]]
        return function

    def _function(self, name: Number) -> int:
        if name not in self._functions:
            text, line = str(name), line_of(name)
            of_name = self.names.setdefault(text, len(self.names)) if text.endswith(CALLED_FORWARD) else -1
            of_line = self.lines.setdefault(line, len(self.lines)) if line else -1
            kind = MODULE if text.startswith(PREFIX) else FUNCTION if max(of_name, of_line) >= 0 else _NEEDLESS
            self._read_functions.append((_CODE[kind], of_name, of_line))
        return self._functions.setdefault(name, len(self._functions))

    def _count_others(self, categories: Counter[str | None]) -> None:
        for category, count in categories.items():
            name = str(category).lower()
            if name.startswith(_OTHER_DEVICES):
                self.other_devices.add(name)
            needless = name in _NOT_NEEDED or name in self.other_devices
            self._counters.add("events", OTHER_EVENT if needless else UNKNOWN_EVENT, count)

    def _add_names(self, events: Sequence[Event]) -> None:
        for event, args in zip(events, self._args(events), strict=True):
            written = decoded(bytes(args.name or b""))
            name = written.strip() if isinstance(written, str) else ""
            if name and event.name == "process_name":
                self.process_names[identity(event.pid)] = name
            elif name and event.name == "thread_name":
                self.thread_names[identity(event.pid), identity(event.tid)] = name

    def _add_events(self, kind: str, piece: Piece, rows: Sequence[int], function: Ints) -> None:
        events = [piece.events[row] for row in rows]
        start, duration, known = _start_and_duration(events, rows, piece.exact)
        subject = SUBJECTS.get(kind, "ranges")
        self._counters.add(subject, ENDS_BEFORE_START, int((duration < 0).sum()))
        self._counters.add(subject, ABSURD_TIME, int((~known).sum()))
        columns = self._columns(kind, events, function[rows]) | {"start": start, "end": start + np.maximum(duration, 0)}
        self._chunks[kind].append({name: column[known] for name, column in columns.items()})

    def _columns(self, kind: str, events: Sequence[Event], function: Ints) -> Columns:
        columns: Columns = {"start": _EMPTY, "end": _EMPTY}
        if kind == FUNCTION:
            return columns | {"name": function, "thread": self._threads(events)}
        columns["name"] = _rows([str(event.name) for event in events], self.names)
        args = [] if kind == MODULE else self._args(events)
        columns |= _integers(args, *_INTEGERS.get(kind, ()))
        if kind in DEVICE_WORK:
            return columns | self._device_columns(kind, args)
        if kind != SYNC:
            columns["thread"] = self._threads(events)
        return columns | self._host_columns(kind, events, args)

    def _host_columns(self, kind: str, events: Sequence[Event], args: Sequence[Args]) -> Columns:
        if kind == CALL:
            kernels = [(bytes(one.kernel),) if one.kernel else None for one in args]
            return {"kernel": _rows_of_fields(kernels, _kernel_of, self.names)}
        if kind == FLOW:
            return _integers(events, "id") | {"begins": np.array([event.ph == "s" for event in events], dtype=bool)}
        if kind not in (OPERATOR, ANNOTATION):
            return {}
        is_open = {"open": np.array([one.finished is False for one in args], dtype=bool)}
        if kind == ANNOTATION:
            return is_open | {"text": _rows([str(event.name) for event in events], self.texts)}
        return is_open | {"text": self._operator_texts(events, args)}

    def _args(self, events: Sequence[Event]) -> list[Args]:
        args, damaged = args_of(events)
        self._counters.add("events", UNKNOWN_EVENT, damaged)
        return args

    def _device_columns(self, kind: str, args: Sequence[Args]) -> Columns:
        annotation = _rows_of_fields([*map(named_modules, args)], self._annotation, self.annotations)
        columns = {"annotation": annotation}
        if kind == KERNEL:
            columns |= _sizes("grid", [one.grid for one in args]) | _sizes("block", [one.block for one in args])
            columns["collective"] = _rows_of_fields([*map(fields_of, args)], collective_of, self.collectives)
        return columns

    def _annotation(self, values: list[object]) -> tuple[int, ...] | None:
        return tuple(self.texts.setdefault(text, len(self.texts)) for text in texts_of(*values)) or None

    def _threads(self, events: Sequence[Event]) -> Ints:
        known = self._rows_of_threads
        try:
            rows = [known[event.pid, event.tid] for event in events]
        except KeyError:
            rows = [self._thread(event.pid, event.tid) for event in events]
        return np.array(rows, dtype=np.int64)

    def _thread(self, pid: Number, tid: Number) -> int:
        row = self.threads.setdefault((identity(pid), identity(tid)), len(self.threads))
        return self._rows_of_threads.setdefault((pid, tid), row)

    def _operator_texts(self, events: Sequence[Event], args: Sequence[Args]) -> Ints:
        known = self._rows_of_texts
        keys = [
            (event.name, one.sequence, bytes(one.dims or b""), bytes(one.dims_2020 or b""), bytes(one.types or b""))
            for event, one in zip(events, args, strict=True)
        ]
        # In the order of the trace, so that one trace always gives the same tables.
        for key in dict.fromkeys(keys):
            if key not in known:
                text = _operator_text(*key)
                known[key] = self.texts.setdefault(text, len(self.texts))
        return np.array([known[key] for key in keys], dtype=np.int64)


_EMPTY = np.empty(0, dtype=np.int64)


def _with_names(events: Columns, name: Ints) -> Columns:
    named = np.flatnonzero(name >= 0)
    return {**{column: values[named] for column, values in events.items()}, "name": name[named]}


def _rows(values: Sequence[str], known: dict[str, int]) -> Ints:
    return np.array([known.setdefault(value, len(known)) for value in values], dtype=np.int64)


def _rows_of_fields(
    written: Sequence[_Fields | None], read: Callable[[list[object]], _Value | None], known: dict[_Value, int]
) -> Ints:
    """Rows of what the arguments of some work describe, each distinct text read once; -1 where that is nothing."""
    rows: dict[_Fields | None, int] = {None: -1}
    for fields in dict.fromkeys(written):
        value = None if fields is None else read([*map(decoded, fields)])
        rows[fields] = -1 if value is None else known.setdefault(value, len(known))
    return np.array([rows[fields] for fields in written], dtype=np.int64)


def _kernel_of(values: list[object]) -> str | None:
    """The name of the kernel that a call launches, as ROCm's traces record."""
    [name] = values
    return name if isinstance(name, str) and name else None


def _code_of_point(event: Event) -> int:
    return _CODE[_POINT_KINDS.get((event.ph, event.name)) or _PHASES.get(event.ph or "", _UNKNOWN)]


def _sizes(name: str, values: Sequence[object]) -> Columns:
    texts = [bytes(value or b"") for value in values]  # type: ignore[call-overload]
    distinct = {text: _three(text) for text in set(texts)}
    table = np.array([distinct[text] for text in texts], dtype=np.int64).reshape(-1, _DIMENSIONS)
    return {f"{name}_{axis}": table[:, at] for at, axis in enumerate("xyz")}


def _three(text: bytes) -> tuple[int, ...]:
    sizes = decoded(text)
    if not isinstance(sizes, list) or len(sizes) != _DIMENSIONS:
        return (-1,) * _DIMENSIONS
    return tuple(min(size, _LARGEST_ID) if isinstance(size, int) and size >= 0 else -1 for size in sizes)


_SCALARS = (b"", b"[]")
#: Larger numbers are -1 without its sign.
_NO_SEQUENCE = 10**18
#: Names of dtypes by those of C++; all others are no tensors.
_DTYPES = {
    **{f"c10::Float8_{form}": f"float8_{form}" for form in ("e5m2", "e4m3fn", "e5m2fnuz", "e4m3fnuz", "e8m0fnu")},
    **{f"c10::{name}": name for name in ("qint8", "quint8", "qint32")},
    **dict.fromkeys(("short", "short int"), "int16"),
    **dict.fromkeys(("long", "long int"), "int64"),
    **dict.fromkeys(("unsigned short", "short unsigned int"), "uint16"),
    **dict.fromkeys(("unsigned long", "long unsigned int"), "uint64"),
    "float": "float32",
    "double": "float64",
    "c10::Half": "float16",
    "c10::BFloat16": "bfloat16",
    "unsigned char": "uint8",
    "signed char": "int8",
    "int": "int32",
    "unsigned int": "uint32",
    "bool": "bool",
    "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128",
    "c10::complex<c10::Half>": "complex32",
}


def _operator_text(name: object, sequence: object, dims: bytes, dims_2020: bytes, types: bytes) -> str:
    text = str(name)
    if isinstance(sequence, int) and 0 <= sequence < _NO_SEQUENCE:
        text += f", seq = {sequence}"
    # In 2020, dimensions without types are placeholders.
    if not dims and types not in _SCALARS:
        dims = dims_2020
    sizes = _recorded_sizes(dims)
    return text if sizes is None else f"{text}, sizes = {sizes}{_types(types)}"


@lru_cache(maxsize=4_096)
def _recorded_sizes(dims: bytes) -> str | None:
    value = decoded(dims)
    return str(value) if isinstance(value, list) else None


@lru_cache(maxsize=4_096)
def _types(types: bytes) -> str:
    value = decoded(types)
    words = [_DTYPES.get(str(word), "") for word in value] if isinstance(value, list) else []
    return f", types = {json.dumps(words)}" if any(words) else ""


#: Doubles from here on are further apart than one nanosecond, in microseconds: 102 days.
_INEXACT_US = 2.0**43
#: Larger than any true time, even since 1970, in microseconds: 73 years.
_LAST_US = 2.0**61 / 1000
_LARGEST_ID = 2**62
_NO_TIMES = ExactTimes()
#: The tables keep ids of threads and processes in 31 bits.
_ID_BITS = 0x7FFFFFFF


def _numbers(values: Sequence[Number]) -> Floats:
    """Numbers, also those that are written as texts; NaN for what is none."""
    return _converted(values, np.float64, _number)


def _converted(values: Sequence[Number], dtype: type, one: Callable[[Number], float]) -> NDArray[Any]:
    try:
        return np.array(values, dtype=dtype)
    except (ValueError, TypeError, OverflowError):
        return np.array([*map(one, values)], dtype=dtype)


def _number(value: Number) -> float:
    try:
        return float(value) if value is not None else float("nan")
    except (ValueError, OverflowError):
        return float("nan")


def _integers(rows: Sequence[Args] | Sequence[Event], *names: str) -> Columns:
    """Columns of fields, also of those that are written as texts; -1 for what is no number."""
    return {name: _converted([*map(attrgetter(name), rows)], np.int64, _integer) for name in names}


def _integer(value: Number) -> int:
    try:
        number = int(value) if value is not None else -1
    except (ValueError, OverflowError):
        return -1
    return number if abs(number) <= _LARGEST_ID else -1


def identity(value: Number) -> int:
    """The id of a thread or process in 31 bits, also if it is a text."""
    try:
        return int(value or 0) & _ID_BITS
    except (ValueError, OverflowError):
        return crc32(str(value).encode("utf-8", "replace")) & _ID_BITS


def decoded(text: bytes) -> object:
    """The value of an argument that was left as JSON; None if that is damaged."""
    try:
        return msgspec.json.decode(text.decode("utf-8", "replace")) if text else None
    except msgspec.MsgspecError:
        return None


def _start_and_duration(
    events: Sequence[Event], rows: Sequence[int], exact: Callable[[], list[ExactTimes]]
) -> tuple[Ints, Ints, Flags]:
    start, duration = _numbers([event.ts for event in events]), _numbers([event.dur for event in events])
    known = (np.abs(start) < _LAST_US) & (np.abs(duration) < _LAST_US)
    start, duration = np.where(known, start, 0.0), np.where(known, duration, 0.0)
    if bool((np.abs(start) >= _INEXACT_US).any()) and not all(isinstance(event.ts, int) for event in events):
        return *_exact(exact(), rows, known), known
    return _nanoseconds(start), _nanoseconds(duration), known


def _nanoseconds(microseconds: Floats) -> Ints:
    """Microseconds with decimals as nanoseconds.

    Their product with 1000 would not be exact, so whole part and decimals are converted separately.
    """
    whole = np.floor(microseconds)
    return whole.astype(np.int64) * 1000 + np.rint((microseconds - whole) * 1000).astype(np.int64)


def _exact(times: list[ExactTimes], rows: Sequence[int], known: Flags) -> tuple[Ints, Ints]:
    some = [times[row] if fits else _NO_TIMES for row, fits in zip(rows, known.tolist(), strict=True)]
    start = [round(one.ts * 1000) if one.ts is not None else 0 for one in some]
    duration = [round(one.dur * 1000) if one.dur is not None else 0 for one in some]
    return np.array(start, dtype=np.int64), np.array(duration, dtype=np.int64)

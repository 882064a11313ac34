"""Events of a trace, piece by piece, into columns: one table per kind of event, as small as the recording needs it."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from tracekit.causes import ABSURD_TIME, ENDS_BEFORE_START
from tracekit.markers.numbered import PREFIX
from tracekit.readers.kineto.events import NO_ARGS
from tracekit.readers.kineto.operators import operator_text
from tracekit.readers.kineto.values import identity, integers_of, start_and_duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracekit.arrays.types import Ints
    from tracekit.readers.kineto.events import Args, Event, Number
    from tracekit.readers.kineto.stream import Piece
    from tracekit.recording.tally import Tally

OPERATOR, ANNOTATION, MODULE, CALL, KERNEL, MEMCPY, MEMSET = KINDS = (
    "operator",
    "annotation",
    "module",
    "call",
    "kernel",
    "memcpy",
    "memset",
)
DEVICE_WORK = (KERNEL, MEMCPY, MEMSET)
#: Kineto's categories since 2020, in lower case.
_CATEGORIES = {
    "cpu_op": OPERATOR,
    "operator": OPERATOR,
    "user_annotation": ANNOTATION,
    "nvtx": ANNOTATION,
    "python_function": MODULE,
    "kernel": KERNEL,
    "concurrent_kernel": KERNEL,
    "gpu_memcpy": MEMCPY,
    "memcpy": MEMCPY,
    "gpu_memset": MEMSET,
    "memset": MEMSET,
    **{f"{device}{api}": CALL for api in ("runtime", "driver") for device in ("", "cuda_", "hip_", "xpu_", "mtia_")},
    **{f"privateuse1_{api}": CALL for api in ("runtime", "driver")},
}
_KIND = {spelled: kind for name, kind in _CATEGORIES.items() for spelled in (name, name.capitalize())}
#: What events are for the tally; all others are ranges.
SUBJECTS = {CALL: "launches", KERNEL: "kernels", MEMCPY: "kernels", MEMSET: "kernels"}
#: Arguments that every piece of device work has.
_DEVICE_COLUMNS = ("device", "context", "stream", "correlation", "bytes", "graph", "graph_node")
_DIMENSIONS = 3

#: A column by name.
Columns = dict[str, "Ints"]


class Named(NamedTuple):
    """A name that the trace gives to a process or thread."""

    pid: int
    tid: int
    name: str


class Gathering:
    """The columns of all pieces so far.

    Attributes:
        threads: Row of every thread of the host, by ids of process and thread.
        names: Row of every name of a call, piece of work or module.
        texts: Row of every text of a range.
        hierarchies: Row of every module hierarchy of an operator.
        process_names: Names of processes.
        thread_names: Names of threads.
    """

    def __init__(self, tally: Tally) -> None:
        self.threads: dict[tuple[int, int], int] = {}
        self.names: dict[str, int] = {}
        self.texts: dict[str, int] = {}
        self.hierarchies: dict[str, int] = {}
        self.process_names: list[Named] = []
        self.thread_names: list[Named] = []
        self._chunks: defaultdict[str, list[Columns]] = defaultdict(list)
        self._rows_of_texts: dict[tuple[object, ...], int] = {}
        self._rows_of_threads: dict[tuple[object, object], int] = {}
        self._tally = tally

    def add(self, piece: Piece) -> None:
        """Adds the events of one more piece."""
        rows: dict[str | None, list[int]] = {kind: [] for kind in (*KINDS, None)}
        kind_of, named = _KIND.get, []
        for row, event in enumerate(piece.events):
            if event.ph == "X":
                rows[kind_of(event.cat or "")].append(row)
            elif event.ph == "M":
                named.append(event)
        self._add_names(named)
        rows[MODULE] = [row for row in rows[MODULE] if str(piece.events[row].name).startswith(PREFIX)]
        for kind in KINDS:
            if rows[kind]:
                self._add_events(kind, piece, rows[kind])

    def table(self, kind: str) -> Columns:
        """All events of a kind."""
        chunks = self._chunks.pop(kind, None) or [self._columns(kind, [])]
        return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}

    def texts_of_names(self, name: Ints) -> Ints:
        """Rows of texts that are names."""
        names = list(self.names)
        distinct, which = np.unique(name, return_inverse=True)
        return _rows([names[row] for row in distinct], self.texts)[which]

    def _add_names(self, events: Iterable[Event]) -> None:
        for event in events:
            lists = {"process_name": self.process_names, "thread_name": self.thread_names}
            if (known := lists.get(str(event.name))) is not None and (name := _name_in(event.args)) is not None:
                known.append(Named(identity(event.pid), identity(event.tid), name))

    def _add_events(self, kind: str, piece: Piece, rows: Sequence[int]) -> None:
        events = [piece.events[row] for row in rows]
        start, duration, known = start_and_duration(events, rows, piece.exact)
        subject = SUBJECTS.get(kind, "ranges")
        self._tally.add(subject, ENDS_BEFORE_START, int((duration < 0).sum()))
        self._tally.add(subject, ABSURD_TIME, int((~known).sum()))
        columns = self._columns(kind, events) | {"start": start, "end": start + np.maximum(duration, 0)}
        self._chunks[kind].append({name: column[known] for name, column in columns.items()})

    def _columns(self, kind: str, events: Sequence[Event]) -> Columns:
        args = [event.args or NO_ARGS for event in events]
        columns: Columns = {"start": _EMPTY, "end": _EMPTY}
        columns["name"] = _rows([str(event.name) for event in events], self.names)
        if kind in DEVICE_WORK:
            return columns | self._device_columns(kind, args)
        columns["thread"] = self._threads(events)
        if kind == CALL:
            columns["correlation"] = integers_of([one.correlation for one in args])
        elif kind == OPERATOR:
            columns["text"] = self._operator_texts(events, args)
            columns["hierarchy"] = _rows([str(one.hierarchy or "") for one in args], self.hierarchies)
        elif kind == ANNOTATION:
            columns["text"] = _rows([str(event.name) for event in events], self.texts)
            columns["open"] = np.array([bytes(one.finished or b"") == b"false" for one in args], dtype=bool)
        return columns

    @staticmethod
    def _device_columns(kind: str, args: Sequence[Args]) -> Columns:
        columns = {name: integers_of([getattr(one, name) for one in args]) for name in _DEVICE_COLUMNS}
        if kind == KERNEL:
            columns["registers"] = integers_of([one.registers for one in args])
            columns |= _sizes("grid", [one.grid for one in args])
            columns |= _sizes("block", [one.block for one in args])
        return columns

    def _threads(self, events: Sequence[Event]) -> Ints:
        known = self._rows_of_threads
        rows = [known.get((event.pid, event.tid), -1) for event in events]
        if -1 in rows:
            rows = [
                self._thread(event.pid, event.tid) if row < 0 else row for row, event in zip(rows, events, strict=True)
            ]
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
                text = operator_text(*key)
                known[key] = self.texts.setdefault(text, len(self.texts))
        return np.array([known[key] for key in keys], dtype=np.int64)


_EMPTY = np.empty(0, dtype=np.int64)


def _rows(values: Sequence[str], known: dict[str, int]) -> Ints:
    """Rows of texts among those known, to which new ones are added."""
    return np.array([known.setdefault(value, len(known)) for value in values], dtype=np.int64)


def _name_in(args: Args | None) -> str | None:
    """The name in a row that names a process or thread."""
    if args is None or not args.name:
        return None
    name = msgspec.json.decode(args.name)
    return name.strip() if isinstance(name, str) else None


def _sizes(name: str, values: Sequence[object]) -> Columns:
    """A kernel's grid or block in three columns; each distinct one is decoded once."""
    texts = [bytes(value or b"") for value in values]  # type: ignore[call-overload]
    distinct = {text: _three(text) for text in set(texts)}
    table = np.array([distinct[text] for text in texts], dtype=np.int64).reshape(-1, _DIMENSIONS)
    return {f"{name}_{axis}": table[:, at] for at, axis in enumerate("xyz")}


def _three(text: bytes) -> tuple[int, ...]:
    sizes = msgspec.json.decode(text) if text else None
    if not isinstance(sizes, list) or len(sizes) != _DIMENSIONS:
        return (-1,) * _DIMENSIONS
    return tuple(size if isinstance(size, int) and 0 <= size < 1 << 31 else -1 for size in sizes)

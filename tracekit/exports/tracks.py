"""Where and when a slice of a timeline is drawn: its track, a thread or stream or a lane of it, and its microseconds.

A slice has a start and a length. Viewers that add them as floating-point numbers (speedscope) may place an end just
after the start of the next slice. Perfetto multiplies each by a thousand and drops the fraction, so that 52.207 us can
become 52206 ns. Either way slices that touch overlap: speedscope draws them one inside the other, Perfetto leaves one
out.
"""

import json
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.arrays.columns import integers
from tracekit.arrays.groups import grouped
from tracekit.arrays.types import Ints
from tracekit.dataset.opening import REPORT

#: Start and end in nanoseconds → start and length in microseconds, as JSON.
Spelling: TypeAlias = "Callable[[Ints, Ints], tuple[pa.Array, pa.Array]]"

_UNKNOWN = -1
#: Steps of a microsecond that binary numbers hold exactly, up to six days; each is 0.06 ns.
_STEPS_OF_US = 1 << 14


class Track(NamedTuple):
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


#: What is drawn for a thread, from top to bottom; calls are named for what their nodes are.
STEPS, CALLS, OPERATORS, RANGES, WORK = range(5)


class Tracks:
    """Numbers tracks as they occur, and names them at the end; nodes is what calls belong to, such as ``modules``."""

    def __init__(self, reports: list[str], nodes: str) -> None:
        self._reports, self._kinds = reports, ("steps", nodes, "operators", "all ranges and API calls")
        self._number: dict[Track, int] = {}
        self._process: dict[tuple[int, ...], int] = {}

    def numbered(self, table: pa.Table, kind: Ints, lane: Ints) -> tuple[Ints, Ints]:
        """The process and thread of every row of a table, as the trace numbers them, by its kind and lane."""
        members = _members(table, self._reports, kind, lane)
        code, first = grouped(members)
        tracks = [Track(*(int(column[row]) for column in members)) for row in first]
        numbers = [self._number.setdefault(track, len(self._number) + 1) for track in tracks]
        processes = [self._process.setdefault(_process_of(track), len(self._process) + 1) for track in tracks]
        return np.array(processes, np.int64)[code], np.array(numbers, np.int64)[code]

    def events(self) -> Iterator[str]:
        """Metadata events that name and sort the processes and tracks."""
        member = {_process_of(track): track for track in self._number}
        for position, (process, number) in enumerate(sorted(self._process.items())):
            name = self._process_name(member[process])
            yield _metadata("process_name", number, 0, {"name": name})
            yield _metadata("process_sort_index", number, 0, {"sort_index": position})
        for position, (track, number) in enumerate(sorted(self._number.items())):
            process_number = self._process[_process_of(track)]
            yield _metadata("thread_name", process_number, number, {"name": self._track_name(track)})
            yield _metadata("thread_sort_index", process_number, number, {"sort_index": position})

    def _process_name(self, track: Track) -> str:
        parts = [self._reports[track.report]] if self._reports else []
        if track.on_device:
            parts.append(f"device {_text(track.device)}")
        else:
            parts += [f"rank {track.rank}"] if track.rank != _UNKNOWN else []
            parts.append(f"process {_text(track.process)}")
        return " ".join(parts)

    def _track_name(self, track: Track) -> str:
        if track.on_device:
            name = f"stream {_text(track.stream)}, context {_text(track.context)}, process {_text(track.process)}"
        else:
            name = f"{self._kinds[track.kind]} of thread {_text(track.thread)}"
        return f"{name} ({track.lane + 1})" if track.lane else name


def _process_of(track: Track) -> tuple[int, ...]:
    owner = track.device if track.on_device else track.process
    return (track.report, track.on_device, owner)


def _text(number: int) -> str:
    return "unknown" if number == _UNKNOWN else str(number)


def _metadata(name: str, process: int, thread: int, args: dict[str, object]) -> str:
    event = {"ph": "M", "pid": process, "tid": thread, "name": name, "args": args}
    return json.dumps(event, ensure_ascii=False)


def _members(table: pa.Table, reports: list[str], kind: Ints, lane: Ints) -> list[Ints]:

    def column(name: str) -> Ints:
        if name not in table.column_names:
            return np.full(table.num_rows, _UNKNOWN, np.int64)
        return integers(table, name, null=_UNKNOWN).astype(np.int64)

    on_device = kind == WORK
    report = np.zeros(table.num_rows, np.int64)
    if reports:
        named = table.column(REPORT).combine_chunks().dictionary_encode()
        report = np.array([reports.index(name) for name in named.dictionary.to_pylist()])[np.asarray(named.indices)]
    return [
        report,
        on_device.astype(np.int64),
        column("pid"),
        np.where(on_device, _UNKNOWN, column("rank")),
        column("device"),
        np.where(on_device, _UNKNOWN, column("tid")),
        column("context"),
        column("stream"),
        kind,
        lane,
    ]


def for_sums(start_ns: Ints, end_ns: Ints) -> tuple[pa.Array, pa.Array]:
    """Start and length in steps whose sums are exact; rounded to a nanosecond they are the original times."""
    start, end = (np.rint(ns * (_STEPS_OF_US / 1_000)) for ns in (start_ns, end_ns))
    begin, length = (pa.array(steps / _STEPS_OF_US).cast(pa.string()) for steps in (start, end - start))
    return begin, length


def for_truncation(start_ns: Ints, end_ns: Ints) -> tuple[pa.Array, pa.Array]:
    """Start and length plus a quarter of a nanosecond, which the viewer drops."""
    return (
        pc.binary_join_element_wise(_decimal(start_ns), "25", ""),
        pc.binary_join_element_wise(_decimal(end_ns - start_ns), "25", ""),
    )


def _decimal(ns: Ints) -> pa.Array:
    whole, rest = np.divmod(np.abs(ns), 1_000)
    sign = pc.if_else(pa.array(ns < 0), "-", "")
    decimals = pc.utf8_lpad(pa.array(rest).cast(pa.string()), 3, "0")
    number = pc.binary_join_element_wise(pa.array(whole).cast(pa.string()), decimals, ".")
    return pc.binary_join_element_wise(sign, number, "")

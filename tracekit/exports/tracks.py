"""Where a slice of the timeline is drawn: the thread of the host, or the stream of the device, and its lane there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from tracekit.dataset.opening import REPORT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.arrays.types import Ints

_UNKNOWN = -1


class Track(NamedTuple):
    """What a track shows: the members are those of its slices, in the order in which tracks are sorted."""

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


#: What is drawn of a thread, from top to bottom.
KINDS = ("steps", "modules", "operators", "")
STEPS, MODULES, OPERATORS, WORK = range(len(KINDS))


class Tracks:
    """Numbers tracks as they are met, and names them in the end."""

    def __init__(self, reports: list[str]) -> None:
        self._reports = reports
        self._number: dict[Track, int] = {}
        self._process: dict[tuple[int, ...], int] = {}

    def numbered(self, table: pa.Table, kind: Ints, lane: Ints) -> tuple[Ints, Ints]:
        """The process and thread, as the trace numbers them, of every row of a table.

        Args:
            table: Rows with ``pid``, ``tid`` and, of device work, ``device``, ``context`` and ``stream``.
            kind: What each row is, by its place in ``KINDS``.
            lane: The lane of each.
        """
        members = _members(table, self._reports, kind, lane)
        code, first = _distinct(members)
        found = [Track(*(int(column[row]) for column in members)) for row in first]
        numbers = [self._number.setdefault(track, len(self._number) + 1) for track in found]
        processes = [self._process.setdefault(_process_of(track), len(self._process) + 1) for track in found]
        return np.array(processes, np.int64)[code], np.array(numbers, np.int64)[code]

    def events(self) -> Iterator[str]:
        """Metadata events that name and sort what was numbered."""
        member = {_process_of(track): track for track in self._number}
        for at, (process, number) in enumerate(sorted(self._process.items())):
            name = self._process_name(member[process])
            yield _metadata("process_name", number, 0, {"name": name})
            yield _metadata("process_sort_index", number, 0, {"sort_index": at})
        for at, (track, number) in enumerate(sorted(self._number.items())):
            whose = self._process[_process_of(track)]
            yield _metadata("thread_name", whose, number, {"name": _track_name(track)})
            yield _metadata("thread_sort_index", whose, number, {"sort_index": at})

    def _process_name(self, track: Track) -> str:
        parts = [self._reports[track.report]] if self._reports else []
        if track.on_device:
            parts.append(f"device {_said(track.device)}")
        else:
            parts += [f"rank {track.rank}"] if track.rank != _UNKNOWN else []
            parts.append(f"process {_said(track.process)}")
        return " ".join(parts)


def _process_of(track: Track) -> tuple[int, ...]:
    whose = track.device if track.on_device else track.process
    return (track.report, track.on_device, whose)


def _track_name(track: Track) -> str:
    if track.on_device:
        name = f"stream {_said(track.stream)}, context {_said(track.context)}, process {_said(track.process)}"
    else:
        name = f"{KINDS[track.kind]} of thread {_said(track.thread)}"
    return f"{name} ({track.lane + 1})" if track.lane else name


def _said(number: int) -> str:
    return "unknown" if number == _UNKNOWN else str(number)


def _metadata(name: str, process: int, thread: int, args: dict[str, object]) -> str:
    event = {"ph": "M", "pid": process, "tid": thread, "name": name, "args": args}
    return json.dumps(event, ensure_ascii=False)


def _members(table: pa.Table, reports: list[str], kind: Ints, lane: Ints) -> list[Ints]:
    """The members of every row's track, one column each; what does not tell tracks apart is left alike."""

    def column(name: str) -> Ints:
        if name not in table.column_names:
            return np.full(table.num_rows, _UNKNOWN, np.int64)
        values = table.column(name).cast(pa.int64()).fill_null(_UNKNOWN)
        return np.asarray(values).astype(np.int64)

    on_device = kind == WORK
    report = np.zeros(table.num_rows, np.int64)
    if reports:
        named = table.column(REPORT).combine_chunks().dictionary_encode()
        report = np.array([reports.index(one) for one in named.dictionary.to_pylist()])[np.asarray(named.indices)]
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


def _distinct(columns: list[Ints]) -> tuple[Ints, Ints]:
    """For every row the number of its combination, and a row of each combination."""
    code = np.zeros(columns[0].size, np.int64)
    for column in columns:
        _, inverse = np.unique(column, return_inverse=True)
        code = code * (int(inverse.max(initial=0)) + 1) + inverse
        _, code = np.unique(code, return_inverse=True)
    _, first = np.unique(code, return_index=True)
    return code, first

"""The track that a slice is drawn on: a thread of the host or a stream of the device, and a lane of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.columns import integers
from tracekit.arrays.groups import grouped
from tracekit.dataset.opening import REPORT

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from tracekit.arrays.types import Ints

_UNKNOWN = -1


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
    """Numbers tracks as they occur, and names them at the end.

    Args:
        reports: The reports of a dataset of several.
        nodes: What calls are calls of: ``modules``, say.
    """

    def __init__(self, reports: list[str], nodes: str) -> None:
        self._reports, self._kinds = reports, ("steps", nodes, "operators", "all ranges and API calls")
        self._number: dict[Track, int] = {}
        self._process: dict[tuple[int, ...], int] = {}

    def numbered(self, table: pa.Table, kind: Ints, lane: Ints) -> tuple[Ints, Ints]:
        """The process and thread of every row of a table, as the trace numbers them.

        Args:
            table: Rows with ``pid``, ``tid`` and, for device work, ``device``, ``context`` and ``stream``.
            kind: The kind of each row, as one of the constants above.
            lane: The lane of each row.
        """
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
            yield _metadata("thread_name", process_number, number, {"name": self._track_name(track)} | self._ids(track))
            yield _metadata("thread_sort_index", process_number, number, {"sort_index": position})

    def _ids(self, track: Track) -> dict[str, object]:
        """What a track belongs to, as it was recorded."""
        ids: dict[str, object] = {"report": self._reports[track.report]} if self._reports else {}
        known = {"process": track.process, "thread": track.thread}
        return ids | {name: number for name, number in known.items() if number != _UNKNOWN}

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
    """The fields of every row's track, one array each; fields that do not set tracks apart are the same everywhere."""

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

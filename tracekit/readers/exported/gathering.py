"""Events of an export, piece by piece, into one Arrow table for each kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from tracekit.readers.exported.events import CALL, FLAGS, KINDS, MEMBERS, OF_CATEGORY, RANGE, SIZES, TEXTS, WORK
from tracekit.readers.rows.times import nanoseconds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracekit.readers.exported.events import Event

_SPELLED = pa.dictionary(pa.int32(), pa.string())


class Track(NamedTuple):
    """What a track belongs to, as it was recorded; a track of a device has no thread."""

    report: str | None
    process: int | None
    thread: int | None


class Gathering:
    """The tables of all pieces so far.

    Attributes:
        tracks: The tracks by the numbers that the export gives them.
    """

    def __init__(self) -> None:
        self.tracks: dict[tuple[int, int], Track] = {}
        self._chunks: dict[str, list[pa.Table]] = {kind: [_table(kind, [])] for kind in KINDS}

    def add(self, events: Iterable[Event]) -> None:
        """Adds the events of one more piece."""
        rows: dict[str | None, list[Event]] = {kind: [] for kind in (*KINDS, None)}
        for event in events:
            if event.ph == "X":
                kind = OF_CATEGORY.get(event.cat)
                if kind == WORK and event.args.kernel_id is None:
                    kind = RANGE
                rows[kind].append(event)
            elif event.name == "thread_name":
                args = event.args
                self.tracks[event.pid, event.tid] = Track(args.report, args.process, args.thread)
        for kind in KINDS:
            if rows[kind]:
                self._chunks[kind].append(_table(kind, rows[kind]))

    def table(self, kind: str) -> pa.Table:
        """All events of a kind."""
        whole = pa.concat_tables(self._chunks.pop(kind))
        return whole.unify_dictionaries().combine_chunks()


def _table(kind: str, events: list[Event]) -> pa.Table:
    args = [event.args for event in events]
    start = nanoseconds(np.array([event.ts for event in events], dtype=np.float64))
    columns = {
        "pid": pa.array([event.pid for event in events], pa.int64()),
        "tid": pa.array([event.tid for event in events], pa.int64()),
        "start": pa.array(start),
        "end": pa.array(start + nanoseconds(np.array([event.dur for event in events], dtype=np.float64))),
    }
    if kind in (RANGE, CALL, WORK):
        names = [None if event.args.nameless else event.name for event in events]
        columns["name"] = pa.array(names, pa.string()).cast(_SPELLED)
    for member in MEMBERS[kind]:
        values = [getattr(one, member) for one in args]
        if member in SIZES:
            columns |= {f"{member}_{axis}": _integers([v and v[at] for v in values]) for at, axis in enumerate("xyz")}
        elif member in TEXTS:
            columns[member] = pa.array(values, pa.string()).cast(_SPELLED)
        else:
            columns[member] = pa.array(values, pa.bool_()) if member in FLAGS else _integers(values)
    return pa.table(columns)


def _integers(values: list[int | None]) -> pa.Array:
    return pa.array(values, pa.int64())

"""Which API call started each piece of work, by (process, correlation id).

A correlation id counts within one process only; two processes of one report share many.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracekit.attribute.replay import is_replayed
from tracekit.intervals import one_axis
from tracekit.recording import integers
from tracekit.trace import Launched

if TYPE_CHECKING:
    from tracekit.arrays import Flags, Ints
    from tracekit.recording import Recording


#: A lookup table this many times larger than what it holds is still cheaper than sorting.
_SPARSEST = 8


def launched(recording: Recording) -> Launched:
    """Finds the launch of every piece of work.

    Where several calls carry the id, one around the other (a runtime call around a driver call), the outermost
    counts; calls apart from each other are rivals, and none is believed.
    """
    launches, work = recording.launches, recording.work
    thread = integers(launches, "thread")
    process = integers(work, "process")
    joinable = np.asarray(work.column("correlation_id").is_valid()) & (process >= 0)
    launch = np.full(process.size, -1, dtype=np.int64)
    contested = np.zeros(process.size, dtype=bool)
    if thread.size and joinable.any():
        offered, asked = one_axis(
            [recording.threads.process[thread], process[joinable]],
            [integers(launches, "correlation_id"), integers(work, "correlation_id")[joinable]],
        )
        spans = (thread, integers(launches, "start_ns"), integers(launches, "end_ns"))
        launch[joinable], contested[joinable] = _lookup(offered, asked, spans)
    launch = np.where(contested, -1, launch).astype(np.int32)
    return Launched(launch, contested, is_replayed(recording, launch))


def _lookup(offered: Ints, asked: Ints, spans: tuple[Ints, Ints, Ints]) -> tuple[Ints, Flags]:
    """The first row of ``offered`` that has each asked key, and whether a row outside of it has the key too.

    Args:
        offered: Keys of launches, in the order of their starts on each thread.
        asked: Keys of work.
        spans: Thread, start and end of every launch.
    """
    thread, start, end = spans
    offered, asked = _dense(offered, asked)
    table = np.full(int(offered.max()) + 2, -1, dtype=np.int64)
    rows = np.arange(offered.size, dtype=np.int64)
    table[offered[::-1]] = rows[::-1]
    claimed_again = rows[table[offered] != rows]
    first = table[offered[claimed_again]]
    apart = (thread[claimed_again] != thread[first]) | (start[claimed_again] >= end[first])
    rival = claimed_again[apart]
    contested = np.zeros(table.size, dtype=bool)
    contested[offered[rival]] = True
    return table[asked], contested[asked]


def _dense(offered: Ints, asked: Ints) -> tuple[Ints, Ints]:
    """The keys as small numbers; what was not offered gets the number after the last."""
    low = int(offered.min())
    span = int(offered.max()) - low + 1
    if span <= _SPARSEST * offered.size:
        return offered - low, np.where((asked < low) | (asked >= low + span), span, asked - low)
    distinct, number = np.unique(offered, return_inverse=True)
    at = np.minimum(np.searchsorted(distinct, asked), distinct.size - 1)
    return number, np.where(distinct[at] == asked, at, distinct.size)

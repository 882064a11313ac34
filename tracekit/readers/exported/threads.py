"""Threads and processes, by the tracks that an export drew them on."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.columns import integers
from tracekit.arrays.groups import grouped
from tracekit.readers.exported.numbers import apart
from tracekit.recording.tables import Threads

if TYPE_CHECKING:
    import pyarrow as pa

    from tracekit.arrays.types import Ints
    from tracekit.readers.exported.gathering import Track
    from tracekit.readers.exported.numbers import Numbered

#: Added to a process id that several reports of a dataset have; larger than any.
_APART = 1 << 23

#: Ids of threads are sorted without their sign, as readers sort them.
_UNSIGNED = 0xFFFF_FFFF


class Tracks(NamedTuple):
    """The threads and processes of tracks.

    Attributes:
        pids: Ids of processes.
        threads: Threads and processes, by row.
        thread: Row of threads of each track of a thread.
        process: Row of processes of each track of which it is known.
        row: Row of threads by row of processes and id.
    """

    pids: dict[Numbered, int]
    threads: Threads
    thread: dict[tuple[int, int], int]
    process: dict[tuple[int, int], int]
    row: dict[tuple[int, int], int]

    def threads_of(self, events: pa.Table) -> Ints:
        """The threads of some events of the host."""
        return _looked_up(events, self.thread)

    def processes_of(self, events: pa.Table) -> Ints:
        """The processes of some events; -1 where they are not known."""
        return _looked_up(events, self.process)

    def ended_on(self, events: pa.Table, thread: Ints) -> Ints:
        """The threads on which ranges ended, where that is another one; else -1."""
        ended, rows = integers(events, "end_tid"), np.full(thread.size, -1, dtype=np.int64)
        for at in np.flatnonzero(events.column("end_tid").is_valid()).tolist():
            rows[at] = self.row[int(self.threads.process[thread[at]]), int(ended[at])]
        return rows


def _looked_up(events: pa.Table, known: dict[tuple[int, int], int]) -> Ints:
    code, first = grouped([integers(events, "pid"), integers(events, "tid")])
    pid, tid = (integers(events, name)[first].tolist() for name in ("pid", "tid"))
    rows = [known.get(track, -1) for track in zip(pid, tid, strict=True)]
    return np.array([*rows, -1], dtype=np.int64)[code]


def tracks_of(drawn: dict[tuple[int, int], Track], ranges: pa.Table) -> Tracks:
    """The threads and processes.

    Args:
        drawn: What the export says of its tracks.
        ranges: All ranges, of which some end on threads without a track.
    """
    processes = {key: (track.report, track.process) for key, track in drawn.items() if track.process is not None}
    thread_ids = {key: drawn[key].thread for key in processes}
    threads = {(*processes[key], tid) for key, tid in thread_ids.items() if tid is not None}
    threads |= {(*processes[key], tid) for key, tid in _ends(ranges) if key in processes}
    pids = apart(processes.values(), drawn, _APART)
    ids = sorted(
        ((pids[report, pid], tid) for report, pid, tid in _with_main(threads, set(pids))),
        key=lambda one: (one[0], one[1] & _UNSIGNED),
    )
    pid, tid = np.array(ids, dtype=np.int64).reshape(-1, 2).T
    process_pid, process = np.unique(pid, return_inverse=True)
    row = {(int(process[at]), number): at for at, (_, number) in enumerate(ids)}
    of_process = {key: int(np.searchsorted(process_pid, pids[owner])) for key, owner in processes.items()}
    of_thread = {key: row[of_process[key], tid] for key, tid in thread_ids.items() if tid is not None}
    return Tracks(pids, Threads(pid, tid, process, process_pid), of_thread, of_process, row)


def _ends(ranges: pa.Table) -> set[tuple[tuple[int, int], int]]:
    """The tracks of ranges that end on another thread, with its id."""
    columns = [integers(ranges, name) for name in ("pid", "tid", "end_tid")]
    rows = np.flatnonzero(ranges.column("end_tid").is_valid())
    return {((pid, tid), end) for pid, tid, end in zip(*(column[rows].tolist() for column in columns), strict=True)}


def _with_main(threads: set[tuple[str | None, int, int]], processes: set[Numbered]) -> set[tuple[str | None, int, int]]:
    """The threads, and the main one of processes of which no thread is known."""
    without = processes - {(report, pid) for report, pid, _ in threads}
    return threads | {(report, pid, pid) for report, pid in without}

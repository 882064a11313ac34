"""Which processes were recorded completely, by the messages that nsys writes into a report.

Ids do not tell. In reports whose window opened late, correlation ids begin at 4 (2024.6) as well as at 4,696
(2025.3), although graphs had been captured by then; the oldest call in such a report may be any. Messages do tell:
nsys started to record, then launched the program, then was loaded into the process when that initialised CUDA. In
reports of a late window (``cudaProfilerApi``, an NVTX range, a delay) the last two come before the first. Versions
older than 2024.5 write no messages into the file. The embedded recorder counts torch's graphs instead.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.columns import integers
from tracekit.causes.reports import CUDA_EVENTS_LOST, EVENTS_LOST
from tracekit.nsight import tables as nsight
from tracekit.readers.source import typed
from tracekit.recording.tables import graph_launch_names

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracekit.readers.nsight.ids import GlobalIds
    from tracekit.readers.nsight.losses import Loss
    from tracekit.readers.source import TableSource
    from tracekit.recording.tables import Recording

_STARTED = "Profiling has started."
_LAUNCHED = "was launched by the profiler"
_CUDA = "CUDA injection initialized successfully."
#: The program opened the window itself, so nothing is certain.
_WINDOW = "Profiling started due to"


class _Message(NamedTuple):
    """A message on the clock of the recorded machine, and the global id of its process."""

    time: int
    text: str
    process: int


def processes_from_the_start(source: TableSource, ids: GlobalIds, losses: tuple[Loss, ...]) -> frozenset[int]:
    """Rows of the processes of which every CUDA call was recorded, from the first one on, and none was lost."""
    rows: list[tuple[int, int, str, int]] = typed(
        source,
        nsight.DIAGNOSTICS,
        "timestamp",
        "timestampType",
        "text",
        "globalPid",
    )
    event_losses = [loss for loss in losses if loss.cause in (CUDA_EVENTS_LOST, EVENTS_LOST)]
    messages = [
        _Message(time, text, process & nsight.PROCESS_MASK)
        for time, clock, text, process in rows
        if clock == nsight.TARGET_TIME
    ]
    began = _began(messages)
    windowed = any(text.startswith(_WINDOW) for _, _, text, _ in rows)
    if began is None or windowed or any(loss.anywhere for loss in event_losses):
        return frozenset()
    loaded: defaultdict[int, list[int]] = defaultdict(list)
    for message in messages:
        if message.text == _CUDA:
            loaded[message.process].append(message.time)
    lost = {process for loss in event_losses for process in loss.processes}
    return _rows(ids, (process for process, times in loaded.items() if min(times) >= began and process not in lost))


def _began(messages: list[_Message]) -> int | None:
    """When recording began, if that was once, and before nsys launched the program."""
    started = [message.time for message in messages if message.text == _STARTED]
    launched = [message.time for message in messages if _LAUNCHED in message.text]
    in_time = len(started) == 1 and bool(launched) and started[0] <= min(launched)
    return started[0] if in_time else None


def recorder_saw_every_graph(source: TableSource, recording: Recording) -> bool:
    """Whether a report of the embedded recorder holds the graph capture of every graph that is replayed in it.

    The recorder counted torch's graph captures before it began, which must be none, and torch's replays, all of which
    must be here.
    """
    figures: dict[str, int] = dict(typed(source, nsight.RECORDER, "name", "value"))
    names = np.asarray(graph_launch_names(recording.names), dtype=np.int64)
    launched = int(np.isin(integers(recording.launches, "name"), names).sum())
    return figures.get("graphs_before") == 0 and figures.get("graph_replays") == launched


def _rows(ids: GlobalIds, processes: Iterable[int]) -> frozenset[int]:
    wanted = np.fromiter(processes, dtype=np.int64)
    return frozenset(np.flatnonzero(np.isin(ids.pids, wanted)).tolist())

"""What nsys says of itself in a report: of which processes it recorded all that they asked of CUDA.

Numbers do not tell. In reports whose window opened late, correlation ids begin at 4 (2024.6) as well as at 4,696
(2025.3), although graphs had been captured by then; the oldest call that such a report holds may be any. Messages do:
nsys started to record, then launched the program, then was loaded into the process when that initialised CUDA. In
reports of a late window (``cudaProfilerApi``, an NVTX range, a delay) the last two come before the first. Versions
older than 2024.5 write no messages into the file. The embedded recorder counts torch's graphs instead.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from tracekit.arrays.columns import integers
from tracekit.causes import CUDA_EVENTS_LOST, EVENTS_LOST
from tracekit.nsight import tables as nsight
from tracekit.recording.tables import graph_launch_names

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracekit.readers.nsight_sqlite.ids import GlobalIds
    from tracekit.readers.nsight_sqlite.losses import Loss
    from tracekit.readers.sqlite.file import SqliteFile
    from tracekit.recording.tables import Recording

_STARTED = "Profiling has started."
_LAUNCHED = "was launched by the profiler"
_CUDA = "CUDA injection initialized successfully."
#: After it nothing is certain: a window that a program opens.
_WINDOW = "Profiling started due to"


def processes_from_the_start(file: SqliteFile, ids: GlobalIds, losses: tuple[Loss, ...]) -> frozenset[int]:
    """Rows of the processes of which every CUDA call was recorded, from the first one on, and none was lost."""
    columns = nsight.DIAGNOSTICS.c
    rows: list[tuple[int, int, str, int]] = file.typed(
        nsight.DIAGNOSTICS,
        (columns.timestamp, int),
        (columns.timestampType, int),
        (columns.text, str),
        (columns.globalPid, int),
    )
    on_target = [row for row in rows if row[1] == nsight.TARGET_TIME]
    started = [at for at, _, text, _ in on_target if text == _STARTED]
    launched = [at for at, _, text, _ in on_target if _LAUNCHED in text]
    in_time = len(started) == 1 and bool(launched) and started[0] <= min(launched)
    if not in_time or any(text.startswith(_WINDOW) for _, _, text, _ in rows):
        return frozenset()
    loaded: defaultdict[int, list[int]] = defaultdict(list)
    for at, _, text, process in on_target:
        if text == _CUDA:
            loaded[process & nsight.PROCESS_MASK].append(at)
    certain = [loss for loss in losses if loss.cause in (CUDA_EVENTS_LOST, EVENTS_LOST)]
    lost = {process for loss in certain for process in loss.processes}
    if any(loss.anywhere for loss in certain):
        return frozenset()
    return _rows(ids, (one for one, at in loaded.items() if min(at) >= started[0] and one not in lost))


def recorder_saw_every_graph(file: SqliteFile, recording: Recording) -> bool:
    """Whether a report of the embedded recorder holds the capture of every graph that is replayed in it.

    The recorder counted torch's captures before it began, which are none, and torch's replays, which are all.
    """
    columns = nsight.RECORDER.c
    figures: dict[str, int] = dict(file.typed(nsight.RECORDER, (columns.name, str), (columns.value, int)))
    names = np.asarray(graph_launch_names(recording.names), dtype=np.int64)
    launched = int(np.isin(integers(recording.launches, "name"), names).sum())
    return figures.get("graphs_before") == 0 and figures.get("graph_replays") == launched


def _rows(ids: GlobalIds, processes: Iterable[int]) -> frozenset[int]:
    wanted = np.fromiter(processes, dtype=np.int64)
    return frozenset(np.flatnonzero(np.isin(ids.pids, wanted)).tolist())

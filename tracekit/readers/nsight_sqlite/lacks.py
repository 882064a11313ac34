"""What a report does not hold, and how to record it next time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracekit.arrays.columns import integers
from tracekit.arrays.intervals import one_axis
from tracekit.nsight import tables as nsight
from tracekit.recording.provenance import Lack
from tracekit.recording.tables import GRAPH, graph_launch_names

if TYPE_CHECKING:
    from tracekit.readers.sqlite.file import SqliteFile
    from tracekit.recording.tables import Recording

#: Columns that answer a promise by themselves, by table.
_TELLING_COLUMNS = {
    nsight.KERNEL: ("deviceId", "streamId", "shortName", "demangledName", "graphNodeId"),
    nsight.NVTX: ("textId", "domainId"),
    nsight.MEMCPY: ("bytes", "copyKind"),
    nsight.RUNTIME: ("nameId",),
}


def lacks(file: SqliteFile, recording: Recording) -> tuple[Lack, ...]:
    """Names every capability that is missing."""
    ranges, launches, work = recording.ranges, recording.launches, recording.work
    found = []
    if not ranges.num_rows:
        found.append(Lack("NVTX ranges", "record with: nsys profile --trace=cuda,nvtx"))
    if not work.num_rows:
        found.append(
            Lack(
                "GPU work",
                "record with: nsys profile --trace=cuda,nvtx, on a machine whose driver allows it",
            )
        )
    elif not recording.on_device.any():
        found.append(Lack("GPU work", "operators on the CPU are shown in its place; record on a GPU"))
    elif not launches.num_rows:
        found.append(
            Lack(
                "CUDA API calls",
                "without them no kernel finds its module; export the table of runtime calls",
            )
        )
    if bool((integers(work, "kind") == GRAPH).any()):
        found.append(
            Lack(
                "the kernels inside CUDA graphs",
                "record with: nsys profile --cuda-graph-trace=node",
            )
        )
    elif _replays_without_work(recording):
        found.append(
            Lack(
                "the GPU time of CUDA graphs",
                "record with nsys 2024 or newer, or: nsys profile --cuda-graph-trace=node",
            )
        )
    if file.has_unmerged_log:
        remedy = f"close whatever writes it, or: sqlite3 {file.path.name} 'PRAGMA wal_checkpoint(TRUNCATE)'"
        found.append(Lack(f"what was written to it last, which still lies in {file.path.name}-wal", remedy))
    found += [
        Lack(f"{table.name}.{column}", "export the report with a newer nsys")
        for table, columns in _TELLING_COLUMNS.items()
        for column in columns
        if table.name in file.tables and column not in file.tables[table.name]
    ]
    return tuple(found)


def _replays_without_work(recording: Recording) -> bool:
    """Whether graphs were launched that left no trace on the device."""
    launches, work, threads = recording.launches, recording.work, recording.threads
    replayed = np.isin(integers(launches, "name"), graph_launch_names(recording.names))
    started = np.flatnonzero(integers(work, "process") >= 0)
    asked, offered = one_axis(
        [
            threads.process[integers(launches, "thread")[replayed]],
            integers(work, "process")[started],
        ],
        [
            integers(launches, "correlation_id")[replayed],
            integers(work, "correlation_id")[started],
        ],
    )
    return not bool(np.isin(asked, offered).all())

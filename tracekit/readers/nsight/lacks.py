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
    from collections.abc import Iterator

    from tracekit.readers.source import TableSource
    from tracekit.recording.tables import Recording

#: Columns whose absence is worth a line, by table.
_WANTED_COLUMNS = {
    nsight.KERNEL: ("deviceId", "streamId", "shortName", "demangledName", "graphNodeId"),
    nsight.NVTX: ("textId", "domainId"),
    nsight.MEMCPY: ("bytes", "copyKind"),
    nsight.RUNTIME: ("nameId",),
}


def lacks(source: TableSource, recording: Recording) -> tuple[Lack, ...]:
    """Everything that the report could hold and does not."""
    return (*_missing_events(recording), *_missing_graphs(recording), *_missing_columns(source))


def _missing_events(recording: Recording) -> Iterator[Lack]:
    """Kinds of events of which there are none."""
    if not recording.ranges.num_rows:
        yield Lack("NVTX ranges", "record with: nsys profile --trace=cuda,nvtx")
    if not recording.work.num_rows:
        remedy = "record with: nsys profile --trace=cuda,nvtx, on a machine whose driver permits it"
        yield Lack("GPU work", remedy)
    elif not recording.on_device.any():
        yield Lack("GPU work", "CPU operators are shown instead; record on a machine with a GPU")
    elif not recording.launches.num_rows:
        remedy = "without them no kernel can be given a module; export CUPTI_ACTIVITY_KIND_RUNTIME as well"
        yield Lack("CUDA API calls", remedy)


def _missing_graphs(recording: Recording) -> Iterator[Lack]:
    """Work inside CUDA graphs that was not recorded."""
    if bool((integers(recording.work, "kind") == GRAPH).any()):
        yield Lack("the kernels inside CUDA graphs", "record with: nsys profile --cuda-graph-trace=node")
    elif _replays_without_work(recording):
        remedy = "record with nsys 2024 or newer, or: nsys profile --cuda-graph-trace=node"
        yield Lack("the GPU time of CUDA graphs", remedy)


def _replays_without_work(recording: Recording) -> bool:
    """Whether graphs were launched that left no trace on the device."""
    launches, work = recording.launches, recording.work
    replays = np.isin(integers(launches, "name"), graph_launch_names(recording.names))
    started = np.flatnonzero(integers(work, "process") >= 0)
    launch_process = recording.threads.process[integers(launches, "thread")[replays]]
    replay_ids, work_ids = one_axis(
        [launch_process, integers(work, "process")[started]],
        [integers(launches, "correlation_id")[replays], integers(work, "correlation_id")[started]],
    )
    return not bool(np.isin(replay_ids, work_ids).all())


def _missing_columns(source: TableSource) -> Iterator[Lack]:
    for table, columns in _WANTED_COLUMNS.items():
        present = source.tables.get(table.name, frozenset(columns))
        for column in columns:
            if column not in present:
                yield Lack(f"{table.name}.{column}", "export the report with a newer nsys")

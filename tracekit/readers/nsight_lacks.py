"""What a report does not hold, and how to record it next time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracekit import nsight
from tracekit.recording import GRAPH, GRAPH_LAUNCHES, Lack, integers

if TYPE_CHECKING:
    import pyarrow as pa

    from tracekit.readers.sqlite import SqliteFile

#: Columns that answer a promise by themselves, by table.
_TELLING_COLUMNS = {
    nsight.KERNEL: ("deviceId", "streamId", "shortName", "demangledName", "graphNodeId"),
    nsight.NVTX: ("textId", "domainId"),
    nsight.MEMCPY: ("bytes", "copyKind"),
}


def lacks(
    file: SqliteFile, ranges: pa.Table, launches: pa.Table, work: pa.Table, names: list[str]
) -> tuple[Lack, ...]:
    """Names every capability that is missing."""
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
    elif _replays_without_work(launches, work, names):
        found.append(
            Lack(
                "the GPU time of CUDA graphs",
                "record with nsys 2024 or newer, or: nsys profile --cuda-graph-trace=node",
            )
        )
    found += [
        Lack(f"{table.name}.{column}", "export the report with a newer nsys")
        for table, columns in _TELLING_COLUMNS.items()
        for column in columns
        if table.name in file.tables and column not in file.tables[table.name]
    ]
    return tuple(found)


def _replays_without_work(launches: pa.Table, work: pa.Table, names: list[str]) -> bool:
    """Whether graphs were launched that left no trace on the device."""
    replay = [row for row, name in enumerate(names) if name.startswith(GRAPH_LAUNCHES)]
    replayed = np.isin(integers(launches, "name"), replay)
    started = np.isin(
        integers(launches, "correlation_id")[replayed], integers(work, "correlation_id")
    )
    return not bool(started.all())

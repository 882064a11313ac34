"""What a file of nvprof does not hold, and how to record it next time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracekit.arrays.columns import integers
from tracekit.recording.provenance import Lack
from tracekit.recording.tables import CPU_OP, GRAPH

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.recording.tables import Recording

_EMIT = "mark the model and record with: nvprof -o report.nvprof python train.py (or emit_nvtx of torch)"


def lacks(recording: Recording) -> tuple[Lack, ...]:
    """Everything that the file could hold and does not."""
    return (*_missing_events(recording), *_missing_links(recording))


def _missing_events(recording: Recording) -> Iterator[Lack]:
    if not recording.ranges.num_rows:
        yield Lack("NVTX ranges", _EMIT)
    if not recording.work.num_rows:
        yield Lack("GPU work", "record with: nvprof -o report.nvprof, on a machine whose driver permits it")
    elif not recording.launches.num_rows:
        yield Lack(
            "CUDA API calls", "without them no kernel can be given a module; record without --profile-api-trace none"
        )
    if bool((integers(recording.work, "kind") == GRAPH).any()):
        yield Lack("the kernels inside CUDA graphs", "record with nsys profile --cuda-graph-trace=node")


def _missing_links(recording: Recording) -> Iterator[Lack]:
    """What nvprof never records, where it matters."""
    work = recording.work
    unknown = (integers(work, "process") < 0) & (integers(work, "kind") != CPU_OP)
    if unknown.any() and np.unique(recording.threads.process_pid).size > 1:
        remedy = "record each process into a file of its own: nvprof --profile-child-processes -o report.%p.nvprof"
        yield Lack(f"the processes of {int(unknown.sum())} pieces of GPU work", remedy)
    if bool((integers(work, "graph_node_id") >= 0).any()):
        yield Lack("the creation of CUDA graphs", "record with nsys profile --cuda-graph-trace=node")

"""``kernels``: every piece of device work, with its module or the cause why it has none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tracekit.attribute import METHODS
from tracekit.coverage import CAUSES
from tracekit.intervals import innermost, parents
from tracekit.recording import COPY_KINDS, PUSH_POP, WORK_KINDS, integers
from tracekit.schema import CATEGORY, Column, TableSpec
from tracekit.steps import step_at
from tracekit.tables.base import category, lookup, or_null

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tracekit.trace import Evidence, Trace

    Ints = NDArray[np.int64]

_NO_LAUNCH = np.iinfo(np.int64).min

SPEC = TableSpec(
    "kernels",
    "One row per piece of device work, none missing, none twice; sorted by (module_id, start_ns), nulls last.",
    (
        Column("kernel_id", pa.int64(), "Its rank by start in the whole report."),
        Column("kind", CATEGORY, "kernel, memcpy, memset, graph (traced as a whole) or cpu_op."),
        Column("name", CATEGORY, "Short name.", nullable=True),
        Column("full_name", CATEGORY, "Name with template arguments and parameters.", nullable=True),
        Column("start_ns", pa.int64(), "When it began on the device."),
        Column("end_ns", pa.int64(), "When it ended there."),
        Column("dur_ns", pa.int64(), "How long it ran."),
        Column("device", pa.int32(), "GPU, as the report numbers it.", nullable=True),
        Column("context", pa.int32(), "CUDA context, within its process.", nullable=True),
        Column("stream", pa.int64(), "CUDA stream, within its context.", nullable=True),
        Column("pid", pa.int32(), "Process; null if the report does not say.", nullable=True),
        Column("tid", pa.int32(), "Thread that launched it.", nullable=True),
        Column("correlation_id", pa.int64(), "Links it to its launch, within its process.", nullable=True),
        Column("launch_name", CATEGORY, "API call that launched it.", nullable=True),
        Column("launch_start_ns", pa.int64(), "When that call began.", nullable=True),
        Column("launch_end_ns", pa.int64(), "When that call returned.", nullable=True),
        Column("module_id", pa.int32(), "Module it belongs to.", nullable=True),
        Column("module", CATEGORY, "Path of that module.", nullable=True),
        Column("call_id", pa.int64(), "Innermost call it belongs to.", nullable=True),
        Column("method", CATEGORY, "How we know: range, …", nullable=True),
        Column("cause", CATEGORY, "Why we do not know; exactly where method is null.", nullable=True),
        Column("range_id", pa.int64(), "Innermost NVTX range of any kind around its launch.", nullable=True),
        Column("step_id", pa.int64(), "Step it was launched in.", nullable=True),
        Column("grid_x", pa.int32(), "Blocks.", nullable=True),
        Column("grid_y", pa.int32(), "Blocks.", nullable=True),
        Column("grid_z", pa.int32(), "Blocks.", nullable=True),
        Column("block_x", pa.int32(), "Threads.", nullable=True),
        Column("block_y", pa.int32(), "Threads.", nullable=True),
        Column("block_z", pa.int32(), "Threads.", nullable=True),
        Column("registers", pa.int32(), "Registers per thread.", nullable=True),
        Column("static_smem_bytes", pa.int32(), "Static shared memory per block.", nullable=True),
        Column("dynamic_smem_bytes", pa.int32(), "Dynamic shared memory per block.", nullable=True),
        Column("bytes", pa.int64(), "Bytes copied or set.", nullable=True),
        Column("copy_kind", CATEGORY, "Direction of a copy.", nullable=True),
        Column("graph_id", pa.int64(), "CUDA graph it ran from.", nullable=True),
        Column("graph_exec_id", pa.int64(), "Instance of that graph.", nullable=True),
        Column("graph_node_id", pa.int64(), "Node of that graph.", nullable=True),
    ),
    sorted_by=("module_id", "start_ns"),
)

_UNCHANGED = (
    "device", "context", "stream", "correlation_id", "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z",
    "registers", "static_smem_bytes", "dynamic_smem_bytes", "bytes", "graph_id", "graph_exec_id", "graph_node_id",
)  # fmt: skip


def build(trace: Trace) -> pa.Table:
    """All device work, sorted."""
    evidence, order = trace.evidence, trace.ids.kernel_order
    recording = evidence.recording
    work = recording.work
    rows = pa.array(order)
    start, end = integers(work, "start_ns")[order], integers(work, "end_ns")[order]
    columns: dict[str, object] = {name: work.column(name).take(rows) for name in _UNCHANGED}
    columns |= {"kernel_id": trace.ids.kernel_id[order], "start_ns": start, "end_ns": end, "dur_ns": end - start}
    columns |= {
        "kind": category(integers(work, "kind")[order], WORK_KINDS),
        "name": category(integers(work, "name")[order], recording.names),
        "full_name": category(integers(work, "full_name")[order], recording.names),
        "copy_kind": category(integers(work, "copy_kind")[order], COPY_KINDS),
        "pid": or_null(lookup(recording.threads.process_pid, integers(work, "process")[order])).cast(pa.int32()),
    }
    return SPEC.table(columns | _launch(evidence, order) | _owner(trace, order))


def _owner(trace: Trace, order: Ints) -> dict[str, object]:
    owners, module = trace.owners, trace.module[order]
    paths = [module.path for module in trace.evidence.calls.modules]
    return {
        "module_id": or_null(module).cast(pa.int32()),
        "module": category(module, paths),
        "call_id": or_null(lookup(trace.ids.call_id, owners.call[order])),
        "method": category(owners.method[order], [method.NAME for method in METHODS]),
        "cause": category(owners.cause[order], [cause.name for cause in CAUSES]),
    }


def _launch(evidence: Evidence, order: Ints) -> dict[str, object]:
    """What the API call that launched each piece says of it."""
    launches, threads = evidence.recording.launches, evidence.recording.threads
    launch = evidence.launched.launch[order]
    thread = integers(launches, "thread")
    start, end = integers(launches, "start_ns"), integers(launches, "end_ns")
    step = step_at(evidence.steps, thread, lookup(threads.process, thread), start, end)
    return {
        "tid": or_null(lookup(lookup(threads.tid, thread), launch)).cast(pa.int32()),
        "launch_name": category(lookup(integers(launches, "name"), launch), evidence.recording.names),
        "launch_start_ns": or_null(lookup(start, launch, _NO_LAUNCH), _NO_LAUNCH),
        "launch_end_ns": or_null(lookup(end, launch, _NO_LAUNCH), _NO_LAUNCH),
        "range_id": or_null(lookup(_range_at_launch(evidence), launch)),
        "step_id": or_null(lookup(step, launch)),
    }


def _range_at_launch(evidence: Evidence) -> Ints:
    """The range around each launch that began last, of those that end on their thread; -1 for none."""
    line, ranges = evidence.line, evidence.recording.ranges
    usable = np.asarray(ranges.column("end_thread").is_null())
    pushed = integers(ranges, "kind") == PUSH_POP
    found = np.full(line.launch_start.size, -1, dtype=np.int64)
    for kind in (pushed, ~pushed):
        # Ranges that are pushed and popped nest; the others overlap at will and would break that.
        rows = np.flatnonzero(kind & usable)
        if rows.size:
            start, end = line.range_start[rows], line.range_end[rows]
            inner = innermost(start, end, parents(start, end), line.launch_start, line.launch_end)
            found = np.maximum(found, np.append(rows, -1)[inner])
    return found

"""``kernels``: every piece of device work, with its module or the cause why it has none."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.arrays.columns import integers
from tracekit.attribution import METHODS
from tracekit.causes import CAUSES
from tracekit.recording.axis import range_around
from tracekit.recording.tables import COPY_KINDS, CPU_OP, WORK, WORK_KINDS
from tracekit.schema import CATEGORY, Column, TableSpec
from tracekit.tables.base import category, lookup, or_null, pieces
from tracekit.trace.steps.steps import step_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.arrays.types import Ints, Rows
    from tracekit.attribution.base import Trace
    from tracekit.trace.evidence import Evidence


_NO_LAUNCH = np.iinfo(np.int64).min

SPEC = TableSpec(
    "kernels",
    "One row per piece of device work, none missing, none twice; sorted by (module_id, start_ns), nulls last. Work "
    "replayed from a CUDA graph has the thread, launch, range and step of its replay, and the module and call of its "
    "capture.",
    (
        Column("kernel_id", pa.int64(), "Its place by start in the whole report, from first_id on."),
        Column(
            "kind",
            CATEGORY,
            "kernel, memcpy, memset, graph (traced as a whole), or cpu_op: an operator, on a run without a GPU.",
        ),
        Column("name", CATEGORY, "Short name.", nullable=True),
        Column("full_name", CATEGORY, "Name with template arguments and parameters.", nullable=True),
        Column("start_ns", pa.int64(), "When it began on the device; an operator, on its thread."),
        Column("end_ns", pa.int64(), "When it ended there."),
        Column(
            "dur_ns",
            pa.int64(),
            "How long it ran: end less start; of an operator, less the operators that it called. Adds up, nothing "
            "twice.",
        ),
        *WORK.chosen("device", "context", "stream"),
        Column("pid", pa.int32(), "Process; null if the report does not say.", nullable=True),
        Column("rank", pa.int32(), "Rank of the process in its job.", nullable=True),
        Column("tid", pa.int32(), "Thread that launched it.", nullable=True),
        Column(
            "correlation_id",
            pa.int64(),
            "Links it to its launch, within its process.",
            nullable=True,
        ),
        Column("launch_name", CATEGORY, "API call that launched it.", nullable=True),
        Column("launch_start_ns", pa.int64(), "When that call began.", nullable=True),
        Column("launch_end_ns", pa.int64(), "When that call returned.", nullable=True),
        Column("module_id", pa.int32(), "Module it belongs to.", nullable=True),
        Column("module", CATEGORY, "Path of that module.", nullable=True),
        Column(
            "call_id",
            pa.int64(),
            "Innermost call it belongs to; if replayed from a CUDA graph, the call that was captured.",
            nullable=True,
        ),
        Column("method", CATEGORY, "How we know: range, graph_node, graph_order.", nullable=True),
        Column("cause", CATEGORY, "Why we do not know; exactly where method is null.", nullable=True),
        Column(
            "range_id",
            pa.int64(),
            "Innermost NVTX range of any kind around its launch, which of a CUDA graph is the replay.",
            nullable=True,
        ),
        Column(
            "step_id",
            pa.int64(),
            "Step it was launched in: that of its thread, else the only one open in its process; where nobody marks "
            "steps, only threads of replicas have that of another.",
            nullable=True,
        ),
        *WORK.chosen(
            "grid_x",
            "grid_y",
            "grid_z",
            "block_x",
            "block_y",
            "block_z",
            "registers",
            "static_smem_bytes",
            "dynamic_smem_bytes",
            "bytes",
        ),
        Column("copy_kind", CATEGORY, "Direction of a copy.", nullable=True),
        *WORK.chosen("graph_id", "graph_exec_id", "graph_node_id"),
        Column(
            "original_graph_node_id",
            pa.int64(),
            "Node that its node is a copy of, over any number of copies: the one that was captured.",
            nullable=True,
        ),
        Column(
            "capture_range_id",
            pa.int64(),
            "Innermost NVTX range of any kind that was open when its node was captured.",
            nullable=True,
        ),
    ),
    sorted_by=("module_id", "start_ns"),
)

_UNCHANGED = (
    "device",
    "context",
    "stream",
    "correlation_id",
    "grid_x",
    "grid_y",
    "grid_z",
    "block_x",
    "block_y",
    "block_z",
    "registers",
    "static_smem_bytes",
    "dynamic_smem_bytes",
    "bytes",
    "graph_id",
    "graph_exec_id",
    "graph_node_id",
)


def build(trace: Trace) -> Iterator[pa.Table]:
    """All device work, sorted."""
    launches, captured = _launches(trace.evidence), _Captured(trace.evidence)
    for rows in pieces(trace.ids.kernel_order):
        yield SPEC.table(
            _device(trace, rows) | _owner(trace, rows) | _launch(trace.evidence, launches, rows) | captured.of(rows)
        )


def _device(trace: Trace, rows: Rows) -> dict[str, object]:
    """What the device did, and how it was asked to."""
    recording = trace.evidence.recording
    work = recording.work.take(pa.array(rows))
    start, end = integers(work, "start_ns"), integers(work, "end_ns")
    kind = integers(work, "kind")
    columns: dict[str, object] = {name: work.column(name) for name in _UNCHANGED}
    return columns | {
        "correlation_id": pc.if_else(pa.array(kind != CPU_OP), work.column("correlation_id"), None),
        "kernel_id": trace.ids.kernel_id[rows],
        "start_ns": start,
        "end_ns": end,
        "dur_ns": trace.own_ns[rows],
        "kind": category(kind, WORK_KINDS),
        "name": category(integers(work, "name"), recording.names),
        "full_name": category(integers(work, "full_name"), recording.names),
        "copy_kind": category(integers(work, "copy_kind"), COPY_KINDS),
        "pid": or_null(lookup(recording.threads.process_pid, integers(work, "process"))).cast(pa.int32()),
        "rank": or_null(lookup(recording.process_rank, integers(work, "process"))),
    }


def _owner(trace: Trace, rows: Rows) -> dict[str, object]:
    owners, module = trace.owners, trace.module[rows]
    return {
        "module_id": or_null(module),
        "module": category(module, [module.path for module in trace.evidence.calls.modules]),
        "call_id": or_null(lookup(trace.ids.call_id, owners.call[rows])),
        "method": category(owners.method[rows], [method.NAME for method in METHODS]),
        "cause": category(owners.cause[rows], [cause.name for cause in CAUSES]),
    }


class _Launches(NamedTuple):
    """What is known of every launch."""

    start_ns: Ints
    end_ns: Ints
    tid: Ints
    name: Rows
    range_id: Rows
    step_id: Rows


def _launches(evidence: Evidence) -> _Launches:
    launches, threads = evidence.recording.launches, evidence.recording.threads
    thread = integers(launches, "thread")
    start, end = integers(launches, "start_ns"), integers(launches, "end_ns")
    step = step_at(evidence.steps, thread, lookup(threads.process, thread), start, end).astype(np.int32)
    line = evidence.line
    around = range_around(line, evidence.nesting, line.launch_start, line.launch_end)
    tid = lookup(threads.tid, thread).astype(np.int32)
    return _Launches(start, end, tid, integers(launches, "name"), around.astype(np.int32), step)


def _launch(evidence: Evidence, launches: _Launches, rows: Rows) -> dict[str, object]:
    """What the API call that launched each piece says of it."""
    launch = evidence.launched.launch[rows]
    # An operator is started by no API call.
    kind = integers(evidence.recording.work, "kind")[rows]
    asked = np.where(kind == CPU_OP, -1, launch)
    return {
        "tid": or_null(_at(launches.tid, launch)).cast(pa.int32()),
        "launch_name": category(_at(launches.name, launch), evidence.recording.names),
        "launch_start_ns": or_null(_at(launches.start_ns, asked, _NO_LAUNCH), _NO_LAUNCH),
        "launch_end_ns": or_null(_at(launches.end_ns, asked, _NO_LAUNCH), _NO_LAUNCH),
        "range_id": or_null(_at(launches.range_id, launch)),
        "step_id": or_null(_at(launches.step_id, launch)),
    }


def _at(values: Ints, launch: Rows, missing: int = -1) -> Ints:
    """``values[launch]``, with ``missing`` where there was no launch."""
    if not values.size:
        return np.full(launch.size, missing, dtype=np.int64)
    found: Ints = np.where(launch < 0, values.dtype.type(missing), values[launch])
    return found


class _Captured:
    """What is known of the capture of nodes of CUDA graphs."""

    def __init__(self, evidence: Evidence) -> None:
        lineage, origins = evidence.lineage, evidence.origins
        self._of_work = lineage.of_work
        self._original = np.append(lineage.original, np.int32(-1))
        self._node_id = lineage.node_id
        self._range = np.full(self._original.size, -1, dtype=np.int64)
        told = np.flatnonzero(origins.known)
        if told.size:
            self._range[told] = range_around(evidence.line, evidence.nesting, origins.start[told], origins.end[told])

    def of(self, rows: Rows) -> dict[str, object]:
        """The original node of some work, and the range around its capture."""
        node = self._of_work[rows]
        original = self._original[node]
        if not self._node_id.size:
            nothing = pa.nulls(rows.size, pa.int64())
            return {"original_graph_node_id": nothing, "capture_range_id": nothing}
        return {
            "original_graph_node_id": pa.array(self._node_id[original], mask=original < 0),
            "capture_range_id": or_null(self._range[node]),
        }

"""``kernels``: every piece of device work, with its module or the cause why it has none."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.arrays.columns import integers, taken
from tracekit.arrays.lookups import lookup
from tracekit.attribution import METHODS
from tracekit.causes import CAUSES
from tracekit.markers.phases import COMPILE, PHASES
from tracekit.recording.axis import range_around
from tracekit.recording.tables import COPY_KINDS, CPU_OP, WORK, WORK_KINDS
from tracekit.schema import CATEGORY, Column, TableSpec
from tracekit.tables import operators
from tracekit.tables.base import category, or_null, pieces
from tracekit.trace.steps.membership import step_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.arrays.types import Ints, Rows
    from tracekit.attribution.base import Trace
    from tracekit.trace.evidence import Evidence


_NO_LAUNCH = np.iinfo(np.int64).min

#: How large a piece of work is: its launch configuration, and what it copies or sets.
_SIZES = (
    *("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z"),
    *("registers", "static_smem_bytes", "dynamic_smem_bytes", "bytes"),
)
_GRAPH_IDS = ("graph_id", "graph_exec_id", "graph_node_id")

SPEC = TableSpec(
    "kernels",
    "One row per piece of device work, each exactly once, sorted by (module_id, start_ns); work "
    "without a module comes last. For work replayed from a CUDA graph, thread, launch, range and "
    "step are those of the replay, module and call those of the graph capture.",
    (
        Column(
            "kernel_id", pa.int64(), "Unique id: the position by start time in the report, plus the report's first_id."
        ),
        Column(
            "kind",
            CATEGORY,
            "kernel, memcpy, memset, graph (a CUDA graph traced as a whole) or cpu_op (an operator, in a run "
            "without a GPU).",
        ),
        Column("name", CATEGORY, "Short name; null if unknown.", nullable=True),
        Column("full_name", CATEGORY, "Name with template arguments and parameters; null if unknown.", nullable=True),
        Column(
            "start_ns",
            pa.int64(),
            "Start on the device (of a cpu_op on its thread), in ns since the start of the session.",
        ),
        Column("end_ns", pa.int64(), "End, on the same clock."),
        Column(
            "dur_ns",
            pa.int64(),
            "Duration: end_ns - start_ns, for a cpu_op without the operators it called. Durations add up; no "
            "time counts twice.",
        ),
        *WORK.chosen("device", "context", "stream"),
        Column("pid", pa.int32(), "Process id; null if the report does not record it.", nullable=True),
        Column("rank", pa.int32(), "Rank of the process in its job; null if unknown.", nullable=True),
        Column("tid", pa.int32(), "Id of the thread that launched it; null if its launch is unknown.", nullable=True),
        Column(
            "correlation_id",
            pa.int64(),
            "Id that links it to its launch, unique within its process; null if the report has none.",
            nullable=True,
        ),
        Column("launch_name", CATEGORY, "Name of the API call that launched it; null if unknown.", nullable=True),
        Column("launch_start_ns", pa.int64(), "Start of that API call on the host; null if unknown.", nullable=True),
        Column("launch_end_ns", pa.int64(), "Return of that API call on the host; null if unknown.", nullable=True),
        Column(
            "module_id",
            pa.int32(),
            "Module it belongs to, of several the one that it serves most; null if unknown, see cause.",
            nullable=True,
        ),
        Column("module", CATEGORY, "Path of that module.", nullable=True),
        Column(
            "call_id",
            pa.int64(),
            "Innermost call it belongs to; for graph work, the call that ran during graph capture. Null if unknown, "
            "and where it is compiled and in no call.",
            nullable=True,
        ),
        Column(
            "method",
            CATEGORY,
            "How its module was found: compiled (by the kernel map of the compiled graph that launched it; "
            "kernel_modules tells all modules that it serves), range (around the launch), backward (by the sequence "
            "number of the autograd node that launched it), graph_node (by the graph capture of its node), graph_order "
            "(by the order of launches in the graph capture), graph_capture (a CUDA graph traced as a whole: the call "
            "that holds its graph capture, for everything in it) or autograd_thread (launched by a thread of autograd: "
            "the range that waited for it); null if it was not found.",
            nullable=True,
        ),
        Column("cause", CATEGORY, "Why its module was not found; null exactly where method is set.", nullable=True),
        Column(
            "phase",
            CATEGORY,
            "What the program did when it launched it: forward, backward, recompute, optimizer, data (loading) or "
            "compile (torch.compile at work); of replayed work, the phase of its call. Null if unknown.",
            nullable=True,
        ),
        *operators.COLUMNS,
        Column(
            "range_id",
            pa.int64(),
            "Innermost NVTX range of any kind around its launch; for graph work, the range around the "
            "replay. Null if there is none.",
            nullable=True,
        ),
        Column(
            "step_id",
            pa.int64(),
            "Step it was launched in: the innermost on its thread, otherwise the only one open in its "
            "process; null outside steps and for compilation. Where steps are not marked, only threads of replicas "
            "and, in training, threads that run no forward pass of their own take the step of another thread.",
            nullable=True,
        ),
        *WORK.chosen(*_SIZES),
        Column(
            "copy_kind", CATEGORY, "Direction of a copy, such as Host-to-Device; null for other work.", nullable=True
        ),
        *WORK.chosen(*_GRAPH_IDS),
        Column(
            "original_graph_node_id",
            pa.int64(),
            "Node created by the graph capture, of which its node is a copy, directly or through other "
            "copies; null if unknown.",
            nullable=True,
        ),
        Column(
            "capture_range_id",
            pa.int64(),
            "Innermost NVTX range of any kind that was open at the graph capture of its node; null if unknown.",
            nullable=True,
        ),
    ),
    sorted_by=("module_id", "start_ns"),
)

_UNCHANGED = ("device", "context", "stream", "correlation_id", *_SIZES, *_GRAPH_IDS)


def build(trace: Trace) -> Iterator[pa.Table]:
    """All device work, sorted."""
    launches, captured = _launches(trace.evidence), _Captured(trace.evidence)
    named, phase = operators.Named(trace.evidence), _phase(trace)
    for rows in pieces(trace.ids.kernel_order):
        yield SPEC.table(
            _device(trace, rows)
            | _owner(trace, phase, rows)
            | _launch(trace.evidence, launches, rows)
            | named.columns(rows)
            | captured.columns(rows)
        )


def _device(trace: Trace, rows: Rows) -> dict[str, object]:
    """Columns about the work on the device."""
    recording = trace.evidence.recording
    work = taken(recording.work, rows)
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


def _owner(trace: Trace, phase: Ints, rows: Rows) -> dict[str, object]:
    owners, module = trace.owners, trace.module[rows]
    return {
        "module_id": or_null(module),
        "module": category(module, [module.path for module in trace.evidence.calls.modules]),
        "call_id": or_null(lookup(trace.ids.call_id, owners.call[rows])),
        "method": category(owners.method[rows], [method.NAME for method in METHODS]),
        "cause": category(owners.cause[rows], [cause.name for cause in CAUSES]),
        "phase": category(phase[rows], PHASES),
    }


def _phase(trace: Trace) -> Ints:
    """The phase of all work, as a position in ``PHASES``; the module of replayed work says more than its replay."""
    evidence, call = trace.evidence, trace.owners.call
    phase = evidence.phase_of_work
    replayed = np.flatnonzero(evidence.launched.replayed & (call >= 0))
    phase[replayed] = evidence.phase_of_calls[call[replayed]]
    mapped = np.flatnonzero(evidence.compiled_work.of_work >= 0)
    phase[mapped] = lookup(evidence.phase, evidence.compiled_work.launch[mapped])
    return phase


class _Launches(NamedTuple):
    """Columns of every launch, and last an entry of work without one."""

    start_ns: Ints
    end_ns: Ints
    tid: Ints
    name: Rows
    range_id: Rows
    step_id: Rows


def _launches(evidence: Evidence) -> _Launches:
    launches, threads = evidence.recording.launches, evidence.recording.threads
    thread = integers(launches, "thread")
    start, end, name = (integers(launches, column) for column in ("start_ns", "end_ns", "name"))
    step = step_at(evidence.steps, thread, lookup(threads.process, thread), start, end).astype(np.int32)
    step[evidence.phase == COMPILE] = -1
    axis = evidence.axis
    around = range_around(axis, evidence.nesting, axis.launch_start, axis.launch_end)
    tid = lookup(threads.tid, thread).astype(np.int32)
    unknown, never = np.int32(-1), np.int64(_NO_LAUNCH)
    return _Launches(
        *(np.append(times, never) for times in (start, end)),
        *(np.append(values, unknown) for values in (tid, name, around.astype(np.int32), step)),
    )


def _launch(evidence: Evidence, launches: _Launches, rows: Rows) -> dict[str, object]:
    """Columns from the API call that launched each piece."""
    launch = evidence.launched.launch[rows].astype(np.intp)
    # No API call starts an operator.
    kind = integers(evidence.recording.work, "kind")[rows]
    api_call = np.where(kind == CPU_OP, -1, launch)
    return {
        "tid": or_null(launches.tid.take(launch)),
        "launch_name": category(launches.name.take(launch), evidence.recording.names),
        "launch_start_ns": or_null(launches.start_ns.take(api_call), _NO_LAUNCH),
        "launch_end_ns": or_null(launches.end_ns.take(api_call), _NO_LAUNCH),
        "range_id": or_null(launches.range_id.take(launch)),
        "step_id": or_null(launches.step_id.take(launch)),
    }


class _Captured:
    """The graph capture of nodes of CUDA graphs."""

    def __init__(self, evidence: Evidence) -> None:
        lineage, origins = evidence.lineage, evidence.origins
        self._of_work = lineage.of_work
        self._original = np.append(lineage.original, np.int32(-1))
        self._node_id = lineage.node_id
        self._range = np.full(self._original.size, -1, dtype=np.int64)
        known = np.flatnonzero(origins.certain)
        if known.size:
            self._range[known] = range_around(evidence.axis, evidence.nesting, origins.start[known], origins.end[known])

    def columns(self, rows: Rows) -> dict[str, object]:
        """The original node of some work, and the range around its graph capture."""
        if not self._node_id.size:
            return {"original_graph_node_id": None, "capture_range_id": None}
        node = self._of_work[rows]
        original = self._original[node]
        return {
            "original_graph_node_id": pa.array(self._node_id[original], mask=original < 0),
            "capture_range_id": or_null(self._range[node]),
        }

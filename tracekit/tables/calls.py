"""``calls``: every call of a module, with its work on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tracekit.arrays import groups, slices
from tracekit.arrays.columns import integers, taken
from tracekit.arrays.intervals import subtree_ends
from tracekit.arrays.lookups import lookup
from tracekit.arrays.unions import union_within
from tracekit.markers.base import ModuleMarker
from tracekit.markers.fields import PHASES
from tracekit.schema import CATEGORY, Column, TableSpec
from tracekit.tables import memory, shapes
from tracekit.tables.base import category, or_null, pieces
from tracekit.trace.steps.membership import step_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from tracekit.arrays.types import Ints, Rows
    from tracekit.attribution.base import Trace


_NEVER = np.iinfo(np.int64).min

SPEC = TableSpec(
    "calls",
    "One row per call of a module (or plain range, or operator), sorted by (module_id, start_ns). The subtree of a "
    "call is the call and all calls inside it. Replaying a CUDA graph calls no module, so replays have no rows: "
    "their device work counts for the calls made during graph capture, whose host times are those of "
    "the graph capture. For the time of a module in a step, sum kernels by step_id.",
    (
        Column("call_id", pa.int64(), "Unique id: the row number, plus the report's first_id."),
        Column(
            "parent_call_id",
            pa.int64(),
            "Call that it is part of; null for an outermost call. A recompute "
            "is no part of the backward call around it, nor a backward pass of the forward call that begins it.",
            nullable=True,
        ),
        Column("module_id", pa.int32(), "Module that was called."),
        Column("module", CATEGORY, "Path of that module."),
        Column("step_id", pa.int64(), "Step it ran in; null outside steps.", nullable=True),
        Column(
            "occurrence",
            pa.int32(),
            "1 for the first call of this module in its process and phase, 2 for the second, and so on.",
        ),
        Column(
            "phase",
            CATEGORY,
            "forward; backward; recompute: a backward pass ran the module forward again, as its results were "
            "not kept (activation checkpointing); or capture: the call ran during a graph capture on its thread. "
            "Null for another plain range.",
            nullable=True,
        ),
        Column(
            "range_id",
            pa.int64(),
            "Its range in ranges; the one that began the call if it has two. Of a backward call that no marker tells, "
            "the autograd node with which it began.",
        ),
        Column("pid", pa.int32(), "Process id."),
        Column("rank", pa.int32(), "Rank of the process in its job; null if unknown.", nullable=True),
        Column("tid", pa.int32(), "Thread id."),
        Column("start_ns", pa.int64(), "Start on the host, in ns since the start of the session."),
        Column("end_ns", pa.int64(), "Return on the host; device work of the call may still be running."),
        *shapes.COLUMNS,
        Column(
            "gpu_start_ns",
            pa.int64(),
            "Start of the first kernel in its subtree; null if there is none.",
            nullable=True,
        ),
        Column(
            "gpu_end_ns", pa.int64(), "Latest end of the kernels in its subtree; null if there is none.", nullable=True
        ),
        Column("gpu_time_ns", pa.int64(), "Sum of the durations of the kernels in its subtree."),
        Column(
            "gpu_self_time_ns",
            pa.int64(),
            "Sum of the durations of its own kernels, without those of calls inside it. A CUDA graph traced as a whole "
            "counts here for the call that holds its graph capture, though it is work of the calls inside, too.",
        ),
        Column(
            "gpu_busy_ns",
            pa.int64(),
            "Time in which at least one kernel of its subtree ran; overlapping kernels count once.",
        ),
        Column("kernel_count", pa.int32(), "Number of kernels in its subtree."),
        Column("kernel_self_count", pa.int32(), "Number of its own kernels, without those of calls inside it."),
        Column(
            "launch_time_ns",
            pa.int64(),
            "Host time in API calls that launched kernels of its subtree, from begin to return, so time "
            "spent blocked is included (the launches analysis separates it). Launches during graph capture "
            "and graph replays do not count.",
        ),
        *memory.COLUMNS,
    ),
    sorted_by=("module_id", "start_ns"),
)


def build(trace: Trace) -> Iterator[pa.Table]:
    """The calls of known modules."""
    whole, device, node = _whole_columns(trace), _device(trace), trace.evidence.calls.trees.node
    shaped, allocated = shapes.Shaped(trace.evidence), memory.Allocated(trace.evidence)
    for at in pieces(np.arange(trace.ids.call_order.size)):
        rows = trace.ids.call_order[at].astype(np.intp)
        in_trees = node[rows].astype(np.intp)
        columns = {name: column.take(rows) for name, column in whole.items()}
        columns |= {name: column.take(in_trees) for name, column in device.items()}
        idle = columns["kernel_count"] == 0
        yield SPEC.table(
            {
                **_host(trace, rows),
                **shaped.columns(rows),
                **allocated.columns(rows),
                **columns,
                "phase": category(columns["phase"], PHASES),
                "call_id": at,
                "parent_call_id": or_null(columns["parent_call_id"]),
                "step_id": or_null(columns["step_id"]),
                "gpu_start_ns": pa.array(columns["gpu_start_ns"], mask=idle),
                "gpu_end_ns": pa.array(columns["gpu_end_ns"], mask=idle),
            }
        )


def _host(trace: Trace, rows: Rows) -> dict[str, object]:
    """The module, place and time of each call."""
    calls, recording = trace.evidence.calls, trace.evidence.recording
    at, module = calls.range_row[rows].astype(np.intp), calls.module[rows]
    ranges = taken(recording.ranges.select(["start_ns", "thread"]), at)
    thread = integers(ranges, "thread").astype(np.intp)
    return {
        "module_id": module,
        "module": category(module, [known.path for known in calls.modules]),
        "range_id": at,
        "pid": recording.threads.pid[thread].astype(np.int32),
        "rank": or_null(recording.process_rank[recording.threads.process[thread]]),
        "tid": recording.threads.tid[thread].astype(np.int32),
        "start_ns": ranges.column("start_ns"),
        "end_ns": trace.evidence.endings.end_ns[calls.last_range[rows]],
    }


def _whole_columns(trace: Trace) -> dict[str, NDArray[Any]]:
    """Columns whose values depend on other calls, for every call of the trace."""
    calls, recording = trace.evidence.calls, trace.evidence.recording
    start = integers(recording.ranges, "start_ns")[calls.range_row]
    end = trace.evidence.endings.end_ns[calls.last_range]
    thread = integers(recording.ranges, "thread")[calls.range_row]
    process = recording.threads.process[thread]
    step = step_at(trace.evidence.steps, thread, process, start, end).astype(np.int32)
    del start, end, thread
    order = trace.ids.call_order
    occurrence = np.zeros(calls.start.size, dtype=np.int32)
    # A plain range tells no phase, -1.
    phase = _phase(trace)
    place = calls.module.astype(np.int64) * (len(PHASES) + 1) + phase + 1
    occurrence[order] = _occurrence(process[order], place[order])
    parent = lookup(trace.ids.call_id, calls.known_parent)
    return {"parent_call_id": parent, "step_id": step, "occurrence": occurrence, "phase": phase}


def _phase(trace: Trace) -> NDArray[np.int8]:
    """The phase of each call, as a position in PHASES; calls during a graph capture are of that phase."""
    calls = trace.evidence.calls
    markers = trace.evidence.decoded.markers
    phases = [marker.phase if isinstance(marker, ModuleMarker) else PHASES[0] for marker in markers]
    code = [PHASES.index(phase) if phase else -1 for phase in phases]
    phase = np.array([*code, 0], np.int8)[calls.marker]  # the last one is of calls without a marker
    phase[calls.unmarked | (calls.evaluates & (phase < 0))] = PHASES.index("backward")
    phase[calls.captured] = PHASES.index("capture")
    return phase


def _occurrence(process: Ints, module: Ints) -> Ints:
    """The running number of each row among those of the same process and module; rows come in order of time."""
    count = np.empty(module.size, dtype=np.int64)
    order = np.lexsort((process, module))
    sorted_process, sorted_module = process[order], module[order]
    fresh = np.ones(module.size, dtype=bool)
    fresh[1:] = (sorted_process[1:] != sorted_process[:-1]) | (sorted_module[1:] != sorted_module[:-1])
    places = np.arange(module.size)
    count[order] = places - np.maximum.accumulate(np.where(fresh, places, 0)) + 1
    return count


def _device(trace: Trace) -> dict[str, Ints]:
    """Times and counts of the kernels of each call and of its subtree, in the order of the trees."""
    work, owner = trace.evidence.recording.work, trace.owners.call
    owned = np.flatnonzero(owner >= 0)
    trees = trace.evidence.calls.trees
    owner = trees.node[owner[owned]]
    start, end = integers(work, "start_ns")[owned], integers(work, "end_ns")[owned]
    number = trees.parent.size
    low, high = np.arange(number), subtree_ends(trees.parent, trees.depth)
    self_time, self_count = groups.sums(owner, trace.own_ns[owned], number), groups.counts(owner, number)
    first = groups.minima(owner, start, number)
    last = groups.maxima(owner, end, number)
    launch_time = _launch_time(trace, owned[~trace.evidence.launched.replayed[owned]])[trees.call]
    return {
        "gpu_start_ns": slices.minima(first, low, high, _NEVER),
        "gpu_end_ns": slices.maxima(last, low, high, _NEVER),
        "gpu_time_ns": slices.sums(self_time, low, high),
        "gpu_self_time_ns": self_time,
        "gpu_busy_ns": union_within(owner, (trees.parent, trees.depth, high), start, end),
        "kernel_count": slices.sums(self_count, low, high).astype(np.int32),
        "kernel_self_count": self_count.astype(np.int32),
        "launch_time_ns": slices.sums(launch_time, low, high),
    }


def _launch_time(trace: Trace, owned: Ints) -> Ints:
    """Host time of each call's own launches, without graph replays: the calls they run did not launch them."""
    evidence = trace.evidence
    useful = np.zeros(evidence.recording.launches.num_rows + 1, dtype=bool)
    on_device = owned[evidence.recording.on_device[owned]]
    useful[evidence.launched.launch[on_device]] = True
    call = evidence.call_at_launch
    rows = np.flatnonzero(useful[:-1] & (call >= 0))
    launches = evidence.recording.launches
    spent = integers(launches, "end_ns")[rows] - integers(launches, "start_ns")[rows]
    return groups.sums(call[rows], spent, evidence.calls.parent.size)

"""``calls``: every call of a module, with its tensors, its memory and its work on the device."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tracekit.arrays import groups, slices
from tracekit.arrays.codes import lookup
from tracekit.arrays.intervals import subtree_ends
from tracekit.arrays.slices import union_within
from tracekit.arrays.types import Ints, Rows
from tracekit.attribution.base import Trace
from tracekit.markers.base import CALL_PHASES, ModuleMarker
from tracekit.schema import SHAPES, TYPES, tables
from tracekit.tables.base import category, module_paths, or_null, pieces
from tracekit.trace.evidence import Evidence
from tracekit.trace.steps.steps import step_at

_NEVER = np.iinfo(np.int64).min

SPEC = tables.Calls.SPEC


def build(trace: Trace) -> Iterator[pa.Table]:
    """The calls of known modules."""
    whole, device, node = _whole_columns(trace), _device(trace), trace.evidence.calls.trees.node
    shaped, allocated = Shaped(trace.evidence), Allocated(trace.evidence)
    module, paths = trace.evidence.calls.module, module_paths(trace)
    for at in pieces(np.arange(trace.ids.call_order.size)):
        rows = trace.ids.call_order[at].astype(np.intp)
        in_trees = node[rows].astype(np.intp)
        columns = {name: column.take(rows) for name, column in whole.items()}
        columns |= {name: column.take(in_trees) for name, column in device.items()}
        idle = columns["kernel_count"] == 0
        yield SPEC.table(
            {
                **_host(trace, rows),
                "module_id": module[rows],
                "module": category(module[rows], paths),
                **shaped.columns(rows),
                **allocated.columns(rows),
                **columns,
                "phase": category(columns["phase"], CALL_PHASES),
                "call_id": at,
                "parent_call_id": or_null(columns["parent_call_id"]),
                "step_id": or_null(columns["step_id"]),
                "gpu_start_ns": pa.array(columns["gpu_start_ns"], mask=idle),
                "gpu_end_ns": pa.array(columns["gpu_end_ns"], mask=idle),
            }
        )


def _host(trace: Trace, rows: Rows) -> dict[str, object]:
    calls, recording = trace.evidence.calls, trace.evidence.recording
    at = calls.range_row[rows].astype(np.intp)
    thread = recording.ranges.thread[at].astype(np.intp)
    return {
        "range_id": at,
        "pid": recording.threads.pid[thread].astype(np.int32),
        "rank": or_null(recording.process_rank[recording.threads.process[thread]]),
        "tid": recording.threads.tid[thread].astype(np.int32),
        "start_ns": recording.ranges.start_ns[at],
        "end_ns": trace.evidence.ends.end_ns.take(calls.last_range.take(rows)),
    }


def _whole_columns(trace: Trace) -> dict[str, NDArray[Any]]:
    calls, recording = trace.evidence.calls, trace.evidence.recording
    start = recording.ranges.start_ns.take(calls.range_row)
    end = trace.evidence.ends.end_ns.take(calls.last_range)
    thread = recording.ranges.thread.take(calls.range_row)
    process = recording.threads.process.take(thread)
    step = step_at(trace.evidence.steps, thread, process, start, end).astype(np.int32)
    del start, end, thread
    order = trace.ids.call_order
    occurrence = np.zeros(calls.start.size, dtype=np.int32)
    # A plain range names no phase, -1.
    phase = _phase(trace)
    place = calls.module.astype(np.int64) * (len(CALL_PHASES) + 1) + phase + 1
    place = place * recording.threads.process_pid.size + process
    occurrence[order] = _occurrence(place[order])
    parent = lookup(trace.ids.call_id, calls.known_parent)
    return {"parent_call_id": parent, "step_id": step, "occurrence": occurrence, "phase": phase}


def _phase(trace: Trace) -> NDArray[np.int8]:
    calls = trace.evidence.calls
    decoded = trace.evidence.decoded
    phases = [marker.phase if isinstance(marker, ModuleMarker) else CALL_PHASES[0] for marker in decoded.bare]
    code = [CALL_PHASES.index(phase) if phase else -1 for phase in phases]
    # The last one is of calls without a marker.
    phase = np.array([*code, 0], np.int8)[decoded.canonical_marker].take(calls.marker)
    phase[calls.unmarked | (calls.evaluates & (phase < 0))] = CALL_PHASES.index("backward")
    phase[calls.captured] = CALL_PHASES.index("capture")
    return phase


def _occurrence(place: Ints) -> Ints:
    """The number of each among those of an equal place, from 1 on."""
    count = np.empty(place.size, dtype=np.int64)
    order = np.argsort(place, kind="stable")
    fresh = np.diff(place[order], prepend=-1) != 0
    at = np.arange(place.size)
    count[order] = at - np.maximum.accumulate(np.where(fresh, at, 0)) + 1
    return count


def _device(trace: Trace) -> dict[str, Ints]:
    work, owner = trace.evidence.recording.work, trace.owners.call
    owned = np.flatnonzero(owner >= 0)
    trees = trace.evidence.calls.trees
    owner = trees.node[owner[owned]].astype(np.intp)
    start, end = work.start_ns[owned], work.end_ns[owned]
    number = trees.parent.size
    high = subtree_ends(trees.parent, trees.depth)
    # What needs the most memory while it is computed comes first.
    busy = union_within(owner, (trees.parent, trees.depth, high), start, end)
    launch_time = _launch_time(trace, owned[~trace.evidence.launched.replayed[owned]])[trees.call]
    self_time, self_count = groups.sums(owner, trace.own_ns[owned], number), groups.counts(owner, number)
    # Sorted by its owner, the work of a subtree is a slice.
    order = slice(None) if bool((owner[1:] >= owner[:-1]).all()) else np.argsort(owner, kind="stable")
    before = np.concatenate(([0], np.cumsum(self_count)))
    first, last = before[:-1], before[high]
    return {
        "gpu_start_ns": slices.least_of(start[order])(first, last, _NEVER),
        "gpu_end_ns": slices.greatest_of(end[order])(first, last, _NEVER),
        "gpu_time_ns": slices.sums_to(self_time, high),
        "gpu_self_time_ns": self_time,
        "gpu_busy_ns": busy,
        "kernel_count": (last - first).astype(np.int32),
        "kernel_self_count": self_count.astype(np.int32),
        "launch_time_ns": slices.sums_to(launch_time, high),
    }


def _launch_time(trace: Trace, owned: Ints) -> Ints:
    evidence = trace.evidence
    useful = np.zeros(len(evidence.recording.launches) + 1, dtype=bool)
    on_device = owned[evidence.recording.on_device[owned]]
    useful[evidence.launched.launch[on_device]] = True
    call = evidence.call_at_launch
    rows = np.flatnonzero(useful[:-1] & (call >= 0))
    launches = evidence.recording.launches
    spent = launches.end_ns[rows] - launches.start_ns[rows]
    return groups.sums(call[rows], spent, evidence.calls.parent.size)


class Shaped:
    """Shapes and types of calls, taken from the markers."""

    def __init__(self, evidence: Evidence) -> None:
        self._calls, self._row = evidence.calls, evidence.decoded.tensors_of
        tensors = evidence.decoded.tensors
        self._inputs = _array([one.inputs for one in tensors], SHAPES)
        self._outputs = _array([one.outputs for one in tensors], SHAPES)
        self._kwargs = _array([one.kwargs for one in tensors], SPEC.schema().field("kwargs").type)
        self._types = _array([one.types or None for one in tensors], TYPES)
        self._kwarg_types = _array(
            [one.kwarg_types or None for one in tensors], SPEC.schema().field("kwarg_types").type
        )

    def columns(self, rows: Rows) -> dict[str, object]:
        """The shapes and types of some calls."""
        marker, outputs = self._calls.marker.take(rows), self._calls.outputs.take(rows)
        marked, closed, either = (
            or_null(self._row.take(at)) for at in (marker, outputs, np.where(outputs >= 0, outputs, marker))
        )
        columns = {
            "inputs": (self._inputs, marked),
            "outputs": (self._outputs, either),
            "kwargs": (self._kwargs, marked),
            "input_types": (self._types, marked),
            "output_types": (self._types, closed),
            "kwarg_types": (self._kwarg_types, marked),
        }
        return {name: None if values is None else values.take(at) for name, (values, at) in columns.items()}


def _array(values: Sequence[object], type_: pa.DataType) -> pa.Array | None:
    """A field of all tensors; None if it is null for all."""
    array = pa.array(values, type_)
    return array if array.null_count < len(array) else None


class Allocated:
    """What allocators did on all threads, and what processes held on each device."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        allocations = evidence.recording.allocations
        own = allocations.in_order(np.lexsort((allocations.time_ns, allocations.thread)))
        self._time, self._thread = own.time_ns, own.thread
        self._sums = [np.concatenate(([0], np.cumsum(part))) for part in (np.maximum(own.bytes, 0), own.bytes)]
        device = (allocations.process.astype(np.int64) << 32) + allocations.device + 1
        # By the row of the process: how far what it holds on each of its devices rises within intervals.
        self._rises = [
            (one >> 32, _rises(allocations.time_ns[rows], allocations.bytes[rows]))
            for one in np.unique(device).tolist()
            for rows in (np.flatnonzero(device == one),)
        ]

    def columns(self, rows: Rows) -> dict[str, object]:
        """The memory of some calls."""
        if not self._time.size:
            return {"allocated_bytes": None, "retained_bytes": None, "peak_bytes": None}
        ranges, calls = self._evidence.recording.ranges, self._evidence.calls
        at = calls.range_row[rows]
        thread, start, end = ranges.thread[at], ranges.start_ns[at], self._evidence.ends.end_ns[calls.last_range[rows]]
        first, last, peak = np.zeros((3, rows.size), dtype=np.int64)
        for one in np.unique(self._thread[self._thread >= 0]).tolist():
            of_thread = thread == one
            first[of_thread] = self._places(one, start[of_thread], "left")
            last[of_thread] = self._places(one, end[of_thread], "right")
        process = self._evidence.recording.threads.process[thread]
        for one, rises in self._rises:
            inside = process == one
            peak[inside] = np.maximum(peak[inside], rises(start[inside], end[inside]))
        allocated, retained = (total[last] - total[first] for total in self._sums)
        return {"allocated_bytes": allocated, "retained_bytes": retained, "peak_bytes": peak}

    def _places(self, thread: int, times: Ints, side: Literal["left", "right"]) -> Ints:
        begin, end = np.searchsorted(self._thread, [thread, thread + 1])
        place: Ints = begin + np.searchsorted(self._time[begin:end], times, side)
        return place


def _rises(time: Ints, size: Ints) -> Callable[[Ints, Ints], Ints]:
    """How far a running sum rises within intervals, both ends included, above what it is before each."""
    held = np.concatenate(([0], np.cumsum(size)))
    most = slices.greatest_of(held)

    def within(start: Ints, end: Ints) -> Ints:
        first, last = np.searchsorted(time, start, "left"), np.searchsorted(time, end, "right")
        return most(first, np.maximum(last, first) + 1, 0) - held[first]

    return within

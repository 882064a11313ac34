"""``calls``: every call of a module, with its tensors, its memory and its work on the device."""

from collections.abc import Callable, Iterator
from typing import Any

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
from tracekit.schema import tables
from tracekit.tables.base import Columns, category, module_paths, of_thread, or_null, pieces
from tracekit.trace.evidence import Evidence
from tracekit.trace.steps import step_at

_NEVER = np.iinfo(np.int64).min

SPEC = tables.Calls.SPEC


def build(trace: Trace) -> Iterator[pa.Table]:
    """The calls of known modules."""
    whole, device, node = _whole_columns(trace), _device(trace), trace.evidence.calls.trees.node
    shapes, memory = _shapes(trace.evidence), _memory(trace.evidence)
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
                **shapes(rows),
                **memory(rows),
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
    return {
        "range_id": at,
        **of_thread(recording, recording.ranges.thread[at].astype(np.intp)),
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
    calls, decoded = trace.evidence.calls, trace.evidence.decoded
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
    evidence, launches, call = trace.evidence, trace.evidence.recording.launches, trace.evidence.call_at_launch
    useful = np.zeros(len(launches) + 1, dtype=bool)
    useful[evidence.launched.launch[owned[evidence.recording.on_device[owned]]]] = True
    rows = np.flatnonzero(useful[:-1] & (call >= 0))
    spent = launches.end_ns[rows] - launches.start_ns[rows]
    return groups.sums(call[rows], spent, evidence.calls.parent.size)


def _shapes(evidence: Evidence) -> Columns:
    """Shapes and types of calls, taken from the markers."""
    calls, tensors, tensors_of = evidence.calls, evidence.decoded.tensors, evidence.decoded.tensors_of
    types = [one.types or None for one in tensors]
    fields = {
        "inputs": [one.inputs for one in tensors],
        "outputs": [one.outputs for one in tensors],
        "kwargs": [one.kwargs for one in tensors],
        "input_types": types,
        "output_types": types,
        "kwarg_types": [one.kwarg_types or None for one in tensors],
    }
    arrays = {name: pa.array(values, SPEC.schema().field(name).type) for name, values in fields.items()}

    def columns(rows: Rows) -> dict[str, object]:
        marker, outputs = calls.marker.take(rows), calls.outputs.take(rows)
        marked, closed, either = (
            or_null(tensors_of.take(at)) for at in (marker, outputs, np.where(outputs >= 0, outputs, marker))
        )
        at = dict.fromkeys(arrays, marked) | {"outputs": either, "output_types": closed}
        return {
            name: None if array.null_count == len(array) else array.take(at[name]) for name, array in arrays.items()
        }

    return columns


def _memory(evidence: Evidence) -> Columns:
    """What allocators did on all threads, and how far what processes held on their devices rose within calls."""
    allocations = evidence.recording.allocations
    if not allocations.time_ns.size:
        return lambda _: {"allocated_bytes": None, "retained_bytes": None, "peak_bytes": None}
    ranges, calls, ends = evidence.recording.ranges, evidence.calls, evidence.ends.end_ns
    own = allocations.in_order(np.lexsort((allocations.time_ns, allocations.thread)))
    sums = [np.concatenate(([0], np.cumsum(part))) for part in (np.maximum(own.bytes, 0), own.bytes)]
    device = (allocations.process.astype(np.int64) << 32) + allocations.device + 1
    rises: list[tuple[int, Callable[[Ints, Ints], Ints]]] = []
    for one in np.unique(device).tolist():
        rows_of_device = np.flatnonzero(device == one)
        times, sizes = allocations.time_ns[rows_of_device], allocations.bytes[rows_of_device]
        rises.append((one >> 32, _rises(times, sizes)))

    def columns(rows: Rows) -> dict[str, object]:
        at = calls.range_row[rows]
        thread, start, end = ranges.thread[at], ranges.start_ns[at], ends[calls.last_range[rows]]
        first, last, peak = np.zeros((3, rows.size), dtype=np.int64)
        for one in np.unique(own.thread[own.thread >= 0]).tolist():
            here = thread == one
            begin, stop = np.searchsorted(own.thread, [one, one + 1])
            first[here] = begin + np.searchsorted(own.time_ns[begin:stop], start[here], "left")
            last[here] = begin + np.searchsorted(own.time_ns[begin:stop], end[here], "right")
        process = evidence.recording.threads.process[thread]
        for of_process, rise in rises:
            inside = process == of_process
            peak[inside] = np.maximum(peak[inside], rise(start[inside], end[inside]))
        allocated, retained = (total[last] - total[first] for total in sums)
        return {"allocated_bytes": allocated, "retained_bytes": retained, "peak_bytes": peak}

    return columns


def _rises(time: Ints, size: Ints) -> Callable[[Ints, Ints], Ints]:
    """How far a running sum rises within intervals, both ends included, above what it is before each."""
    held = np.concatenate(([0], np.cumsum(size)))
    most = slices.greatest_of(held)

    def within(start: Ints, end: Ints) -> Ints:
        first, last = np.searchsorted(time, start, "left"), np.searchsorted(time, end, "right")
        return most(first, np.maximum(last, first) + 1, 0) - held[first]

    return within

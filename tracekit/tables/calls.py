"""``calls``: every call of a module, and what it did on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tracekit.attribute.by_range import call_at_launch
from tracekit.intervals import subtree_ends, union_within
from tracekit.markers.base import ModuleMarker
from tracekit.recording import integers
from tracekit.schema import CATEGORY, SHAPES, Column, TableSpec
from tracekit.segments import maxima, minima, sums
from tracekit.steps import step_at
from tracekit.tables.base import category, lookup, or_null

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tracekit.markers.base import Marker
    from tracekit.trace import Trace

    Ints = NDArray[np.int64]

_PHASES = ("forward", "backward", "capture")
_KWARGS = pa.map_(pa.string(), SHAPES)
_NEVER = np.iinfo(np.int64).min

SPEC = TableSpec(
    "calls",
    "One row per call of a module, sorted by (module_id, start_ns).",
    (
        Column("call_id", pa.int64(), "The row's number."),
        Column("parent_call_id", pa.int64(), "The call that encloses it.", nullable=True),
        Column("module_id", pa.int32(), "The module called."),
        Column("module", CATEGORY, "Its path."),
        Column("step_id", pa.int64(), "The step it ran in.", nullable=True),
        Column("occurrence", pa.int32(), "1 for the first call of this module in its process, 2 for the next, …"),
        Column("phase", CATEGORY, "forward, backward, or capture of a CUDA graph."),
        Column("pid", pa.int32(), "Process."),
        Column("tid", pa.int32(), "Thread."),
        Column("start_ns", pa.int64(), "When it began on the host."),
        Column("end_ns", pa.int64(), "When it returned; its work may still be running."),
        Column("inputs", SHAPES, "Dimensions of its positional tensors.", nullable=True),
        Column("outputs", SHAPES, "Dimensions of its results, where a marker tells them.", nullable=True),
        Column("kwargs", _KWARGS, "Dimensions of its keyword tensors.", nullable=True),
        Column("gpu_start_ns", pa.int64(), "First start of the kernels in its subtree.", nullable=True),
        Column("gpu_end_ns", pa.int64(), "Last end of the kernels in its subtree.", nullable=True),
        Column("gpu_time_ns", pa.int64(), "Sum of its subtree's kernels."),
        Column("gpu_self_time_ns", pa.int64(), "Sum of the kernels attributed to this call itself."),
        Column("gpu_busy_ns", pa.int64(), "Time in which at least one kernel of its subtree ran: union, not sum."),
        Column("kernel_count", pa.int32(), "Kernels in its subtree."),
        Column("kernel_self_count", pa.int32(), "Kernels of this call itself."),
        Column("launch_time_ns", pa.int64(), "Host time of its subtree's launches; a launch of many kernels once."),
    ),
    sorted_by=("module_id", "start_ns"),
)


def build(trace: Trace) -> pa.Table:
    """The calls of known modules."""
    calls, recording = trace.evidence.calls, trace.evidence.recording
    order = trace.ids.call_order
    ranges = calls.range_row[order]
    start, end = integers(recording.ranges, "start_ns")[ranges], integers(recording.ranges, "end_ns")[ranges]
    thread = integers(recording.ranges, "thread")[ranges]
    process = recording.threads.process[thread]
    columns: dict[str, object] = {
        "call_id": np.arange(order.size),
        "parent_call_id": or_null(lookup(trace.ids.call_id, _known_parent(trace))[order]),
        "module_id": calls.module[order].astype(np.int32),
        "module": category(calls.module[order], [module.path for module in calls.modules]),
        "step_id": or_null(step_at(trace.evidence.steps, thread, process, start, end)),
        "occurrence": _occurrence(process, calls.module[order]).astype(np.int32),
        "phase": category(np.zeros(order.size, dtype=np.int64), _PHASES),
        "pid": recording.threads.pid[thread].astype(np.int32),
        "tid": recording.threads.tid[thread].astype(np.int32),
        "start_ns": start,
        "end_ns": end,
    }
    return SPEC.table(columns | _shapes(trace, order) | _device(trace, order))


def _known_parent(trace: Trace) -> Ints:
    """The nearest call above of a known module, or -1."""
    calls = trace.evidence.calls
    parent = calls.parent
    if calls.known.all():
        return parent
    above = np.append(parent, -1)
    while (unknown := (parent >= 0) & ~np.append(calls.known, True)[parent]).any():
        parent = np.where(unknown, above[parent], parent)
    return parent


def _occurrence(process: Ints, module: Ints) -> Ints:
    """The running number of each row among those of the same process and module; rows come in order of time."""
    count = np.empty(module.size, dtype=np.int64)
    order = np.lexsort((process, module))
    keys = np.column_stack((process, module))[order]
    fresh = np.ones(module.size, dtype=bool)
    fresh[1:] = (keys[1:] != keys[:-1]).any(axis=1)
    places = np.arange(module.size)
    count[order] = places - np.maximum.accumulate(np.where(fresh, places, 0)) + 1
    return count


def _shapes(trace: Trace, order: Ints) -> dict[str, object]:
    """Shapes per call, taken from the distinct markers."""
    calls, markers = trace.evidence.calls, trace.evidence.decoded.markers
    marker, outputs = calls.marker[order], calls.outputs[order]
    told = np.where(outputs >= 0, outputs, marker)
    return {
        "inputs": _of_markers(markers, lambda found: found.inputs, SHAPES).take(pa.array(marker)),
        "outputs": _of_markers(markers, lambda found: found.outputs, SHAPES).take(pa.array(told)),
        "kwargs": _of_markers(markers, lambda found: list(found.kwargs.items()), _KWARGS).take(pa.array(marker)),
    }


def _of_markers(markers: list[Marker], said: Callable[[ModuleMarker], object], type_: pa.DataType) -> pa.Array:
    return pa.array([said(marker) if isinstance(marker, ModuleMarker) else None for marker in markers], type_)


def _device(trace: Trace, order: Ints) -> dict[str, object]:
    """What the kernels of each call and of the calls inside it did on the device."""
    work, owner = trace.evidence.recording.work, trace.owners.call
    owned = np.flatnonzero(owner >= 0)
    owner = owner[owned]
    start, end = integers(work, "start_ns")[owned], integers(work, "end_ns")[owned]
    parent = trace.evidence.calls.parent
    low, high = np.arange(parent.size), subtree_ends(parent)
    self_time, self_count, first, last = (np.full(parent.size, fill) for fill in (0, 0, -(_NEVER + 1), _NEVER))
    np.add.at(self_time, owner, end - start)
    np.add.at(self_count, owner, 1)
    np.minimum.at(first, owner, start)
    np.maximum.at(last, owner, end)
    count = sums(self_count, low, high)
    began, ended = minima(first, low, high, _NEVER), maxima(last, low, high, _NEVER)
    nothing = count == 0
    return {
        "gpu_start_ns": or_null(np.where(nothing, _NEVER, began)[order], _NEVER),
        "gpu_end_ns": or_null(np.where(nothing, _NEVER, ended)[order], _NEVER),
        "gpu_time_ns": sums(self_time, low, high)[order],
        "gpu_self_time_ns": self_time[order],
        "gpu_busy_ns": union_within(owner, parent, start, end)[order],
        "kernel_count": count[order].astype(np.int32),
        "kernel_self_count": self_count[order].astype(np.int32),
        "launch_time_ns": sums(_launch_time(trace, owned), low, high)[order],
    }


def _launch_time(trace: Trace, owned: Ints) -> Ints:
    """Host time of the launches of every call itself."""
    evidence = trace.evidence
    launch = np.unique(evidence.launched.launch[owned])
    launch = launch[launch >= 0]
    call = call_at_launch(evidence)[launch]
    inside = call >= 0
    total = np.zeros(evidence.calls.parent.size, dtype=np.int64)
    np.add.at(total, call[inside], (evidence.line.launch_end - evidence.line.launch_start)[launch[inside]])
    return total

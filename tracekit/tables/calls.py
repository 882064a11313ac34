"""``calls``: every call of a module, and what it did on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tracekit.arrays.columns import integers
from tracekit.arrays.intervals import subtree_ends, union_within
from tracekit.arrays.slices import maxima, minima, sums
from tracekit.markers.base import ModuleMarker
from tracekit.markers.fields import PHASES
from tracekit.schema import CATEGORY, SHAPES, TYPES, Column, TableSpec
from tracekit.tables.base import category, lookup, or_null, pieces
from tracekit.trace.steps.steps import step_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from tracekit.arrays.types import Ints, Rows
    from tracekit.attribution.base import Trace
    from tracekit.markers.base import Marker


_KWARGS = pa.map_(pa.string(), SHAPES)
_KWARG_TYPES = pa.map_(pa.string(), TYPES)
_NEVER = np.iinfo(np.int64).min

SPEC = TableSpec(
    "calls",
    "One row per call of a module, sorted by (module_id, start_ns). A replay of a CUDA graph calls no module, so it "
    "has no row: what the device does in all replays counts for the calls that were captured, whose host times are "
    "those of the capture. For the time of a module in a step sum kernels by step_id.",
    (
        Column("call_id", pa.int64(), "The row's number, from its report's first_id on."),
        Column("parent_call_id", pa.int64(), "The call that encloses it.", nullable=True),
        Column("module_id", pa.int32(), "The module called."),
        Column("module", CATEGORY, "Its path."),
        Column("step_id", pa.int64(), "The step it ran in.", nullable=True),
        Column(
            "occurrence",
            pa.int32(),
            "1 for the first call of this module in its process and phase, 2 for the next, …",
        ),
        Column(
            "phase",
            CATEGORY,
            "forward, backward, or capture: it ran while its thread captured a CUDA graph.",
        ),
        Column("pid", pa.int32(), "Process."),
        Column("rank", pa.int32(), "Rank of the process in its job.", nullable=True),
        Column("tid", pa.int32(), "Thread."),
        Column("start_ns", pa.int64(), "When it began on the host."),
        Column("end_ns", pa.int64(), "When it returned; its work may still be running."),
        Column("inputs", SHAPES, "Dimensions of its positional tensors.", nullable=True),
        Column(
            "outputs",
            SHAPES,
            "Dimensions of its results, where a marker tells them.",
            nullable=True,
        ),
        Column("kwargs", _KWARGS, "Dimensions of its keyword tensors.", nullable=True),
        Column(
            "input_types",
            TYPES,
            "Dtype and device of each of its positional tensors, where a marker tells them.",
            nullable=True,
        ),
        Column(
            "output_types",
            TYPES,
            "Dtype and device of each of its results, where a marker tells them.",
            nullable=True,
        ),
        Column(
            "kwarg_types",
            _KWARG_TYPES,
            "Dtypes and devices of its keyword tensors, where a marker tells them.",
            nullable=True,
        ),
        Column("gpu_start_ns", pa.int64(), "First start of the kernels in its subtree.", nullable=True),
        Column("gpu_end_ns", pa.int64(), "Last end of the kernels in its subtree.", nullable=True),
        Column("gpu_time_ns", pa.int64(), "Sum of its subtree's kernels."),
        Column("gpu_self_time_ns", pa.int64(), "Sum of the kernels attributed to this call itself."),
        Column(
            "gpu_busy_ns",
            pa.int64(),
            "Time in which at least one kernel of its subtree ran: union, not sum.",
        ),
        Column("kernel_count", pa.int32(), "Kernels in its subtree."),
        Column("kernel_self_count", pa.int32(), "Kernels of this call itself."),
        Column(
            "launch_time_ns",
            pa.int64(),
            "Host time of its subtree's launches that put work on the device themselves, from each call's begin to its "
            "return: also what it was blocked for, which the analysis launches tells apart; replays count for none.",
        ),
    ),
    sorted_by=("module_id", "start_ns"),
)


def build(trace: Trace) -> Iterator[pa.Table]:
    """The calls of known modules."""
    whole = _whole_columns(trace)
    shapes = _Shapes(trace)
    for at in pieces(np.arange(trace.ids.call_order.size)):
        rows = trace.ids.call_order[at]
        columns = {name: column[rows] for name, column in whole.items()}
        nothing = columns["kernel_count"] == 0
        yield SPEC.table(
            {
                **_host(trace, rows),
                **shapes.of(rows),
                **columns,
                "call_id": at,
                "parent_call_id": or_null(columns["parent_call_id"]),
                "step_id": or_null(columns["step_id"]),
                "gpu_start_ns": pa.array(columns["gpu_start_ns"], mask=nothing),
                "gpu_end_ns": pa.array(columns["gpu_end_ns"], mask=nothing),
            }
        )


def _host(trace: Trace, rows: Rows) -> dict[str, object]:
    """Which module each call called, where and when."""
    calls, recording = trace.evidence.calls, trace.evidence.recording
    at = calls.range_row[rows]
    ranges = recording.ranges.select(["start_ns", "thread"]).take(pa.array(at))
    thread = integers(ranges, "thread")
    return {
        "module_id": calls.module[rows],
        "module": category(calls.module[rows], [module.path for module in calls.modules]),
        "phase": category(_phase(trace)[rows], PHASES),
        "pid": recording.threads.pid[thread].astype(np.int32),
        "rank": or_null(recording.process_rank[recording.threads.process[thread]]),
        "tid": recording.threads.tid[thread].astype(np.int32),
        "start_ns": ranges.column("start_ns"),
        "end_ns": trace.evidence.endings.end_ns[at],
    }


def _whole_columns(trace: Trace) -> dict[str, NDArray[Any]]:
    """Columns whose values depend on other calls, for every call of the trace."""
    calls, recording = trace.evidence.calls, trace.evidence.recording
    start = integers(recording.ranges, "start_ns")[calls.range_row]
    end = trace.evidence.endings.end_ns[calls.range_row]
    thread = integers(recording.ranges, "thread")[calls.range_row]
    process = recording.threads.process[thread]
    step = step_at(trace.evidence.steps, thread, process, start, end).astype(np.int32)
    del start, end, thread
    order = trace.ids.call_order
    occurrence = np.zeros(calls.start.size, dtype=np.int32)
    occurrence[order] = _occurrence(process[order], calls.module[order] * len(PHASES) + _phase(trace)[order])
    parent = lookup(trace.ids.call_id, _known_parent(trace))
    return {"parent_call_id": parent, "step_id": step, "occurrence": occurrence, **_device(trace)}


def _phase(trace: Trace) -> NDArray[np.int8]:
    """What every call is part of, as a place in PHASES; whatever it says itself, a capture is one."""
    calls = trace.evidence.calls
    said = [getattr(marker, "phase", PHASES[0]) for marker in trace.evidence.decoded.markers]
    phase = np.array([PHASES.index(phase) for phase in said], np.int8)[calls.marker]
    phase[calls.captured] = PHASES.index("capture")
    return phase


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
    sorted_process, sorted_module = process[order], module[order]
    fresh = np.ones(module.size, dtype=bool)
    fresh[1:] = (sorted_process[1:] != sorted_process[:-1]) | (sorted_module[1:] != sorted_module[:-1])
    places = np.arange(module.size)
    count[order] = places - np.maximum.accumulate(np.where(fresh, places, 0)) + 1
    return count


class _Shapes:
    """Shapes and types of calls, taken from the distinct markers."""

    def __init__(self, trace: Trace) -> None:
        self._calls = trace.evidence.calls
        markers = trace.evidence.decoded.markers
        self._inputs = _of_markers(markers, lambda found: found.inputs, SHAPES)
        self._outputs = _of_markers(markers, lambda found: found.outputs, SHAPES)
        self._kwargs = _of_markers(markers, lambda found: list(found.kwargs.items()), _KWARGS)
        self._types = _of_markers(markers, lambda found: found.types or None, TYPES)
        self._kwarg_types = _of_markers(markers, lambda found: list(found.kwarg_types.items()) or None, _KWARG_TYPES)

    def of(self, rows: Rows) -> dict[str, object]:
        """The shapes and types of some calls."""
        marker, outputs = self._calls.marker[rows], self._calls.outputs[rows]
        told = np.where(outputs >= 0, outputs, marker)
        return {
            "inputs": self._inputs.take(pa.array(marker)),
            "outputs": self._outputs.take(pa.array(told)),
            "kwargs": self._kwargs.take(pa.array(marker)),
            "input_types": self._types.take(pa.array(marker)),
            "output_types": self._types.take(pa.array(outputs, mask=outputs < 0)),
            "kwarg_types": self._kwarg_types.take(pa.array(marker)),
        }


def _of_markers(markers: list[Marker], said: Callable[[ModuleMarker], object], type_: pa.DataType) -> pa.Array:
    return pa.array([said(marker) if isinstance(marker, ModuleMarker) else None for marker in markers], type_)


def _device(trace: Trace) -> dict[str, Ints]:
    """What the kernels of each call and of the calls inside it did on the device."""
    work, owner = trace.evidence.recording.work, trace.owners.call
    owned = np.flatnonzero(owner >= 0)
    owner = owner[owned]
    start, end = integers(work, "start_ns")[owned], integers(work, "end_ns")[owned]
    parent, depth = trace.evidence.calls.parent, trace.evidence.calls.depth
    low, high = np.arange(parent.size), subtree_ends(parent, depth)
    self_time, self_count, first, last = (np.full(parent.size, fill) for fill in (0, 0, -(_NEVER + 1), _NEVER))
    np.add.at(self_time, owner, trace.own_ns[owned])
    np.add.at(self_count, owner, 1)
    np.minimum.at(first, owner, start)
    np.maximum.at(last, owner, end)
    return {
        "gpu_start_ns": minima(first, low, high, _NEVER),
        "gpu_end_ns": maxima(last, low, high, _NEVER),
        "gpu_time_ns": sums(self_time, low, high),
        "gpu_self_time_ns": self_time,
        "gpu_busy_ns": union_within(owner, (parent, depth, high), start, end),
        "kernel_count": sums(self_count, low, high).astype(np.int32),
        "kernel_self_count": self_count.astype(np.int32),
        "launch_time_ns": sums(_launch_time(trace, owned[~trace.evidence.launched.replayed[owned]]), low, high),
    }


def _launch_time(trace: Trace, owned: Ints) -> Ints:
    """Host time of the launches of every call itself; a replay is not launched by the calls that it runs."""
    evidence = trace.evidence
    useful = np.zeros(evidence.recording.launches.num_rows + 1, dtype=bool)
    on_device = owned[evidence.recording.on_device[owned]]
    useful[evidence.launched.launch[on_device]] = True
    call = evidence.call_at_launch
    rows = np.flatnonzero(useful[:-1] & (call >= 0))
    launches = evidence.recording.launches
    spent = integers(launches, "end_ns")[rows] - integers(launches, "start_ns")[rows]
    total = np.zeros(evidence.calls.parent.size, dtype=np.int64)
    np.add.at(total, call[rows], spent)
    return total

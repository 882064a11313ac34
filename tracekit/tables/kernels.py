"""``kernels``: every GPU activity, with its module or the cause why it has none; ``kernel_modules``: all it serves."""

import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.arrays.codes import lookup
from tracekit.arrays.slices import members
from tracekit.arrays.types import Ints, Rows
from tracekit.attribution import METHOD_NAMES
from tracekit.attribution.base import Trace
from tracekit.causes import NAME_OF_CAUSE, NAMES
from tracekit.flops.kernels import why
from tracekit.flops.tensors import MULTIPLIED
from tracekit.markers.base import Shapes
from tracekit.markers.phases import COMPILE, PHASES, RECOMPUTE
from tracekit.recording.axis import range_around
from tracekit.recording.tables import CPU_OP, GPU_METRICS, WORK_KINDS
from tracekit.recording.values import COPY_KINDS, innermost_line
from tracekit.schema import tables
from tracekit.tables.base import Columns, category, module_paths, or_null, pieces
from tracekit.trace.collectives import collectives_of
from tracekit.trace.compiled.work import Shares
from tracekit.trace.evidence import Evidence
from tracekit.trace.gpu_metrics import Sampled, sampled
from tracekit.trace.operators import operator_ranges
from tracekit.trace.steps import step_at

_NO_LAUNCH = np.iinfo(np.int64).min

SPEC = tables.Kernels.SPEC

#: Place, launch configuration, sizes and ids of graphs are as the recording has them.
_UNCHANGED = (
    *("device", "context", "stream", "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "registers"),
    *("static_smem_bytes", "dynamic_smem_bytes", "bytes", "graph_id", "graph_exec_id", "graph_node_id"),
)


def build(trace: Trace) -> Iterator[pa.Table]:
    """All device work, sorted."""
    evidence = trace.evidence
    launches, captured, phase, paths = _launches(evidence), _Captured(evidence), _phase(trace), module_paths(trace)
    others = (_stacks(evidence), _operators(evidence), captured.columns, _collectives(evidence, launches, captured))
    metrics = sampled(evidence.recording)
    for rows in pieces(trace.ids.kernel_order):
        columns = _device(trace, rows) | _owner(trace, phase, paths, rows) | _launch(evidence, launches, rows)
        for more in others:
            columns |= more(rows)
        yield SPEC.table(columns | _metrics(metrics, rows))


def _device(trace: Trace, rows: Rows) -> dict[str, object]:
    recording = trace.evidence.recording
    work = recording.work.take(rows)
    columns: dict[str, object] = {name: or_null(getattr(work, name)) for name in _UNCHANGED}
    return columns | {
        "correlation_id": or_null(np.where(work.kind == CPU_OP, -1, work.correlation_id)),
        "kernel_id": trace.ids.kernel_id[rows],
        "start_ns": work.start_ns,
        "end_ns": work.end_ns,
        "dur_ns": trace.own_ns[rows],
        "kind": category(work.kind, WORK_KINDS),
        "name": category(work.name, recording.names),
        "full_name": category(work.full_name, recording.names),
        "copy_kind": category(work.copy_kind, COPY_KINDS),
        "pid": or_null(lookup(recording.threads.process_pid, work.process)).cast(pa.int32()),
        "rank": or_null(lookup(recording.process_rank, work.process)),
    }


def _owner(trace: Trace, phase: Ints, paths: pa.Array, rows: Rows) -> dict[str, object]:
    owners, module = trace.owners, trace.module[rows]
    return {
        "module_id": or_null(module),
        "module": category(module, paths),
        "call_id": or_null(lookup(trace.ids.call_id, owners.call[rows])),
        "method": category(owners.method[rows], METHOD_NAMES),
        "cause": category(np.array([*NAME_OF_CAUSE, -1])[owners.cause[rows]], NAMES),
        "phase": category(phase[rows], PHASES),
    }


def _phase(trace: Trace) -> Ints:
    evidence, call = trace.evidence, trace.owners.call
    phase = evidence.phase_of_work
    replayed = np.flatnonzero(evidence.by_capture & (call >= 0))
    phase[replayed] = evidence.phase_of_calls[call[replayed]]
    captured = lookup(evidence.phase, evidence.compiled_work.launch)
    own = evidence.launched.replayed & ~evidence.by_capture & ~np.isin(captured, (-1, COMPILE))
    phase[own] = captured[own]
    mapped = np.flatnonzero(evidence.compiled_work.of_work >= 0)
    phase[mapped] = lookup(evidence.phase, evidence.compiled_work.launch[mapped])
    phase[mapped[evidence.compiled_work.shares.recomputes[evidence.compiled_work.of_work[mapped]]]] = RECOMPUTE
    return phase


def _metrics(found: Sampled | None, rows: Rows) -> dict[str, object]:
    if found is None or not found.samples[rows].any():
        return dict.fromkeys(("metric_samples", *(f"{name}_pct" for name in GPU_METRICS)))
    averages = {f"{name}_pct": pa.array(values[rows], from_pandas=True) for name, values in found.averages.items()}
    return averages | {"metric_samples": or_null(found.samples[rows].astype(np.int32), 0)}


class _Launches(NamedTuple):
    """Columns of every launch, and last an entry of work without one."""

    start_ns: Ints
    end_ns: Ints
    tid: Ints
    name: Rows
    range_id: Rows
    step_id: Rows


def _launches(evidence: Evidence) -> _Launches:
    launches, threads, axis = evidence.recording.launches, evidence.recording.threads, evidence.axis
    thread, start, end, name = launches.thread, launches.start_ns, launches.end_ns, launches.name
    step = step_at(evidence.steps, thread, lookup(threads.process, thread), start, end).astype(np.int32)
    step[evidence.phase == COMPILE] = -1
    around = range_around(axis, evidence.nesting, axis.launch_start, axis.launch_end)
    tid = lookup(threads.tid, thread).astype(np.int32)
    unknown, never = np.int32(-1), np.int64(_NO_LAUNCH)
    return _Launches(
        *(np.append(times, never) for times in (start, end)),
        *(np.append(values, unknown) for values in (tid, name, around.astype(np.int32), step)),
    )


def _launch(evidence: Evidence, launches: _Launches, rows: Rows) -> dict[str, object]:
    launch = evidence.launched.launch[rows].astype(np.intp)
    # No API call starts an operator.
    api_call = np.where(evidence.recording.work.kind[rows] == CPU_OP, -1, launch)
    return {
        "tid": or_null(launches.tid.take(launch)),
        "launch_name": category(launches.name.take(launch), evidence.recording.names),
        "launch_start_ns": or_null(launches.start_ns.take(api_call), _NO_LAUNCH),
        "launch_end_ns": or_null(launches.end_ns.take(api_call), _NO_LAUNCH),
        "range_id": or_null(launches.range_id.take(launch)),
        "step_id": or_null(launches.step_id.take(launch)),
    }


def _stacks(evidence: Evidence) -> Columns:
    """The lines of Python around the launch of each kernel."""
    stacks, launch = evidence.recording.stacks, evidence.launched.launch
    if not stacks:
        return lambda _: {"source": None, "stack": None}
    stack_of_launch = np.append(evidence.recording.launches.stack, -1)
    sources: dict[str, int] = {}
    source = np.array([*(sources.setdefault(innermost_line(stack), len(sources)) for stack in stacks), -1])

    def columns(rows: Rows) -> dict[str, object]:
        stack = stack_of_launch.take(launch[rows])
        return {"source": category(source.take(stack), list(sources)), "stack": category(stack, stacks)}

    return columns


class _Captured:
    """The graph capture of nodes of CUDA graphs."""

    def __init__(self, evidence: Evidence) -> None:
        chains, origins = evidence.chains, evidence.origins
        self._of_work = chains.of_work
        self._original, self._node_id = np.append(chains.original, np.int32(-1)), chains.node_id
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

    def ranges_around(self, launch_range: Rows) -> Rows:
        """The range around the launch of each kernel; of those with a node, around the graph capture of that."""
        if not self._node_id.size:
            return launch_range
        return np.where(self._of_work < 0, launch_range, self._range[self._of_work])


def _collectives(evidence: Evidence, launches: _Launches, captured: _Captured) -> Columns:
    """The collectives of work, and the bytes of collectives and copies."""
    launch, moved_by_copies = evidence.launched.launch, evidence.recording.work.bytes
    collective, distinct = collectives_of(
        evidence.recording,
        evidence.collectives,
        lambda: captured.ranges_around(launches.range_id.take(launch.astype(np.intp))),
    )

    def columns(rows: Rows) -> dict[str, object]:
        of_work = collective[rows]
        if not (of_work >= 0).any():
            return dict.fromkeys(("collective", "dtype", "group_size", "communicator"))
        at = pa.array(of_work, mask=of_work < 0)
        kind, moved, dtype, group_size, communicator = zip(*distinct, strict=True)
        texts = {"collective": kind, "dtype": dtype, "communicator": communicator}
        return {
            "bytes": pc.coalesce(or_null(moved_by_copies[rows]), pa.array(moved, pa.int64()).take(at)),
            "group_size": pa.array(group_size, pa.int32()).take(at),
            **{name: pa.array(text, pa.string()).dictionary_encode().take(at) for name, text in texts.items()},
        }

    return columns


def _operators(evidence: Evidence) -> Columns:
    """The operators that launched work."""
    operators, kind, work_name = evidence.operators, evidence.recording.work.kind, evidence.recording.work.name
    text_of_work = _text_of_work(evidence)
    known = len(operators.distinct)
    own_names = evidence.recording.names if (kind == CPU_OP).any() else []
    row, names = _numbered([*(operator.name for operator in operators.distinct), *own_names])
    of_name, of_text = np.append(row[known:], -1), np.append(row[:known], -1)[operators.of_text]
    shapes_row, shapes = _numbered([_json(operator.inputs) for operator in operators.distinct])
    types_row, types = _numbered([_json(operator.types) for operator in operators.distinct])
    shapes_of_text, types_of_text = (np.append(row, -1)[operators.of_text] for row in (shapes_row, types_row))

    def columns(rows: Rows) -> dict[str, object]:
        text = text_of_work[rows]
        name = of_text[text]
        on_cpu = np.flatnonzero(kind[rows] == CPU_OP)
        if on_cpu.size:
            own = of_name[work_name[rows[on_cpu]]]
            unmarked = own != name[on_cpu]
            name[on_cpu] = own
            text[on_cpu[unmarked]] = -1
        return {
            "op": category(name, names),
            "op_shapes": category(shapes_of_text[text], shapes),
            "op_types": category(types_of_text[text], types),
            "op_seq": or_null(operators.number[text]),
        }

    return columns


def _numbered(texts: Sequence[str | None]) -> tuple[Rows, list[str]]:
    """For each text its place among the distinct ones, -1 for None; and these."""
    places = {text: place for place, text in enumerate(dict.fromkeys(text for text in texts if text is not None))}
    return np.array([-1 if text is None else places[text] for text in texts], np.int64), list(places)


def _json(values: Shapes | tuple[str, ...] | None) -> str | None:
    return None if values is None else json.dumps(values)


def _text_of_work(evidence: Evidence) -> Rows:
    launched, chains, origins = evidence.launched, evidence.chains, evidence.origins
    ranges = operator_ranges(evidence.recording, evidence.axis, evidence.operators)
    if not ranges.text.size:
        return np.full(launched.launch.size, -1, dtype=np.int64)
    at_launch = ranges.texts_around(evidence.axis.launch_start, evidence.axis.launch_end)
    text = lookup(at_launch, launched.launch)
    captured = np.full(origins.start.size, -1, dtype=np.int64)
    known = np.flatnonzero(origins.certain)
    captured[known] = ranges.texts_around(origins.start[known], origins.end[known])
    return np.where(launched.replayed, lookup(captured, chains.of_work), text)


def build_modules(trace: Trace) -> Iterator[pa.Table]:
    """One row of weight 1 for every kernel that has a module, and several for one that serves several."""
    module, shares = (np.full(trace.module.size, -1, dtype=np.int32) for _ in range(2))
    module[trace.ids.kernel_id] = trace.module
    shares[trace.ids.kernel_id] = np.where(trace.module >= 0, trace.shares_of_work, -1)
    for rows in pieces(np.flatnonzero(module >= 0)):
        yield tables.KernelModules.SPEC.table(_shared(trace.shares, rows, module[rows], shares[rows]))


def _shared(shares: Shares, kernel: Rows, module: Rows, of_kernel: Rows) -> dict[str, object]:
    """Rows of some kernels; those without shares (negative row) serve one module."""
    shared = of_kernel >= 0
    if not shared.any():
        nothing = np.full(kernel.size, -1)
        columns = {"kernel_id": kernel, "module_id": module, "weight": np.ones(kernel.size)}
        return columns | _flops(shares, nothing, nothing)
    number = np.ones(kernel.size, dtype=np.int64)
    number[shared] = np.diff(shares.first)[of_kernel[shared]]
    at, place = members(np.zeros(kernel.size, dtype=np.int64), number)
    rows = np.flatnonzero(shared[at])
    source = shares.first[of_kernel[at[rows]]] + place[rows]
    of_row, weight, flops, note = module[at], np.ones(at.size), np.full(at.size, -1), np.full(at.size, -1)
    of_row[rows], weight[rows] = shares.module[source], shares.weight[source]
    flops[rows], note[rows] = shares.flops[source], shares.note[source]
    return {"kernel_id": kernel[at], "module_id": of_row, "weight": weight} | _flops(shares, flops, note)


def _flops(shares: Shares, flops: Ints, note: Ints) -> dict[str, object]:
    is_dtype = np.array([*(text in MULTIPLIED for text in shares.notes), False])[note]
    return {
        "flops": or_null(flops),
        "flops_dtype": category(np.where((flops > 0) & is_dtype, note, -1), shares.notes),
        "flops_unknown": category(np.where(flops < 0, note, -1), [why(text) for text in shares.notes]),
    }

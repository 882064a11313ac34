"""``kernels``: every GPU activity, with its module or the cause why it has none."""

import json
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.arrays.codes import lookup
from tracekit.arrays.types import Ints, Rows
from tracekit.attribution import METHOD_NAMES
from tracekit.attribution.base import Trace
from tracekit.causes import NAME_OF_CAUSE, NAMES
from tracekit.markers.base import Shapes
from tracekit.markers.phases import COMPILE, PHASES, RECOMPUTE
from tracekit.recording.axis import range_around
from tracekit.recording.stacks import innermost_line
from tracekit.recording.tables import COPY_KINDS, CPU_OP, WORK_KINDS
from tracekit.schema import CATEGORY, Column, Nullable, TableSpec
from tracekit.tables.base import category, module_paths, or_null, pieces
from tracekit.trace.collectives import collectives_of
from tracekit.trace.evidence import Evidence
from tracekit.trace.gpu_metrics import Sampled, sampled
from tracekit.trace.operators import operator_ranges
from tracekit.trace.steps.steps import step_at

_NO_LAUNCH = np.iinfo(np.int64).min

_OF_KERNELS = "; null for other work than kernels."
#: Where it ran.
_PLACE = (
    Nullable("device", pa.int32(), "Number of the GPU, as in the report; null if unknown."),
    Nullable("context", pa.int32(), "Id of the CUDA context, unique within its process; null if unknown."),
    Nullable("stream", pa.int64(), "Id of the CUDA stream, unique within its context; null if unknown."),
)
#: Its launch configuration, and what it copies or sets.
_SIZES = (
    *(Nullable(f"grid_{axis}", pa.int32(), f"Grid size in {axis}, in blocks{_OF_KERNELS}") for axis in "xyz"),
    *(Nullable(f"block_{axis}", pa.int32(), f"Block size in {axis}, in threads{_OF_KERNELS}") for axis in "xyz"),
    Nullable("registers", pa.int32(), f"Registers per thread{_OF_KERNELS}"),
    Nullable("static_smem_bytes", pa.int32(), f"Static shared memory per block{_OF_KERNELS}"),
    Nullable("dynamic_smem_bytes", pa.int32(), f"Dynamic shared memory per block{_OF_KERNELS}"),
    Nullable(
        "bytes",
        pa.int64(),
        "Bytes copied or set; of a collective the whole result of an all_gather, the whole input of a reduce_scatter "
        "or all_to_all, what a send_recv sends or receives (the larger), or its message. Null for other kernels, and "
        "if the report does not record it.",
    ),
)
_COLLECTIVE = (
    Nullable(
        "collective",
        CATEGORY,
        "Collective that it runs: all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce, send, recv, "
        "send_recv (several in a group), dispatch and combine (of tokens, to experts and back), barrier; unknown if "
        "its name does not record which. Null for all work that is no communication.",
    ),
    Nullable("dtype", CATEGORY, "Dtype of that collective's elements; null if the report does not record it."),
    Nullable("group_size", pa.int32(), "How many ranks take part in that collective; null if unknown."),
    Nullable("communicator", CATEGORY, "Its process group, or NCCL's id of its communicator; null if unknown."),
)
_GRAPH_IDS = (
    Nullable("graph_id", pa.int64(), "CUDA graph it ran from; null outside graphs or if unknown."),
    Nullable("graph_exec_id", pa.int64(), "Instance of that CUDA graph; null outside graphs or if unknown."),
    Nullable("graph_node_id", pa.int64(), "Node of that CUDA graph; null outside graphs or if unknown."),
)

#: The operator that launched it.
_OPERATOR = (
    Nullable(
        "op",
        CATEGORY,
        "Innermost operator around its launch (of torch.profiler; of emit_nvtx, nsys --pytorch or PyProf), such as "
        "aten::addmm; for graph work, around the graph capture of its node; of a cpu_op, its own name. Null if "
        "unknown.",
    ),
    Nullable(
        "op_shapes",
        CATEGORY,
        "Shapes of that operator's inputs, as JSON: [[8, 16], [16, 4], []]; inputs that are no tensors are empty. Null "
        "if its marker does not record them.",
    ),
    Nullable(
        "op_types",
        CATEGORY,
        'Dtypes of that operator\'s inputs, as JSON: ["float16", "float16", ""]; inputs that are no tensors are empty. '
        "Null if its marker does not record them; Chrome traces with record_shapes do.",
    ),
    Nullable(
        "op_seq",
        pa.int64(),
        "Sequence number of autograd in that operator's marker; null if it has none. An operator and the backward node "
        "that it makes have the same.",
    ),
)

_SAMPLES = "of its device inside it, in per cent; null without samples."
_METRICS = (
    Nullable("metric_samples", pa.int32(), "How many samples of GPU metrics fall inside a kernel; null if none."),
    Nullable("sm_active_pct", pa.float64(), f"Average of the samples of SMs Active {_SAMPLES}"),
    Nullable("tensor_active_pct", pa.float64(), f"Average of the samples of Tensor Active {_SAMPLES}"),
    Nullable("dram_read_pct", pa.float64(), f"Average of the samples of DRAM Read Bandwidth {_SAMPLES}"),
    Nullable("dram_write_pct", pa.float64(), f"Average of the samples of DRAM Write Bandwidth {_SAMPLES}"),
)

SPEC = TableSpec(
    "kernels",
    "One row per piece of device work, each exactly once, sorted by (module_id, start_ns); work "
    "without a module comes last. For work replayed from a CUDA graph, thread, launch, range and "
    "step are those of the replay, module and call those of the graph capture; where plain ranges are the modules, "
    "these are the range around the replay, and below it what opened inside the graph capture.",
    (
        Column(
            "kernel_id", pa.int64(), "Unique id: the position by start time in the report, plus the report's first_id."
        ),
        Column(
            "kind",
            CATEGORY,
            "kernel, memcpy, memset, graph (a CUDA graph traced as a whole) or cpu_op (an operator, in a run without a "
            "GPU).",
        ),
        Nullable("name", CATEGORY, "Short name; null if unknown."),
        Nullable("full_name", CATEGORY, "Name with template arguments and parameters; null if unknown."),
        Column(
            "start_ns",
            pa.int64(),
            "Start on the device (of a cpu_op on its thread), in ns since the start of the session.",
        ),
        Column("end_ns", pa.int64(), "End, on the same clock."),
        Column(
            "dur_ns",
            pa.int64(),
            "Duration: end_ns - start_ns, for a cpu_op without the operators it called. Durations add up; no time "
            "counts twice.",
        ),
        *_PLACE,
        Nullable("pid", pa.int32(), "Process id; null if the report does not record it."),
        Nullable("rank", pa.int32(), "Rank of the process in its job; null if unknown."),
        Nullable("tid", pa.int32(), "Id of the thread that launched it; null if its launch is unknown."),
        Nullable(
            "correlation_id",
            pa.int64(),
            "Id that links it to its launch, unique within its process; null if the report has none.",
        ),
        Nullable("launch_name", CATEGORY, "Name of the API call that launched it; null if unknown."),
        Nullable("launch_start_ns", pa.int64(), "Start of that API call on the host; null if unknown."),
        Nullable("launch_end_ns", pa.int64(), "Return of that API call on the host; null if unknown."),
        Nullable(
            "source",
            CATEGORY,
            "Innermost function of Python around that call that is no part of torch: file:line function, where the "
            "line is that of its def in Chrome traces (with_stack), the one that ran in reports of nsys "
            "(--python-backtrace, --python-sampling). Null if none was recorded, as for what a thread of autograd "
            "launches.",
        ),
        Nullable(
            "stack",
            CATEGORY,
            "All such functions around that call, the outermost first, between semicolons; of very deep or very many "
            "distinct stacks only the innermost. Null where source is.",
        ),
        Nullable(
            "module_id",
            pa.int32(),
            "Module it belongs to, of several the one that it serves most; null if unknown, see cause.",
        ),
        Nullable("module", CATEGORY, "Path of that module."),
        Nullable(
            "call_id",
            pa.int64(),
            "Innermost call it belongs to; for graph work, the call that ran during graph capture (by method "
            "graph_launch, and where plain ranges are the modules, that around the replay; by annotated, that in the "
            "replay). Null if "
            "unknown, and if only the module is known.",
        ),
        Nullable(
            "method",
            CATEGORY,
            "How its module was found: annotated (torch wrote it on the work of a CUDA graph), compiled (by the kernel "
            "map of the compiled graph that launched it; kernel_modules lists all modules that it serves), range "
            "(around the launch), backward (by the sequence number of the autograd node that launched it), "
            "graph_node (by the graph capture of its node), graph_order "
            "(by the order of launches in the graph capture), graph_capture (a CUDA graph traced as a whole: the call "
            "that holds its graph capture, for everything in it), graph_launch (a CUDA graph with an unknown graph "
            "capture: the call that launched it, for everything in it), autograd_thread (launched by an autograd "
            "thread: the range of another thread that waited for it, or what ran inside of that) or aligned (by its "
            "certain counterpart in a marked run, parse --like); null if it was not found.",
        ),
        Nullable("cause", CATEGORY, "Why its module was not found; null exactly where method is set."),
        Nullable(
            "phase",
            CATEGORY,
            "What the program did when it launched it: forward, backward, recompute, optimizer, data (loading) or "
            "compile (torch.compile at work); of replayed work, the phase of its graph capture. Null if unknown.",
        ),
        *_OPERATOR,
        Nullable(
            "range_id",
            pa.int64(),
            "Innermost NVTX range of any kind around its launch; for graph work, the range around the replay. Null if "
            "there is none.",
        ),
        Nullable(
            "step_id",
            pa.int64(),
            "Step it was launched in: the innermost on its thread, otherwise the only one open in its process; null "
            "outside steps and for compilation. If steps are not marked, only threads of replicas and, in training, "
            "threads that run no forward pass of their own take the step of another thread.",
        ),
        *_SIZES,
        *_COLLECTIVE,
        Nullable("copy_kind", CATEGORY, "Direction of a copy, such as Host-to-Device; null for other work."),
        *_GRAPH_IDS,
        Nullable(
            "original_graph_node_id",
            pa.int64(),
            "Node created by the graph capture, of which its node is a copy, directly or through other copies; null if "
            "unknown.",
        ),
        Nullable(
            "capture_range_id",
            pa.int64(),
            "Innermost NVTX range of any kind that was open at the graph capture of its node; null if unknown.",
        ),
        *_METRICS,
    ),
    sorted_by=("module_id", "start_ns"),
)

_UNCHANGED = (*(column.name for column in (*_PLACE, *_SIZES, *_GRAPH_IDS)),)


def build(trace: Trace) -> Iterator[pa.Table]:
    """All device work, sorted."""
    launches, captured = _launches(trace.evidence), _Captured(trace.evidence)
    named, phase, paths = _Operators(trace.evidence), _phase(trace), module_paths(trace)
    collectives, stacks = _Collectives(trace.evidence, launches, captured), _Stacks(trace.evidence)
    metrics = sampled(trace.evidence.recording)
    for rows in pieces(trace.ids.kernel_order):
        yield SPEC.table(
            _device(trace, rows)
            | _owner(trace, phase, paths, rows)
            | _launch(trace.evidence, launches, rows)
            | stacks.columns(rows)
            | named.columns(rows)
            | captured.columns(rows)
            | collectives.columns(rows)
            | _metrics(metrics, rows)
        )


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
        return dict.fromkeys(column.name for column in _METRICS)
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
    launches, threads = evidence.recording.launches, evidence.recording.threads
    thread = launches.thread
    start, end, name = launches.start_ns, launches.end_ns, launches.name
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
    launch = evidence.launched.launch[rows].astype(np.intp)
    # No API call starts an operator.
    kind = evidence.recording.work.kind[rows]
    api_call = np.where(kind == CPU_OP, -1, launch)
    return {
        "tid": or_null(launches.tid.take(launch)),
        "launch_name": category(launches.name.take(launch), evidence.recording.names),
        "launch_start_ns": or_null(launches.start_ns.take(api_call), _NO_LAUNCH),
        "launch_end_ns": or_null(launches.end_ns.take(api_call), _NO_LAUNCH),
        "range_id": or_null(launches.range_id.take(launch)),
        "step_id": or_null(launches.step_id.take(launch)),
    }


class _Stacks:
    """The lines of Python around the launch of each kernel."""

    def __init__(self, evidence: Evidence) -> None:
        recording = evidence.recording
        self._stack, self._launch = np.append(recording.launches.stack, -1), evidence.launched.launch
        self._stacks, sources = recording.stacks, dict[str, int]()
        rows = [sources.setdefault(innermost_line(stack), len(sources)) for stack in self._stacks]
        self._source, self._sources = np.array([*rows, -1]), list(sources)

    def columns(self, rows: Rows) -> dict[str, object]:
        """The lines of some work."""
        if not self._stacks:
            return {"source": None, "stack": None}
        stack = self._stack.take(self._launch[rows])
        return {"source": category(self._source.take(stack), self._sources), "stack": category(stack, self._stacks)}


class _Captured:
    """The graph capture of nodes of CUDA graphs."""

    def __init__(self, evidence: Evidence) -> None:
        chains, origins = evidence.chains, evidence.origins
        self._of_work = chains.of_work
        self._original = np.append(chains.original, np.int32(-1))
        self._node_id = chains.node_id
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


class _Collectives:
    """The collectives in the work of a recording."""

    def __init__(self, evidence: Evidence, launches: _Launches, captured: _Captured) -> None:
        launch = evidence.launched.launch
        self._moved = evidence.recording.work.bytes
        self._of_work, self._distinct = collectives_of(
            evidence.recording,
            evidence.collectives,
            lambda: captured.ranges_around(launches.range_id.take(launch.astype(np.intp))),
        )

    def columns(self, rows: Rows) -> dict[str, object]:
        """The collectives of some work, and the bytes of collectives and copies."""
        of_work = self._of_work[rows]
        if not (of_work >= 0).any():
            return dict.fromkeys(column.name for column in _COLLECTIVE)
        at = pa.array(of_work, mask=of_work < 0)
        kind, moved, dtype, group_size, communicator = zip(*self._distinct, strict=True)
        texts = {"collective": kind, "dtype": dtype, "communicator": communicator}
        return {
            "bytes": pc.coalesce(or_null(self._moved[rows]), pa.array(moved, pa.int64()).take(at)),
            "group_size": pa.array(group_size, pa.int32()).take(at),
            **{name: pa.array(text, pa.string()).dictionary_encode().take(at) for name, text in texts.items()},
        }


class _Operators:
    """The operators that launched the work of a recording."""

    def __init__(self, evidence: Evidence) -> None:
        recording, operators = evidence.recording, evidence.operators
        self._text = _text_of_work(evidence)
        self._kind, self._work_name = recording.work.kind, recording.work.name
        names: dict[str, int] = {}
        of_operator = [names.setdefault(operator.name, len(names)) for operator in operators.distinct]
        own = recording.names if (self._kind == CPU_OP).any() else []
        self._of_name = np.array([*(names.setdefault(name, len(names)) for name in own), -1])
        self._of_text = np.array([*of_operator, -1])[operators.of_text]
        shapes: dict[str, int] = {}
        number = [-1 if item.inputs is None else _number(shapes, item.inputs) for item in operators.distinct]
        self._shapes_of_text = np.array([*number, -1])[operators.of_text]
        types: dict[str, int] = {}
        number = [-1 if item.types is None else _number(types, item.types) for item in operators.distinct]
        self._types_of_text, self._types = np.array([*number, -1])[operators.of_text], list(types)
        self._names, self._shapes, self._number = list(names), list(shapes), operators.number

    def columns(self, rows: Rows) -> dict[str, object]:
        """The operators of some work."""
        text = self._text[rows]
        name = self._of_text[text]
        on_cpu = np.flatnonzero(self._kind[rows] == CPU_OP)
        if on_cpu.size:
            own = self._of_name[self._work_name[rows[on_cpu]]]
            unmarked = own != name[on_cpu]
            name[on_cpu] = own
            text[on_cpu[unmarked]] = -1
        return {
            "op": category(name, self._names),
            "op_shapes": category(self._shapes_of_text[text], self._shapes),
            "op_types": category(self._types_of_text[text], self._types),
            "op_seq": or_null(self._number[text]),
        }


def _number(numbers: dict[str, int], inputs: Shapes | tuple[str, ...]) -> int:
    return numbers.setdefault(json.dumps(inputs), len(numbers))


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

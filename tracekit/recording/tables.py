"""The contents of a report as plain columns, whatever its format.

Readers fill it, everything after them reads it: ``recording.ranges.start_ns``. Columns are NumPy arrays in which -1 is
null. Texts and names are stored once and referred to by their row, so that nothing downstream handles strings per
event. Times are nanoseconds since the start of the session and may be negative.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Self, TypeAlias, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tracekit.arrays.types import Flags, Floats, Ints, Rows
from tracekit.recording.provenance import Gpu, LossCounters, MissingData, Rank, Source
from tracekit.recording.values import Collective

PUSH_POP, START_END = 0, 1
RANGE_KINDS = ("push_pop", "start_end")
KERNEL, MEMCPY, MEMSET, GRAPH, CPU_OP = range(5)
WORK_KINDS = ("kernel", "memcpy", "memset", "graph", "cpu_op")

#: API calls that replay a CUDA graph.
_GRAPH_LAUNCHES = ("cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch")
GRAPH_CREATED, GRAPH_CLONED, GRAPH_INSTANTIATED = range(3)

#: A ``forward_thread`` that is reported, but not known to be in the report.
NOT_RECORDED = -2
#: The time of a record that has none.
NO_TIME = int(np.iinfo(np.int64).min)

Int8: TypeAlias = Annotated[Ints, np.int8]
Int32: TypeAlias = Annotated[Ints, np.int32]
Int64: TypeAlias = Annotated[Ints, np.int64]
Float64: TypeAlias = Annotated[Floats, np.float64]
Bool: TypeAlias = Annotated[Flags, np.bool_]


@dataclass(frozen=True, slots=True)
class Columns:
    """Rows as columns of one length: NumPy arrays of a declared type, and Arrow arrays of payloads."""

    def __post_init__(self) -> None:
        """Brings every column to its declared type; one of equal values takes no memory."""
        for name, dtype in _dtypes(type(self)).items():
            values = getattr(self, name)
            if not _is_constant(values):
                object.__setattr__(self, name, _stored(values, dtype))
        lengths = {name: len(values) for name in _names(type(self)) if (values := getattr(self, name)) is not None}
        if len(set(lengths.values())) > 1:
            raise TypeError(f"{type(self).__name__} has columns of different lengths: {lengths}")

    @classmethod
    def of(cls, **columns: NDArray[Any] | pa.Array | None) -> Self:
        """From some of its columns; the others hold only nulls, which take no memory."""
        rows = max(len(values) for values in columns.values() if values is not None)
        nulls = {name: _nulls(dtype, rows) for name, dtype in _dtypes(cls).items() if name not in columns}
        return cls(**nulls, **columns)

    @classmethod
    def empty(cls) -> Self:
        """Without rows."""
        return cls(**{name: np.empty(0, dtype) for name, dtype in _dtypes(cls).items()})

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """The rows of several, one after the other."""
        filled = [part for part in parts if len(part)]
        if len(filled) <= 1:
            return filled[0] if filled else cls.empty()
        return cls(**{name: _concatenated([getattr(part, name) for part in filled], filled) for name in _names(cls)})

    @classmethod
    def dtype(cls, column: str) -> np.dtype[Any]:
        """The declared type of one of its NumPy columns."""
        return _dtypes(cls)[column]

    def __len__(self) -> int:
        return len(getattr(self, _names(type(self))[0]))

    def take(self, rows: Rows) -> Self:
        """Some of the rows, or all in another order."""
        return type(self)(**{name: _taken(getattr(self, name), rows) for name in _names(type(self))})

    def cut(self, rows: slice) -> Self:
        """Rows that follow each other, which are not copied."""
        columns = {name: getattr(self, name) for name in _names(type(self))}
        return type(self)(**{name: None if values is None else values[rows] for name, values in columns.items()})

    def filter(self, keep: Flags) -> Self:
        """The rows to keep."""
        return self if bool(keep.all()) else self.take(np.flatnonzero(keep))

    def in_order(self, order: Rows) -> Self:
        """All rows in another order; most have it already."""
        return self if bool((order[1:] > order[:-1]).all()) else self.take(order)


def _names(columns: type[Columns]) -> tuple[str, ...]:
    return tuple(column.name for column in fields(columns))


def _dtypes(columns: type[Columns]) -> dict[str, np.dtype[Any]]:
    return {column.name: np.dtype(get_args(column.type)[1]) for column in fields(columns) if column.default is not None}


def _nulls(dtype: np.dtype[Any], rows: int) -> NDArray[Any]:
    return np.broadcast_to(np.array(0 if dtype == np.bool_ else -1, dtype), rows)


def _is_constant(values: NDArray[Any]) -> bool:
    return values.strides == (0,)


def _stored(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    if values.size > 1 and values[0] == values[-1] and bool((values == values[0]).all()):
        return np.broadcast_to(values[:1].astype(dtype)[0], values.size)
    return values if values.dtype == dtype else values.astype(dtype)


def _taken(values: NDArray[Any] | pa.Array | None, rows: Rows) -> NDArray[Any] | pa.Array | None:
    if values is None:
        return None
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values.take(pa.array(rows))
    return np.broadcast_to(values[0], rows.size) if _is_constant(values) and values.size else values[rows]


def _concatenated(parts: Sequence[Any], of: Sequence[Columns]) -> NDArray[Any] | pa.Array | None:
    if isinstance(parts[0], np.ndarray):
        first = parts[0][:1]
        if all(_is_constant(part) and part[0] == first[0] for part in parts):
            return np.broadcast_to(first[0], sum(map(len, parts)))
        return np.concatenate(parts)
    type_ = next((part.type for part in parts if part is not None), None)
    if type_ is None:
        return None
    filled = [pa.nulls(len(rows), type_) if part is None else part for part, rows in zip(parts, of, strict=True)]
    return pa.chunked_array(filled, type_).combine_chunks()


@dataclass(frozen=True, slots=True)
class Ranges(Columns):
    """Every NVTX interval, sorted by (thread, start, -end).

    Attributes:
        start_ns: Start, in ns since the start of the session.
        end_ns: End, on the same clock.
        open: Whether the report has no end for it; ``end_ns`` is then the last time seen on its thread.
        kind: ``PUSH_POP`` or ``START_END``.
        thread: Row of threads.
        end_thread: Row of threads on which it ended; -1 if that is the same thread.
        domain: Row of domains; -1 for the default domain.
        text: Row of texts; -1 if it has none.
        forward_thread: Row of threads that made an autograd node; -1 if unknown.
        payload_int: Integer payloads; unsigned 64-bit values wrap to two's complement. None if no range has one.
        payload_float: Floating-point payloads. None if no range has one.
        payload_json: Structured payloads as JSON. None if no range has one.
    """

    start_ns: Int64
    end_ns: Int64
    open: Bool
    kind: Int8
    thread: Int32
    end_thread: Int32
    domain: Int32
    text: Int32
    forward_thread: Int32
    payload_int: pa.Array | None = None
    payload_float: pa.Array | None = None
    payload_json: pa.Array | None = None


@dataclass(frozen=True, slots=True)
class Launches(Columns):
    """API calls that may have started device work, sorted by (thread, start, -end).

    Attributes:
        start_ns: Start of the call.
        end_ns: Return of the call.
        thread: Row of threads.
        correlation_id: Links the call to its work, within one process.
        name: Row of names; -1 if unknown.
        kernel: Row of names: the full name of the kernel it launches; -1 if the report does not record it here.
        stack: Row of stacks: the lines of Python around it; -1 if unknown.
    """

    start_ns: Int64
    end_ns: Int64
    thread: Int32
    correlation_id: Int64
    name: Int32
    kernel: Int32
    stack: Int32


@dataclass(frozen=True, slots=True)
class StreamCalls(Columns):
    """What is recorded of API calls about streams and events besides the calls themselves, in any order.

    Attributes:
        process: Row of processes.
        correlation_id: The call, within its process.
        device: Number of the GPU.
        context: Id of the CUDA context.
        stream: Stream that the call waits for, that it lets wait, or on which it records an event.
        recorded_by: Correlation id of the call that recorded the event that it waits for.
        event_context: Context of the stream on which that event was recorded.
        event_stream: That stream.
    """

    process: Int32
    correlation_id: Int64
    device: Int32
    context: Int32
    stream: Int64
    recorded_by: Int64
    event_context: Int32
    event_stream: Int64


@dataclass(frozen=True, slots=True)
class Allocations(Columns):
    """Memory that allocators handed out or took back, sorted by time: on GPUs, if they did there.

    Attributes:
        time_ns: When.
        process: Row of processes.
        thread: Row of threads; -1 for one that is not known.
        device: Number of the GPU; -1 for host memory.
        address: Where that memory begins.
        bytes: How many bytes; negative for what was taken back.
        total_bytes: What the allocator of the device then has handed out in all; -1 where that is not recorded.
    """

    time_ns: Int64
    process: Int32
    thread: Int32
    device: Int32
    address: Int64
    bytes: Int64
    total_bytes: Int64


@dataclass(frozen=True, slots=True)
class Work(Columns):
    """GPU activities (or operators that ran on a CPU), in the order of the report; -1 is unknown or not applicable.

    Attributes:
        kind: ``KERNEL``, ``MEMCPY``, ``MEMSET``, ``GRAPH`` or ``CPU_OP``.
        start_ns: Start on the device.
        end_ns: End on the device.
        process: Row of processes.
        device: Number of the GPU, as in the report.
        context: Id of the CUDA context, unique within its process.
        stream: Id of the CUDA stream, unique within its context.
        correlation_id: Links it to its launch, within one process.
        name: Row of names: the short name.
        full_name: Row of names: the full signature.
        grid_x, grid_y, grid_z: Grid size, in blocks.
        block_x, block_y, block_z: Block size, in threads.
        registers: Registers per thread.
        static_smem_bytes: Static shared memory per block.
        dynamic_smem_bytes: Dynamic shared memory per block.
        bytes: Bytes copied or set.
        copy_kind: Direction of a copy: row of ``COPY_KINDS``.
        pageable: Whether one end of a copy is pageable host memory.
        graph_id: CUDA graph it ran from.
        graph_exec_id: Instance of that CUDA graph.
        graph_node_id: Node of that CUDA graph.
        collective: Row of collectives, where the report records them by kernel.
        annotation: Row of annotations, where torch wrote modules on it.
    """

    kind: Int8
    start_ns: Int64
    end_ns: Int64
    process: Int32
    device: Int32
    context: Int32
    stream: Int64
    correlation_id: Int64
    name: Int32
    full_name: Int32
    grid_x: Int32
    grid_y: Int32
    grid_z: Int32
    block_x: Int32
    block_y: Int32
    block_z: Int32
    registers: Int32
    static_smem_bytes: Int32
    dynamic_smem_bytes: Int32
    bytes: Int64
    copy_kind: Int32
    pageable: Bool
    graph_id: Int64
    graph_exec_id: Int64
    graph_node_id: Int64
    collective: Int32
    annotation: Int32


#: Metrics of a GPU, in per cent of the most that is possible.
GPU_METRICS = ("sm_active", "tensor_active", "dram_read", "dram_write")


@dataclass(frozen=True, slots=True)
class Samples(Columns):
    """Samples of metrics of GPUs, in any order.

    Attributes:
        time_ns: When, on the clock of device work.
        gpu: Number of the GPU in the machine.
        metric: Row of ``GPU_METRICS``.
        value: In per cent.
    """

    time_ns: Int64
    gpu: Int32
    metric: Int8
    value: Float64


@dataclass(frozen=True, slots=True)
class GraphNodes(Columns):
    """Records of the creation of CUDA graph nodes, in any order; a node may have several rows.

    Attributes:
        start_ns: Time of the record; ``NO_TIME`` if unknown.
        thread: Row of threads.
        node_id: The node, unique within its process.
        original_node_id: Node of which it is a copy; -1 if it is none.
    """

    start_ns: Int64
    thread: Int32
    node_id: Int64
    original_node_id: Int64


@dataclass(frozen=True, slots=True)
class Graphs(Columns):
    """Records of the creation of CUDA graphs, in any order.

    Attributes:
        event: ``GRAPH_CREATED``, ``GRAPH_CLONED`` or ``GRAPH_INSTANTIATED``.
        start_ns: Time of the record; ``NO_TIME`` if unknown.
        thread: Row of threads.
        graph_id: The graph, unique within its process.
        original_graph_id: Graph of which it is a copy; -1 if it is none.
        exec_id: Instance that was made from it.
    """

    event: Int8
    start_ns: Int64
    thread: Int32
    graph_id: Int64
    original_graph_id: Int64
    exec_id: Int64


@dataclass(frozen=True, slots=True)
class Threads:
    """The threads and processes that ranges, launches and work refer to by row.

    Attributes:
        pid: Process id of every thread.
        tid: Thread id of every thread.
        process: Row of processes for every thread.
        process_pid: Process id of every process.
    """

    pid: Ints
    tid: Ints
    process: Ints
    process_pid: Ints


@dataclass(frozen=True, slots=True)
class Recording:
    """One report in tracekit's own tables.

    Attributes:
        source: Where it came from.
        threads: Threads and processes, by row.
        ranges: NVTX intervals.
        launches: API calls.
        work: GPU activities, or operators of a CPU.
        graph_nodes: Records of graph nodes.
        graphs: Records of graphs.
        failed: API calls that returned an error, and so started no work.
        stream_calls: Streams and events of API calls; empty where they were not recorded.
        collectives: The distinct collectives of kernels.
        annotations: Rows of the texts of modules that torch wrote together on some work.
        samples: Samples of metrics of GPUs; empty where they were not recorded.
        gpus: The number of the GPU in the machine by (process id, device), where it is recorded; else it is the same.
        os_waits: Calls of the operating system's runtime that wait, on threads that are known; none has an id.
        loading: Loading of kernels by the driver inside other calls, as ``os_waits``.
        stacks: The distinct texts of stacks.
        texts: The distinct texts of ranges.
        domains: The distinct names of NVTX domains.
        names: The distinct names of kernels and API calls.
        process_names: Name of the executable by process id, if known.
        thread_names: Name of the thread by its row, where known.
        devices: The GPU by device number, where known.
        ranks: Ranks of processes, where known.
        missing: What the report does not hold.
        counters: What was lost or corrected while reading.
        allocations: Memory handed out and taken back; empty where they were not recorded.
        records_graphs: Whether reports of its format record how CUDA graphs and their nodes were made.
        graph_captures: The traces of graph captures that were given with the report, and joined it.
        attached_threads: Rows of the threads whose ranges and launches are from these traces.
        inside_ns: For each kernel, its time spent in others that it called, as operators do; None if there
            is only device work, which calls nothing.
    """

    source: Source
    threads: Threads
    ranges: Ranges
    launches: Launches
    work: Work
    texts: list[str]
    domains: list[str]
    names: list[str]
    graph_nodes: GraphNodes = field(default_factory=GraphNodes.empty)
    graphs: Graphs = field(default_factory=Graphs.empty)
    failed: Launches = field(default_factory=Launches.empty)
    stream_calls: StreamCalls = field(default_factory=StreamCalls.empty)
    os_waits: Launches = field(default_factory=Launches.empty)
    loading: Launches = field(default_factory=Launches.empty)
    stacks: list[str] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)
    annotations: list[tuple[int, ...]] = field(default_factory=list)
    samples: Samples = field(default_factory=Samples.empty)
    gpus: Mapping[tuple[int, int], int] = field(default_factory=dict)
    process_names: dict[int, str] = field(default_factory=dict)
    thread_names: dict[int, str] = field(default_factory=dict)
    devices: dict[int, Gpu] = field(default_factory=dict)
    ranks: tuple[Rank, ...] = ()
    missing: tuple[MissingData, ...] = ()
    counters: LossCounters = field(default_factory=LossCounters)
    allocations: Allocations = field(default_factory=Allocations.empty)
    records_graphs: bool = True
    graph_captures: tuple[Source, ...] = ()
    attached_threads: frozenset[int] = frozenset()
    inside_ns: Ints | None = None

    @property
    def call_names(self) -> list[str]:
        """The first of ``names``: those of all API calls, and without many of kernels, which may be far more."""
        last = max(int(calls.name.max(initial=-1)) for calls in (self.launches, self.failed))
        return self.names[: last + 1]

    @property
    def own_ns(self) -> Ints:
        """The time of each kernel, without overlap, so that no time counts twice."""
        whole = self.work.end_ns - self.work.start_ns
        return whole if self.inside_ns is None else whole - self.inside_ns

    @property
    def kernel_names(self) -> list[str]:
        """The distinct names of kernels, with signatures where they are recorded."""
        work = self.work
        rows = np.where(work.full_name >= 0, work.full_name, work.name)[work.kind == KERNEL]
        return [self.names[row] for row in np.unique(rows).tolist() if row >= 0]

    @property
    def on_device(self) -> Flags:
        """Whether each kernel ran on a device."""
        return np.asarray(self.work.kind != CPU_OP)

    @property
    def process_rank(self) -> Ints:
        """Rank of every process; -1 where it is not known."""
        ranks = np.full(self.threads.process_pid.size, -1, dtype=np.int32)
        for rank in self.ranks:
            ranks[rank.process] = rank.rank
        return ranks


def graph_launch_names(names: list[str]) -> list[int]:
    """Rows of the names of API calls that replay a CUDA graph."""
    return names_starting(names, _GRAPH_LAUNCHES)


def names_starting(names: list[str], prefixes: tuple[str, ...]) -> list[int]:
    """Rows of the names that start with one of some prefixes."""
    return [row for row, name in enumerate(names) if name.startswith(prefixes)]

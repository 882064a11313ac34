"""The contents of a report as plain columns, whatever its format.

Readers fill it, everything after them reads it: ``recording.ranges.start_ns``. Columns are NumPy arrays in which -1 is
null. Texts and names are stored once and referred to by their row, so that nothing downstream handles strings per
event. Times are nanoseconds since the start of the session and may be negative.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, NamedTuple, Self, TypeAlias, TypeVar, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tracekit.arrays.intervals import nesting_order, one_axis, parents
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
        lengths = {name: len(values) for name, values in self._columns() if values is not None}
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
        names = [column.name for column in fields(cls)]
        return cls(**{name: _concatenated([getattr(part, name) for part in filled], filled) for name in names})

    @classmethod
    def dtype(cls, column: str) -> np.dtype[Any]:
        """The declared type of one of its NumPy columns."""
        return _dtypes(cls)[column]

    def __len__(self) -> int:
        return len(next(values for _, values in self._columns()))

    def _columns(self) -> Iterator[tuple[str, Any]]:
        return ((column.name, getattr(self, column.name)) for column in fields(self))

    def take(self, rows: Rows) -> Self:
        """Some of the rows, or all in another order."""
        return type(self)(**{name: _taken(values, rows) for name, values in self._columns()})

    def cut(self, rows: slice) -> Self:
        """Rows that follow each other, which are not copied."""
        return type(self)(**{name: None if values is None else values[rows] for name, values in self._columns()})

    def filter(self, keep: Flags) -> Self:
        """The rows to keep."""
        return self if bool(keep.all()) else self.take(np.flatnonzero(keep))

    def in_order(self, order: Rows) -> Self:
        """All rows in another order; most have it already."""
        return self if bool((order[1:] > order[:-1]).all()) else self.take(order)


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
    """Every NVTX interval, sorted by (thread, start, -end)."""

    start_ns: Int64  # start, in ns since the start of the session
    end_ns: Int64  # end, on the same clock
    open: Bool  # whether the report has no end for it; ``end_ns`` is then the last time seen on its thread
    kind: Int8  # ``PUSH_POP`` or ``START_END``
    thread: Int32  # row of threads
    end_thread: Int32  # row of threads on which it ended; -1 if that is the same thread
    domain: Int32  # row of domains; -1 for the default domain
    text: Int32  # row of texts; -1 if it has none
    forward_thread: Int32  # row of threads that made an autograd node; -1 if unknown
    #: Integer payloads; unsigned 64-bit values wrap to two's complement. None if no range has one.
    payload_int: pa.Array | None = None
    payload_float: pa.Array | None = None  # floating-point payloads; None if no range has one
    payload_json: pa.Array | None = None  # structured payloads as JSON; None if no range has one


@dataclass(frozen=True, slots=True)
class Launches(Columns):
    """API calls that may have started device work, sorted by (thread, start, -end)."""

    start_ns: Int64  # start of the call
    end_ns: Int64  # return of the call
    thread: Int32  # row of threads
    correlation_id: Int64  # links the call to its work, within one process
    name: Int32  # row of names; -1 if unknown
    kernel: Int32  # row of names: the full name of the kernel it launches; -1 if the report does not record it here
    stack: Int32  # row of stacks: the lines of Python around it; -1 if unknown


@dataclass(frozen=True, slots=True)
class StreamCalls(Columns):
    """What is recorded of API calls about streams and events besides the calls themselves, in any order."""

    process: Int32  # row of processes
    correlation_id: Int64  # the call, within its process
    device: Int32  # number of the GPU
    context: Int32  # id of the CUDA context
    stream: Int64  # stream that the call waits for, that it lets wait, or on which it records an event
    recorded_by: Int64  # correlation id of the call that recorded the event that it waits for
    event_context: Int32  # context of the stream on which that event was recorded
    event_stream: Int64  # that stream


@dataclass(frozen=True, slots=True)
class Allocations(Columns):
    """Memory that allocators handed out or took back, sorted by time: on GPUs, if they did there."""

    time_ns: Int64  # when
    process: Int32  # row of processes
    thread: Int32  # row of threads; -1 for one that is not known
    device: Int32  # number of the GPU; -1 for host memory
    address: Int64  # where that memory begins
    bytes: Int64  # how many bytes; negative for what was taken back
    total_bytes: Int64  # what the allocator of the device then has handed out in all; -1 where that is not recorded


@dataclass(frozen=True, slots=True)
class Work(Columns):
    """GPU activities (or operators that ran on a CPU), in the order of the report; -1 is unknown or not applicable."""

    kind: Int8  # ``KERNEL``, ``MEMCPY``, ``MEMSET``, ``GRAPH`` or ``CPU_OP``
    start_ns: Int64  # start on the device
    end_ns: Int64  # end on the device
    process: Int32  # row of processes
    device: Int32  # number of the GPU, as in the report
    context: Int32  # id of the CUDA context, unique within its process
    stream: Int64  # id of the CUDA stream, unique within its context
    correlation_id: Int64  # links it to its launch, within one process
    name: Int32  # row of names: the short name
    full_name: Int32  # row of names: the full signature
    grid_x: Int32  # grid size, in blocks
    grid_y: Int32
    grid_z: Int32
    block_x: Int32  # block size, in threads
    block_y: Int32
    block_z: Int32
    registers: Int32  # registers per thread
    static_smem_bytes: Int32  # static shared memory per block
    dynamic_smem_bytes: Int32  # dynamic shared memory per block
    bytes: Int64  # bytes copied or set
    copy_kind: Int32  # direction of a copy: row of ``COPY_KINDS``
    pageable: Bool  # whether one end of a copy is pageable host memory
    graph_id: Int64  # CUDA graph it ran from
    graph_exec_id: Int64  # instance of that CUDA graph
    graph_node_id: Int64  # node of that CUDA graph
    collective: Int32  # row of collectives, where the report records them by kernel
    annotation: Int32  # row of annotations, where torch wrote modules on it


#: Metrics of a GPU, in per cent of the most that is possible.
GPU_METRICS = ("sm_active", "tensor_active", "dram_read", "dram_write")


@dataclass(frozen=True, slots=True)
class Samples(Columns):
    """Samples of metrics of GPUs, in any order."""

    time_ns: Int64  # when, on the clock of device work
    gpu: Int32  # number of the GPU in the machine
    metric: Int8  # row of ``GPU_METRICS``
    value: Float64  # in per cent


@dataclass(frozen=True, slots=True)
class GraphNodes(Columns):
    """Records of the creation of CUDA graph nodes, in any order; a node may have several rows."""

    start_ns: Int64  # time of the record; ``NO_TIME`` if unknown
    thread: Int32  # row of threads
    node_id: Int64  # the node, unique within its process
    original_node_id: Int64  # node of which it is a copy; -1 if it is none


@dataclass(frozen=True, slots=True)
class Graphs(Columns):
    """Records of the creation of CUDA graphs, in any order."""

    event: Int8  # ``GRAPH_CREATED``, ``GRAPH_CLONED`` or ``GRAPH_INSTANTIATED``
    start_ns: Int64  # time of the record; ``NO_TIME`` if unknown
    thread: Int32  # row of threads
    graph_id: Int64  # the graph, unique within its process
    original_graph_id: Int64  # graph of which it is a copy; -1 if it is none
    exec_id: Int64  # instance that was made from it


@dataclass(frozen=True, slots=True)
class Threads:
    """The threads and processes that ranges, launches and work refer to by row."""

    pid: Ints  # process id of every thread
    tid: Ints  # thread id of every thread
    process: Ints  # row of processes for every thread
    process_pid: Ints  # process id of every process


@dataclass(frozen=True, slots=True)
class Recording:
    """One report in tracekit's own tables, and what rows of them refer to."""

    source: Source
    threads: Threads
    ranges: Ranges
    launches: Launches
    work: Work
    texts: list[str]
    domains: list[str]
    names: list[str]  # the distinct names of kernels and API calls
    graph_nodes: GraphNodes = field(default_factory=GraphNodes.empty)
    graphs: Graphs = field(default_factory=Graphs.empty)
    failed: Launches = field(default_factory=Launches.empty)  # API calls that returned an error, and so started no work
    #: Streams and events of API calls; empty where they were not recorded.
    stream_calls: StreamCalls = field(default_factory=StreamCalls.empty)
    #: Calls of the operating system's runtime that wait, on threads that are known; none has an id.
    os_waits: Launches = field(default_factory=Launches.empty)
    #: Loading of kernels by the driver inside other calls, as ``os_waits``.
    loading: Launches = field(default_factory=Launches.empty)
    stacks: list[str] = field(default_factory=list)  # the distinct texts of stacks
    collectives: list[Collective] = field(default_factory=list)  # the distinct collectives of kernels
    #: Rows of the texts of modules that torch wrote together on some work.
    annotations: list[tuple[int, ...]] = field(default_factory=list)
    #: Samples of metrics of GPUs; empty where they were not recorded.
    samples: Samples = field(default_factory=Samples.empty)
    #: The number of the GPU in the machine by (process id, device), where it is recorded; else it is the same.
    gpus: Mapping[tuple[int, int], int] = field(default_factory=dict)
    process_names: dict[int, str] = field(default_factory=dict)  # name of the executable by process id, if known
    thread_names: dict[int, str] = field(default_factory=dict)  # name of the thread by its row, where known
    devices: dict[int, Gpu] = field(default_factory=dict)  # the GPU by device number, where known
    ranks: tuple[Rank, ...] = ()
    missing: tuple[MissingData, ...] = ()  # what the report does not hold
    counters: LossCounters = field(default_factory=LossCounters)  # what was lost or corrected while reading
    #: Memory handed out and taken back; empty where they were not recorded.
    allocations: Allocations = field(default_factory=Allocations.empty)
    records_graphs: bool = True  # whether reports of its format record how CUDA graphs and their nodes were made
    #: The traces of graph captures that were given with the report, and joined it.
    graph_captures: tuple[Source, ...] = ()
    #: Rows of the threads whose ranges and launches are from these traces.
    attached_threads: frozenset[int] = frozenset()
    #: For each kernel, its time spent in others that it called, as operators do; None if there is only device work,
    #: which calls nothing.
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


_Intervals = TypeVar("_Intervals", Ranges, Launches)


def nested(intervals: _Intervals) -> _Intervals:
    """Ranges or launches, sorted by (thread, start, -end)."""
    times = [intervals.start_ns, intervals.end_ns]
    return intervals.in_order(nesting_order(*one_axis([intervals.thread] * 2, times)))


class Operators(NamedTuple):
    """Operators that ran on a CPU, as work and as launches, and the time of each that was spent in those it called.

    Its own thread started each one by running it, so it is its own launch.
    """

    work: Work
    launches: Launches
    inside_ns: Ints

    @classmethod
    def of(cls, start: Ints, end: Ints, thread: Rows, process: Rows, name: Rows) -> Self:
        """From their times; the last three are rows of threads, processes and names."""
        # CUDA's correlation ids are not negative, and -1 is null.
        both = {"start_ns": start, "end_ns": end, "correlation_id": -2 - np.arange(start.size)}
        kind = np.full(start.size, CPU_OP, np.int8)
        work = Work.of(**both, kind=kind, process=process, name=name, full_name=name)
        return cls(work, Launches.of(**both, thread=thread), _inside(start, end, thread))

    @classmethod
    def empty(cls) -> Self:
        """Of a recording without operators."""
        return cls(Work.empty(), Launches.empty(), np.empty(0, np.int64))

    def with_launches(self, launches: Launches) -> Launches:
        """API calls and operators together, in the order of launches."""
        if not len(self.launches):
            return launches
        return nested(Launches.concat([launches, self.launches]))

    def with_work(self, work: Work) -> tuple[Work, Ints | None]:
        """Device work and operators together, and the time that each piece spent in others."""
        if not len(self.work):
            return work, None
        return Work.concat([work, self.work]), np.concatenate((np.zeros(len(work), np.int64), self.inside_ns))


def _inside(start: Ints, end: Ints, thread: Ints) -> Ints:
    first, last = one_axis([thread, thread], [start, end])
    order = nesting_order(first, last)
    parent, _ = parents(first[order], last[order])
    inside = np.zeros(start.size, np.int64)
    within = np.flatnonzero(parent >= 0)
    np.add.at(inside, order[parent[within]], (end - start)[order[within]])
    return np.asarray(np.minimum(inside, end - start))


def graph_launch_names(names: list[str]) -> list[int]:
    """Rows of the names of API calls that replay a CUDA graph."""
    return names_starting(names, _GRAPH_LAUNCHES)


def names_starting(names: list[str], prefixes: tuple[str, ...]) -> list[int]:
    """Rows of the names that start with one of some prefixes."""
    return [row for row, name in enumerate(names) if name.startswith(prefixes)]

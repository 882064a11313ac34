"""The contents of a report, in tracekit's own plain tables, whatever its format.

Readers fill it, everything after them reads it. Texts and names are stored once and referred to by their row, so
that nothing downstream handles strings per event. Times are nanoseconds since the start of the session and may be
negative.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tracekit.arrays.columns import integers
from tracekit.recording.tally import Tally
from tracekit.schema import Column, TableSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.arrays.types import Flags, Ints
    from tracekit.recording.attributed import Attributed
    from tracekit.recording.provenance import Gpu, Lack, Rank, Source

PUSH_POP, START_END = 0, 1
RANGE_KINDS = ("push_pop", "start_end")
KERNEL, MEMCPY, MEMSET, GRAPH, CPU_OP = range(5)
WORK_KINDS = ("kernel", "memcpy", "memset", "graph", "cpu_op")

#: CUPTI's directions of a copy, by code (CUpti_ActivityMemcpyKind), as NVIDIA labels them.
COPY_KINDS = (
    "Unknown",
    "Host-to-Device",
    "Device-to-Host",
    "Host-to-Array",
    "Array-to-Host",
    "Array-to-Array",
    "Array-to-Device",
    "Device-to-Array",
    "Device-to-Device",
    "Host-to-Host",
    "Peer-to-Peer",
    "Unified Host-to-Device",
    "Unified Device-to-Host",
    "Unified Device-to-Device",
)
#: API calls that replay a CUDA graph.
_GRAPH_LAUNCHES = ("cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch")
GRAPH_CREATED, GRAPH_CLONED, GRAPH_INSTANTIATED = range(3)

RANGES = TableSpec(
    "ranges",
    "Every NVTX interval, sorted by (thread, start, -end).",
    (
        Column("start_ns", pa.int64(), "Start, in ns since the start of the session."),
        Column("end_ns", pa.int64(), "End, on the same clock."),
        Column(
            "open",
            pa.bool_(),
            "Whether the report has no end for it; end_ns is then the last time seen on its thread.",
        ),
        Column("kind", pa.int8(), "PUSH_POP or START_END."),
        Column("thread", pa.int32(), "Row of threads."),
        Column(
            "end_thread",
            pa.int32(),
            "Row of threads on which it ended; null if that is the same thread.",
            nullable=True,
        ),
        Column("domain", pa.int32(), "Row of domains; null for the default domain.", nullable=True),
        Column("text", pa.int32(), "Row of texts; null if it has none.", nullable=True),
        Column(
            "payload_int",
            pa.int64(),
            "Integer payload; unsigned 64-bit values wrap to two's complement. Null if there is none.",
            nullable=True,
        ),
        Column("payload_float", pa.float64(), "Floating-point payload; null if there is none.", nullable=True),
        Column("payload_json", pa.string(), "Structured payload as JSON; null if there is none.", nullable=True),
        Column(
            "forward_thread", pa.int32(), "Row of threads that made an autograd node; null if untold.", nullable=True
        ),
    ),
)
#: A ``forward_thread`` that is told, but not known to be in the report.
NOT_RECORDED = -2
LAUNCHES = TableSpec(
    "launches",
    "API calls that may have started device work, sorted by (thread, start, -end).",
    (
        Column("start_ns", pa.int64(), "Start of the call."),
        Column("end_ns", pa.int64(), "Return of the call."),
        Column("thread", pa.int32(), "Row of threads."),
        Column("correlation_id", pa.int64(), "Links the call to its work, within one process."),
        Column("name", pa.int32(), "Row of names; null if unknown.", nullable=True),
        Column(
            "kernel",
            pa.int32(),
            "Row of names: the full name of the kernel it launches; null if the report does not say it here.",
            nullable=True,
        ),
    ),
)
ALLOCATIONS = TableSpec(
    "allocations",
    "Memory that torch's allocators handed out or took back, sorted by (thread, time): on GPUs, if it did there.",
    (
        Column("time_ns", pa.int64(), "When."),
        Column("thread", pa.int32(), "Row of threads."),
        Column("bytes", pa.int64(), "How many bytes; negative for what was taken back."),
    ),
)
WORK = TableSpec(
    "work",
    "Pieces of device work, in the order of the report.",
    (
        Column("kind", pa.int8(), "KERNEL, MEMCPY, MEMSET, GRAPH or CPU_OP."),
        Column("start_ns", pa.int64(), "Start on the device."),
        Column("end_ns", pa.int64(), "End on the device."),
        Column("process", pa.int32(), "Row of processes; null if the report does not record it.", nullable=True),
        Column("device", pa.int32(), "Number of the GPU, as in the report; null if unknown.", nullable=True),
        Column(
            "context", pa.int32(), "Id of the CUDA context, unique within its process; null if unknown.", nullable=True
        ),
        Column(
            "stream", pa.int64(), "Id of the CUDA stream, unique within its context; null if unknown.", nullable=True
        ),
        Column(
            "correlation_id",
            pa.int64(),
            "Links it to its launch, within one process.",
            nullable=True,
        ),
        Column("name", pa.int32(), "Row of names: the short name.", nullable=True),
        Column("full_name", pa.int32(), "Row of names: the full signature.", nullable=True),
        Column("grid_x", pa.int32(), "Grid size in x, in blocks; null for other work than kernels.", nullable=True),
        Column("grid_y", pa.int32(), "Grid size in y, in blocks; null for other work than kernels.", nullable=True),
        Column("grid_z", pa.int32(), "Grid size in z, in blocks; null for other work than kernels.", nullable=True),
        Column("block_x", pa.int32(), "Block size in x, in threads; null for other work than kernels.", nullable=True),
        Column("block_y", pa.int32(), "Block size in y, in threads; null for other work than kernels.", nullable=True),
        Column("block_z", pa.int32(), "Block size in z, in threads; null for other work than kernels.", nullable=True),
        Column("registers", pa.int32(), "Registers per thread; null for other work than kernels.", nullable=True),
        Column(
            "static_smem_bytes",
            pa.int32(),
            "Static shared memory per block; null for other work than kernels.",
            nullable=True,
        ),
        Column(
            "dynamic_smem_bytes",
            pa.int32(),
            "Dynamic shared memory per block; null for other work than kernels.",
            nullable=True,
        ),
        Column("bytes", pa.int64(), "Bytes copied or set; null for kernels.", nullable=True),
        Column("copy_kind", pa.int32(), "Direction of a copy: row of COPY_KINDS.", nullable=True),
        Column("graph_id", pa.int64(), "CUDA graph it ran from; null outside graphs or if unknown.", nullable=True),
        Column(
            "graph_exec_id",
            pa.int64(),
            "Instance of that CUDA graph; null outside graphs or if unknown.",
            nullable=True,
        ),
        Column(
            "graph_node_id", pa.int64(), "Node of that CUDA graph; null outside graphs or if unknown.", nullable=True
        ),
    ),
)
GRAPH_NODES = TableSpec(
    "graph_nodes",
    "Records of the creation of CUDA graph nodes, in any order; a node may have several rows.",
    (
        Column("start_ns", pa.int64(), "Time of the record; null if unknown.", nullable=True),
        Column("thread", pa.int32(), "Row of threads."),
        Column("node_id", pa.int64(), "The node, unique within its process."),
        Column("original_node_id", pa.int64(), "Node of which it is a copy; null if it is none.", nullable=True),
    ),
)
GRAPHS = TableSpec(
    "graphs",
    "Records of the creation of CUDA graphs, in any order.",
    (
        Column("event", pa.int8(), "GRAPH_CREATED, GRAPH_CLONED or GRAPH_INSTANTIATED."),
        Column("start_ns", pa.int64(), "Time of the record; null if unknown.", nullable=True),
        Column("thread", pa.int32(), "Row of threads."),
        Column("graph_id", pa.int64(), "The graph, unique within its process.", nullable=True),
        Column("original_graph_id", pa.int64(), "Graph of which it is a copy; null if it is none.", nullable=True),
        Column("exec_id", pa.int64(), "Instance that was made from it.", nullable=True),
    ),
)


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
        ranges: Table of the spec ``RANGES``.
        launches: Table of the spec ``LAUNCHES``.
        work: Table of the spec ``WORK``.
        graph_nodes: Table of the spec ``GRAPH_NODES``.
        graphs: Table of the spec ``GRAPHS``.
        failed: Table of the spec ``LAUNCHES``: API calls that returned an error, and so started no work.
        texts: The distinct texts of ranges.
        domains: The distinct names of NVTX domains.
        names: The distinct names of kernels and API calls.
        process_names: Name of the executable by process id, if known.
        thread_names: Name of the thread by its row, where known.
        devices: The GPU by device number, where known.
        ranks: Ranks of processes, where known.
        lacks: What the report does not hold.
        tally: What was lost or corrected while reading.
        from_the_start: Rows of the processes whose CUDA calls are known to be recorded completely, from the first on.
        allocations: Table of the spec ``ALLOCATIONS``; empty where they were not recorded.
        records_graphs: Whether reports of its format record how CUDA graphs and their nodes were made.
        graph_captures: The traces of graph captures that were given beside the report, and joined it.
        threads_beside: Rows of the threads whose ranges and launches are from these traces.
        first_replays: When graphs were first replayed in these traces, by (process, graph).
        inside_ns: For each piece of work, its time spent in others that it called, as operators do; None if there
            is only device work, which calls nothing.
        attributed: What the report says about the modules of its work; None if it says nothing.
    """

    source: Source
    threads: Threads
    ranges: pa.Table
    launches: pa.Table
    work: pa.Table
    texts: list[str]
    domains: list[str]
    names: list[str]
    graph_nodes: pa.Table = field(default_factory=GRAPH_NODES.empty)
    graphs: pa.Table = field(default_factory=GRAPHS.empty)
    failed: pa.Table = field(default_factory=LAUNCHES.empty)
    process_names: dict[int, str] = field(default_factory=dict)
    thread_names: dict[int, str] = field(default_factory=dict)
    devices: dict[int, Gpu] = field(default_factory=dict)
    ranks: tuple[Rank, ...] = ()
    lacks: tuple[Lack, ...] = ()
    tally: Tally = field(default_factory=Tally)
    from_the_start: frozenset[int] = frozenset()
    allocations: pa.Table = field(default_factory=ALLOCATIONS.empty)
    records_graphs: bool = True
    graph_captures: tuple[Source, ...] = ()
    threads_beside: frozenset[int] = frozenset()
    first_replays: Mapping[tuple[int, int], int] = field(default_factory=dict)
    inside_ns: Ints | None = None
    attributed: Attributed | None = None

    @property
    def own_ns(self) -> Ints:
        """How long each piece of work ran by itself, so that no time counts twice."""
        whole = integers(self.work, "end_ns") - integers(self.work, "start_ns")
        return whole if self.inside_ns is None else whole - self.inside_ns

    @property
    def on_device(self) -> Flags:
        """Whether each piece of work ran on a device."""
        return np.asarray(integers(self.work, "kind") != CPU_OP)

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

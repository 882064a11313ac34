"""What a trace holds, in tracekit's own plain tables, whatever format it came from.

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
from tracekit.causes import Tally
from tracekit.schema import Column, TableSpec

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints
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
_GRAPH_LAUNCHES = ("cudaGraphLaunch", "cuGraphLaunch")
GRAPH_CREATED, GRAPH_CLONED, GRAPH_INSTANTIATED = range(3)

RANGES = TableSpec(
    "ranges",
    "Every NVTX interval, sorted by (thread, start, -end).",
    (
        Column("start_ns", pa.int64(), "When it began."),
        Column("end_ns", pa.int64(), "When it ended."),
        Column(
            "open",
            pa.bool_(),
            "Whether it had no end and was closed at the last time seen on its thread.",
        ),
        Column("kind", pa.int8(), "PUSH_POP or START_END."),
        Column("thread", pa.int32(), "Row of threads."),
        Column(
            "end_thread",
            pa.int32(),
            "Row of threads on which it ended, where that is another.",
            nullable=True,
        ),
        Column("domain", pa.int32(), "Row of domains; null in the default one.", nullable=True),
        Column("text", pa.int32(), "Row of texts.", nullable=True),
        Column(
            "payload_int",
            pa.int64(),
            "Integer payload; unsigned 64-bit ones in two's complement.",
            nullable=True,
        ),
        Column("payload_float", pa.float64(), "Floating-point payload.", nullable=True),
        Column("payload_json", pa.string(), "Structured payload as JSON.", nullable=True),
    ),
)
LAUNCHES = TableSpec(
    "launches",
    "API calls that may have started device work, sorted by (thread, start, -end).",
    (
        Column("start_ns", pa.int64(), "When the call began."),
        Column("end_ns", pa.int64(), "When it returned."),
        Column("thread", pa.int32(), "Row of threads."),
        Column("correlation_id", pa.int64(), "Links it to its work, within one process."),
        Column("name", pa.int32(), "Row of names.", nullable=True),
    ),
)
WORK = TableSpec(
    "work",
    "Pieces of device work, in the order of the report.",
    (
        Column("kind", pa.int8(), "KERNEL, MEMCPY, MEMSET, GRAPH or CPU_OP."),
        Column("start_ns", pa.int64(), "When it began on the device."),
        Column("end_ns", pa.int64(), "When it ended there."),
        Column("process", pa.int32(), "Row of processes.", nullable=True),
        Column("device", pa.int32(), "The GPU, as the report numbers it.", nullable=True),
        Column("context", pa.int32(), "CUDA context, within its process.", nullable=True),
        Column("stream", pa.int64(), "CUDA stream, within its context.", nullable=True),
        Column(
            "correlation_id",
            pa.int64(),
            "Links it to its launch, within one process.",
            nullable=True,
        ),
        Column("name", pa.int32(), "Row of names: the short name.", nullable=True),
        Column("full_name", pa.int32(), "Row of names: the whole signature.", nullable=True),
        Column("grid_x", pa.int32(), "Blocks.", nullable=True),
        Column("grid_y", pa.int32(), "Blocks.", nullable=True),
        Column("grid_z", pa.int32(), "Blocks.", nullable=True),
        Column("block_x", pa.int32(), "Threads.", nullable=True),
        Column("block_y", pa.int32(), "Threads.", nullable=True),
        Column("block_z", pa.int32(), "Threads.", nullable=True),
        Column("registers", pa.int32(), "Registers per thread.", nullable=True),
        Column("static_smem_bytes", pa.int32(), "Static shared memory per block.", nullable=True),
        Column("dynamic_smem_bytes", pa.int32(), "Dynamic shared memory per block.", nullable=True),
        Column("bytes", pa.int64(), "Bytes copied or set.", nullable=True),
        Column("copy_kind", pa.int32(), "Its direction: row of COPY_KINDS.", nullable=True),
        Column("graph_id", pa.int64(), "CUDA graph it ran from.", nullable=True),
        Column("graph_exec_id", pa.int64(), "Instance of that graph.", nullable=True),
        Column("graph_node_id", pa.int64(), "Node of that graph.", nullable=True),
    ),
)
GRAPH_NODES = TableSpec(
    "graph_nodes",
    "What is recorded of the making of CUDA graphs' nodes: several rows of one node, in any order.",
    (
        Column("start_ns", pa.int64(), "When it was recorded.", nullable=True),
        Column("thread", pa.int32(), "Row of threads."),
        Column("node_id", pa.int64(), "The node, within its process."),
        Column("original_node_id", pa.int64(), "The node it is a copy of.", nullable=True),
    ),
)
GRAPHS = TableSpec(
    "graphs",
    "What is recorded of the making of CUDA graphs, in any order.",
    (
        Column("event", pa.int8(), "GRAPH_CREATED, GRAPH_CLONED or GRAPH_INSTANTIATED."),
        Column("start_ns", pa.int64(), "When it was recorded.", nullable=True),
        Column("thread", pa.int32(), "Row of threads."),
        Column("graph_id", pa.int64(), "The graph, within its process.", nullable=True),
        Column("original_graph_id", pa.int64(), "The graph it is a copy of.", nullable=True),
        Column("exec_id", pa.int64(), "The instance that was made of it.", nullable=True),
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
        process_names: Name of the executable by process id, where known.
        devices: The GPU by device number, where known.
        ranks: Ranks of processes, where known.
        lacks: What the report does not hold.
        tally: What was lost or put right while reading.
        from_the_start: Rows of the processes of which every CUDA call, from the first one on, is known to be recorded.
        inside_ns: Of every piece of work the time that it spent in others which it called, as operators do; None if
            there are only pieces of device work, which call none.
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
    devices: dict[int, Gpu] = field(default_factory=dict)
    ranks: tuple[Rank, ...] = ()
    lacks: tuple[Lack, ...] = ()
    tally: Tally = field(default_factory=Tally)
    from_the_start: frozenset[int] = frozenset()
    inside_ns: Ints | None = None

    @property
    def own_ns(self) -> Ints:
        """How long every piece of work ran by itself; adds up to the time in which work was done, nothing twice."""
        whole = integers(self.work, "end_ns") - integers(self.work, "start_ns")
        return whole if self.inside_ns is None else whole - self.inside_ns

    @property
    def on_device(self) -> Flags:
        """For every piece of work whether a device did it."""
        return np.asarray(integers(self.work, "kind") != CPU_OP)

    @property
    def process_rank(self) -> Ints:
        """Rank of every process; -1 where it is not known."""
        found = np.full(self.threads.process_pid.size, -1, dtype=np.int32)
        for known in self.ranks:
            found[known.process] = known.rank
        return found


def graph_launch_names(names: list[str]) -> list[int]:
    """Rows of the names of API calls that replay a CUDA graph."""
    return names_starting(names, _GRAPH_LAUNCHES)


def names_starting(names: list[str], prefixes: tuple[str, ...]) -> list[int]:
    """Rows of the names that start with one of some prefixes."""
    return [row for row, name in enumerate(names) if name.startswith(prefixes)]

"""A process and its GPUs in simulated time, and the report that Nsight Systems would leave of them.

The host opens ranges and launches; each rank's GPU runs what it was given, stream by stream. All ranks share one host
clock. What runs, and for how long, is for the caller to say: nothing here knows a model.
"""

from __future__ import annotations

import random
import sqlite3
from collections import defaultdict
from contextlib import closing, contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from tracekit.nsight import file as nsight_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

COMPUTE, COMMUNICATION = 7, 13
MAIN, AUTOGRAD = 0, 1
_SESSION_UTC_NS = 1_767_225_600_000_000_000
#: How much later each rank's session began than the one before: the clocks of reports start apart.
_BEGAN_LATER_NS = 137_000
_FIRST_PID = 4_711
#: Host time of an API call, and from its begin to the earliest start on the GPU.
_API_NS, _DELAY_NS = 4_000, 5_500
#: Between two kernels of a stream, launched one by one and out of a graph.
_BETWEEN_NS, _BETWEEN_NODES_NS = 900, 500
_PUSH_POP, _NODE_CREATION = 59, 77
_HOST_TO_DEVICE = 1
_NOISE = 0.012


class Kernel(NamedTuple):
    """Work for a GPU: its name, its duration, and the C++ name where it differs."""

    name: str
    ns: float
    full_name: str | None = None


class Node(NamedTuple):
    """A node of an instantiated CUDA graph."""

    node_id: int
    kernel: Kernel


class Process:
    """What the host does, and on each rank's GPU what comes of it."""

    def __init__(self, slowness: Sequence[float] = (1.0,)) -> None:
        """Starts with one GPU for each entry of ``slowness``, by which its kernels take longer."""
        self.clock, self.thread = 1_000_000, MAIN
        self.thread_names: dict[int, str] = {}
        self._slowness = slowness
        self._noise = random.Random(7)
        self._free: dict[tuple[int, int], int] = defaultdict(int)
        self._correlation, self._graph = count(1), count(1)
        self._captured: list[Node] | None = None
        self._captured_graph = 0
        self._ranges: list[tuple[int, int, int, str]] = []
        self._calls: list[tuple[int, int, int, str, int]] = []
        self._nodes: list[tuple[int, int, int | None]] = []
        self._kernels: list[list[dict[str, Any]]] = [[] for _ in slowness]
        self._copies: list[list[dict[str, Any]]] = [[] for _ in slowness]

    @contextmanager
    def range(self, text: str) -> Iterator[None]:
        """An NVTX range around a block."""
        start, thread = self.clock, self.thread
        yield
        self._ranges.append((start, self.clock, thread, text))
        self.clock += 300

    def launch(self, kernel: Kernel, stream: int = COMPUTE) -> None:
        """Launches a kernel, into the graph that is being captured if there is one."""
        start, correlation = self.clock, self._call("cudaLaunchKernel_v7000")
        if self._captured is not None:
            node = Node((self._captured_graph << 32) | len(self._captured), kernel)
            self._captured.append(node)
            self._nodes.append((start + 1_000, node.node_id, None))
            return
        for rank in range(len(self._slowness)):
            self._run(rank, kernel, stream, start + _DELAY_NS, correlation)

    def all_reduce(self, kernel: Kernel) -> None:
        """A rank's kernel starts once its compute is done; all end when the last has come and they have talked."""
        start, correlation = self.clock, self._call("cudaLaunchKernelExC_v11060")
        ranks = range(len(self._slowness))
        begin = [max(start + _DELAY_NS, self._end(rank)) for rank in ranks]
        end = max(begin) + round(kernel.ns)
        for rank in ranks:
            self._ran(rank, kernel, COMMUNICATION, (begin[rank], end), correlation)

    def wait_for_communication(self) -> None:
        """What is launched on the compute stream from now on waits for what was communicated."""
        for rank in range(len(self._slowness)):
            self._free[rank, COMPUTE] = self._end(rank)

    def copy(self, kind: int, size: int) -> None:
        """Copies bytes to the device (kind 1) or back (2), which the host waits for."""
        start, correlation = self.clock, self._call("cudaMemcpyAsync_v3020")
        for rank, copies in enumerate(self._copies):
            begin = max(start + _DELAY_NS, self._end(rank) + _BETWEEN_NS)
            end = begin + 1_100 + size // 20
            self._free[rank, COMPUTE] = end
            copies.append(
                {
                    "start": begin,
                    "end": end,
                    "correlationId": correlation,
                    "bytes": size,
                    "copyKind": kind,
                    "streamId": COMPUTE,
                    "srcKind": 0 if kind == _HOST_TO_DEVICE else 2,
                    "dstKind": 2 if kind == _HOST_TO_DEVICE else 0,
                    **self._place(rank),
                }
            )
        if kind != _HOST_TO_DEVICE:
            self.synchronize()

    def synchronize(self) -> None:
        """The host waits until every GPU is idle."""
        idle = max(self._end(rank) for rank in range(len(self._slowness)))
        self._call("cudaStreamSynchronize_v3020", max(_API_NS, idle + 2_000 - self.clock))

    @contextmanager
    def capture(self) -> Iterator[list[Node]]:
        """Launches of the block go into a CUDA graph; the list has its instance's nodes afterwards."""
        instance: list[Node] = []
        self._call("cudaStreamBeginCapture_v10000")
        self._captured, self._captured_graph = [], next(self._graph)
        yield instance
        captured, self._captured = self._captured, None
        self._call("cudaStreamEndCapture_v10000")
        graph, start = next(self._graph), self.clock
        self._call("cudaGraphInstantiateWithFlags_v11040")
        for at, node in enumerate(captured):
            copy = (graph << 32) | at
            # nsys writes two rows of every copy: that it was made, then what of.
            self._nodes += [(start + at, copy, None), (start + at, copy, node.node_id)]
            instance.append(Node(copy, node.kernel))

    def replay(self, graph: Sequence[Node]) -> None:
        """One launch of all nodes."""
        start, correlation = self.clock, self._call("cudaGraphLaunch_v10000")
        self.clock += 8_000
        for rank in range(len(self._slowness)):
            for at, node in enumerate(graph):
                earliest = start + 3 * _DELAY_NS if at == 0 else 0
                self._run(rank, node.kernel, COMPUTE, earliest, correlation, node.node_id)

    def write(self, path: Path, rank: int = 0) -> None:
        """Writes what a profiler would have left of one rank."""
        strings: dict[str, int] = {}

        def text(said: str) -> int:
            return strings.setdefault(said, len(strings) + 1)

        tables: dict[str, list[dict[str, Any]]] = {
            "NVTX_EVENTS": [
                {
                    "start": start,
                    "end": end,
                    "eventType": _PUSH_POP,
                    "globalTid": _tid(rank, thread),
                    "textId": text(said),
                    "domainId": 0,
                }
                for start, end, thread, said in sorted(self._ranges)
            ],
            "CUPTI_ACTIVITY_KIND_RUNTIME": [
                {
                    "start": start,
                    "end": end,
                    "eventClass": 0,
                    "globalTid": _tid(rank, thread),
                    "correlationId": correlation,
                    "nameId": text(name),
                    "returnValue": 0,
                }
                for start, end, thread, name, correlation in self._calls
            ],
            "CUPTI_ACTIVITY_KIND_KERNEL": [
                row | {"shortName": text(row["shortName"]), "demangledName": text(row["demangledName"])}
                for row in self._kernels[rank]
            ],
            "CUPTI_ACTIVITY_KIND_MEMCPY": self._copies[rank],
            "ThreadNames": [
                {"nameId": text(name), "priority": 0, "globalTid": _tid(rank, thread)}
                for thread, name in self.thread_names.items()
            ],
            "CUDA_GRAPH_NODE_EVENTS": [
                {
                    "start": at,
                    "end": at,
                    "eventClass": _NODE_CREATION,
                    "globalTid": _tid(rank, MAIN),
                    "nameId": text("Graph Node Creation"),
                    "graphNodeId": node,
                    "originalGraphNodeId": original,
                }
                for at, node, original in self._nodes
            ],
        }
        for row in (row for rows in tables.values() for row in rows):
            row |= {side: row[side] - rank * _BEGAN_LATER_NS for side in ("start", "end") if side in row}
        tables["StringIds"] = [{"id": at, "value": said} for said, at in strings.items()]
        path.parent.mkdir(exist_ok=True)
        nsight_file.write(path, {**tables, **_about(rank)})
        with closing(sqlite3.connect(path)) as db:
            # Reports are small: pages of the usual size would be half empty.
            db.execute("PRAGMA page_size=512")
            db.execute("VACUUM")

    def _call(self, name: str, dur_ns: int = _API_NS) -> int:
        correlation = next(self._correlation)
        self._calls.append((self.clock, self.clock + dur_ns, self.thread, name, correlation))
        self.clock += dur_ns + 500
        return correlation

    def _end(self, rank: int) -> int:
        return max(self._free[rank, stream] for stream in (COMPUTE, COMMUNICATION))

    def _run(
        self, rank: int, kernel: Kernel, stream: int, earliest: int, correlation: int, node: int | None = None
    ) -> None:
        between = _BETWEEN_NS if node is None else _BETWEEN_NODES_NS
        begin = max(earliest, self._free[rank, stream] + between)
        noise = 1 + _NOISE * (self._noise.random() + self._noise.random() - 1)
        end = begin + round(kernel.ns * self._slowness[rank] * noise)
        self._ran(rank, kernel, stream, (begin, end), correlation, node)

    def _ran(
        self, rank: int, kernel: Kernel, stream: int, when: tuple[int, int], correlation: int, node: int | None = None
    ) -> None:
        self._free[rank, stream] = when[1]
        row = {
            "start": when[0],
            "end": when[1],
            "correlationId": correlation,
            "streamId": stream,
            "shortName": kernel.name,
            "demangledName": kernel.full_name or kernel.name,
            "graphNodeId": node,
            "graphId": None if node is None else node >> 32,
            **self._place(rank),
        }
        self._kernels[rank].append(row)

    @staticmethod
    def _place(rank: int) -> dict[str, int]:
        return {"deviceId": rank, "contextId": 1, "globalPid": _pid(rank)}


def _pid(rank: int) -> int:
    return (1 << 48) | ((_FIRST_PID + rank) << 24)


def _tid(rank: int, thread: int) -> int:
    return _pid(rank) + _FIRST_PID + rank + 1_000 * thread


def _about(rank: int) -> dict[str, list[dict[str, Any]]]:
    """Everything in a report that is not an event."""
    name = {"EXPORT_PRODUCT_VERSION": "2024.6.2.225-simulated", "EXPORT_SCHEMA_VERSION": "3.16.1"}
    return {
        "META_DATA_EXPORT": [{"name": key, "value": value} for key, value in name.items()],
        "TARGET_INFO_SESSION_START_TIME": [{"utcEpochNs": _SESSION_UTC_NS + rank * _BEGAN_LATER_NS}],
        "TARGET_INFO_GPU": [
            {
                "id": rank,
                "name": "NVIDIA A100-SXM4-80GB",
                "smCount": 108,
                "totalMemory": 85_899_345_920,
                "computeMajor": 8,
                "computeMinor": 0,
            }
        ],
        "PROCESSES": [{"globalPid": _pid(rank), "pid": _FIRST_PID + rank, "name": "python3"}],
        "ENUM_CUDA_MEMCPY_OPER": [
            {"id": 1, "name": "CUDA_MEMCPY_KIND_HTOD", "label": "Host-to-Device"},
            {"id": 2, "name": "CUDA_MEMCPY_KIND_DTOH", "label": "Device-to-Host"},
        ],
    }

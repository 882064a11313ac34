"""What a recording on the CPU would be on a GPU: each operator launches kernels, named as those of cuBLAS on Hopper.

A product is a memset, a kernel and a reduction of its parts, as cuBLAS may split it. The launches lie inside of the
operators, the work behind them on one stream. Steps that capture and replay become a graph of CUDA's.
"""

from __future__ import annotations

import gzip
import json
import sqlite3
from contextlib import closing
from decimal import Decimal
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from tracekit.proof import recording
from tracekit.proof.programs.plans import CAPTURE, REPLAY

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_MEMSET = "Memset (Device)"
_REDUCTION = "void cublasLt::splitKreduce_kernel<32, 16, int, float, float, float, float, false>(int)"
_SPLIT = [_MEMSET, "nvjet_sst_64x48_64x8_4x1_v_bz_splitK_TNT", _REDUCTION]
_BENT = "void at::native::vectorized_elementwise_kernel<4, at::native::relu(float)>(int)"
#: What operators launch; all others launch nothing.
WORK = {
    "aten::addmm": _SPLIT,
    "aten::mm": ["sm90_xmma_gemm_f32f32_f32f32_f32_nt_n_tilesize64x64x8_warpgroupsize1x1x1_execute_segment_k_off"],
    "aten::relu": [_BENT],
    "aten::threshold_backward": [_BENT],
    "c10d::_allgather_base_": ["Memcpy DtoD (Device -> Device)"],
}
_APART_NS, _LONG_NS = 3_000, 2_000
_TABLES = """
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, "end" INTEGER, eventClass INTEGER, globalTid INTEGER,
  correlationId INTEGER, nameId INTEGER, returnValue INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, "end" INTEGER, deviceId INTEGER, contextId INTEGER,
  streamId INTEGER, correlationId INTEGER, globalPid INTEGER, graphNodeId INTEGER, demangledName INTEGER,
  shortName INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, "end" INTEGER, deviceId INTEGER, contextId INTEGER,
  streamId INTEGER, correlationId INTEGER, globalPid INTEGER, graphNodeId INTEGER, bytes INTEGER, copyKind INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start INTEGER, "end" INTEGER, deviceId INTEGER, contextId INTEGER,
  streamId INTEGER, correlationId INTEGER, globalPid INTEGER, graphNodeId INTEGER, bytes INTEGER, memKind INTEGER);
"""
_OPERATORS = """SELECT o.start, o."end", o.globalTid, s.value FROM TRACEKIT_CPU_OPS o JOIN StringIds s
    ON s.id = o.nameId ORDER BY o.start"""
_RANGES = """SELECT n.start, n."end", s.value FROM NVTX_EVENTS n JOIN StringIds s ON s.id = n.textId
    WHERE s.value LIKE ? ORDER BY n.start"""


class Launch(NamedTuple):
    """An API call, and when the work that it started ran; None if it was captured."""

    start: int
    thread: int
    correlation: int
    name: str
    work: str
    ran: int | None
    node: int | None = None


def on_a_gpu(folder: Path, *, nodes: bool = True) -> Path:
    """Makes the report in a folder, and the trace beside it, those of a run on a GPU. Returns the folder.

    Args:
        folder: The folder of a check that recorded without a GPU.
        nodes: Whether work of graphs has the number of its node, as newer releases of torch say.
    """
    with closing(sqlite3.connect(folder / recording.REPORT)) as db, db:
        made = _Launches(db, nodes=nodes)
        made.launch()
        made.write()
    if (trace := folder / recording.TRACE).exists():
        _add_to(trace, made.launches)
    return folder


class _Launches:
    """The launches of a report's operators."""

    def __init__(self, db: sqlite3.Connection, *, nodes: bool) -> None:
        self._db, self._nodes = db, nodes
        self.launches: list[Launch] = []
        self._busy_until = 0
        self._operators = [(start, thread, name) for start, _, thread, name in db.execute(_OPERATORS) if WORK.get(name)]
        # Its second call of the model is captured; the first runs on a side stream.
        steps = {name: self._ranges(f'{{"Step": %"{name}"%') for name in (CAPTURE, REPLAY)}
        calls = self._ranges('{"Module": "Chain", %"Inputs"%')
        self.captured = [[call for call in calls if start <= call[0] < end][1] for start, end in steps[CAPTURE]]
        self.replayed = steps[REPLAY]

    def _ranges(self, like: str) -> list[tuple[int, int]]:
        return [(start, end) for start, end, _ in self._db.execute(_RANGES, [like])]

    def launch(self) -> None:
        """One for each piece of work."""
        graphs: dict[int, tuple[Launch, Iterator[int]]] = {}
        for start, thread, name in self._operators:
            replay = next((first for first, last in self.replayed if first <= start < last), None)
            for number, work in enumerate(WORK[name]):
                if replay is None:
                    self._one(start + number, thread, work, captured=_inside(start, self.captured))
                    continue
                if replay not in graphs:
                    graphs[replay] = self._api(start, thread, "cudaGraphLaunch"), count(1)
                self._replayed(work, *graphs[replay])
        for start, end in self.captured:
            thread = self._operators[0][1]
            self._api(start - 2, thread, "cudaStreamBeginCapture")
            self._api(end + 1, thread, "cudaStreamEndCapture")
            self._api(end + 3, thread, "cudaGraphInstantiate")

    def _api(self, start: int, thread: int, name: str) -> Launch:
        self.launches.append(Launch(start, thread, len(self.launches) + 1, name, "", None))
        return self.launches[-1]

    def _one(self, start: int, thread: int, work: str, *, captured: bool) -> None:
        name = "cudaMemsetAsync" if work == _MEMSET else "cudaLaunchKernelExC"
        ran = None if captured else self._runs(start)
        self.launches.append(Launch(start, thread, len(self.launches) + 1, name, "" if captured else work, ran))

    def _replayed(self, work: str, graph: Launch, numbers: Iterator[int]) -> None:
        """A node of a graph, which does not know what memory it fills."""
        node = (1 << 32) + next(numbers) if self._nodes else None
        name = "Memset (Unknown)" if work == _MEMSET else work
        self.launches.append(graph._replace(work=name, ran=self._runs(graph.start), node=node, name=""))

    def _runs(self, after: int) -> int:
        self._busy_until = max(self._busy_until, after) + _APART_NS
        return self._busy_until

    def write(self) -> None:
        """In place of the operators."""
        self._db.executescript(_TABLES)
        self._db.execute("DROP TABLE TRACEKIT_CPU_OPS")
        for one in self.launches:
            if one.name:
                row = (one.start, one.start + 1, 0, one.thread, one.correlation, self._string(one.name), 0)
                self._db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            if one.ran is not None:
                self._work(one, one.ran)
        replays = sum(one.name == "cudaGraphLaunch" for one in self.launches)
        self._db.execute("UPDATE TRACEKIT_RECORDER SET value = ? WHERE name = 'graph_replays'", [replays])

    def _work(self, one: Launch, ran: int) -> None:
        row = [ran, ran + _LONG_NS, 0, 1, 7, one.correlation, one.thread & ~0xFFFFFF, one.node]
        kind = one.work.partition(" ")[0] if one.work.startswith("Mem") else "Kernel"
        last = {"Memset": [64, 2], "Memcpy": [64, 8]}.get(kind) or [self._string(one.work)] * 2
        marks = ", ".join("?" * 10)
        statement = f"INSERT INTO CUPTI_ACTIVITY_KIND_{kind.upper()} VALUES ({marks})"  # noqa: S608 - a constant
        self._db.execute(statement, [*row, *last])

    def _string(self, text: str) -> int:
        if found := self._db.execute("SELECT id FROM StringIds WHERE value = ?", [text]).fetchone():
            return int(found[0])
        (number,) = self._db.execute("SELECT max(id) + 1 FROM StringIds").fetchone()
        self._db.execute("INSERT INTO StringIds VALUES (?, ?)", [number, text])
        return int(number)


def _inside(at: int, spans: Sequence[tuple[int, int]]) -> bool:
    return any(start <= at < end for start, end in spans)


def _add_to(trace: Path, launches: Sequence[Launch]) -> None:
    """Adds launches and work to torch.profiler's trace, whose times count from another moment than the report's."""
    with gzip.open(trace, "rt", encoding="utf-8") as file:
        whole = json.load(file, parse_float=Decimal)
    mine = [one for one in whole["traceEvents"] if one.get("cat") in {"cpu_op", "user_annotation"}]
    first = min(mine, key=lambda one: one["ts"])
    zero = int(Decimal(first["ts"]) * 1000)
    whole["traceEvents"] += list(_events(launches, zero, first))
    with gzip.open(trace, "wt", encoding="utf-8") as file:
        json.dump(whole, file, default=float)


def _events(launches: Sequence[Launch], zero: int, like: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for one in launches:
        args = {"correlation": one.correlation, "device": 0, "stream": 7}
        call = {"ph": "X", "cat": "cuda_runtime", "name": one.name, "pid": like["pid"], "tid": one.thread & 0xFFFFFF}
        yield call | {"ts": (one.start + zero) / 1000, "dur": 0.001, "args": args}
        if one.ran is not None:
            category = {"Memset": "gpu_memset", "Memcpy": "gpu_memcpy"}.get(one.work.partition(" ")[0], "kernel")
            work = {"ph": "X", "cat": category, "name": one.work, "pid": 0, "tid": 7, "args": args}
            yield work | {"ts": (one.ran + zero) / 1000, "dur": _LONG_NS / 1000}

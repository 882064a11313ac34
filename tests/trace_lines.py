"""Small reports written as lines, so that a test shows the trace and the expected rows side by side.

A line is ``KIND THREAD START END [REST]``; threads are named ``process/thread`` (``7/1``) or just ``1`` in process 1::

    range   1    0 100  {'Module': 'top'}     a pushed and popped range; its text is the rest of the line
    range   1    0   -  …                     one that never ended
    async   1    0 100  …                     a start/end range; ``1>2`` ends on thread 2
    launch  1   10  20  #5 cudaLaunchKernel   an API call with correlation id 5; ``returns=719`` behind it is its error;
                                              ``stream=7`` its stream, ``event=3`` the number of an event's record,
                                              ``handle=3`` the event where records have no numbers
    os      1   10  20  pthread_cond_wait     a call of the system's runtime
    overhead 1  10  20  Lazy Function Loading what CUPTI tells of the driver's own work, and of its own
    kernel  1   30  50  #5 gemm               work that it started; the thread names the process only
    memcpy  1   30  50  #6 1024               bytes; ``kind=11`` behind them is the direction, CUPTI's code; ``from=0``
                                              and ``to=0`` are ends in pageable memory
    memset  1   30  50  #7 1024
    graph   1   30  50  #8 exec 2 of 1        a graph traced as a whole: instance 2 of graph 1
    node!9  1   30  30  4                     records that node 9 of a graph was made, as a copy of node 4 if that is
    said made    1   30  30  exec 2 of 1           records that graph 1 was instantiated; ``graph 1``; ``clone 3 of 1``
    domain  1    0   -  2 NCCL                names domain 2 of the process; ``range@2`` is in it
    op      1   10  20  aten::addmm           an operator that ran on the CPU
    said    1   10  10  CUDA injection …      what the profiler said of itself and the process
    named   2    0   0  pt_autograd_0         the name of a thread

``#-`` is no correlation id; ``kernel:3`` runs on device 3, ``kernel+20`` on stream 20 (else 7); ``kernel!9``
(``memcpy!9``, ``memset!9``) is node 9 of a graph.
"""

import re
import sqlite3
from pathlib import Path
from typing import Any

from tests.benchmarks.serving_report import SCHEMA as SERVING_SCHEMA
from tests.sqlite import writing

SCHEMA = f"""{SERVING_SCHEMA}
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
  contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, bytes INTEGER,
  copyKind INTEGER, srcKind INTEGER, dstKind INTEGER, graphNodeId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
  contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, bytes INTEGER,
  graphNodeId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
  contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, graphId INTEGER,
  graphExecId INTEGER);
"""
#: What is recorded of calls that wait for streams and events, or record events; calls of the system's runtime, and the
#: driver's own work.
STREAM_CALLS = """
CREATE TABLE IF NOT EXISTS {name} (deviceId INTEGER, contextId INTEGER, streamId INTEGER, correlationId INTEGER,
  globalPid INTEGER, eventId INTEGER, eventSyncId INTEGER)
"""
TIMED_CALLS = """
CREATE TABLE IF NOT EXISTS {name} (start INTEGER NOT NULL, end INTEGER NOT NULL, globalTid INTEGER, nameId INTEGER)
"""
#: The table of nodes has the older name unless graphs are recorded too.
NODES = """
CREATE TABLE {name} (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, globalTid INTEGER,
  nameId INTEGER, graphNodeId INTEGER NOT NULL, originalGraphNodeId INTEGER);
"""
GRAPHS = """
CREATE TABLE CUDA_GRAPH_EVENTS (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL,
  globalTid INTEGER, nameId INTEGER, graphId INTEGER NOT NULL, originalGraphId INTEGER, graphExecId INTEGER);
"""
#: Our own table, in reports of runs without a GPU alone.
OPERATORS = (
    'CREATE TABLE IF NOT EXISTS TRACEKIT_CPU_OPS (start INTEGER, "end" INTEGER, globalTid INTEGER, nameId INTEGER)'
)
#: In reports of 2024.5 and newer.
DIAGNOSTICS = """
CREATE TABLE IF NOT EXISTS DIAGNOSTIC_EVENT (timestamp INTEGER NOT NULL, timestampType INTEGER NOT NULL,
  source INTEGER NOT NULL, severity INTEGER NOT NULL, text TEXT NOT NULL, globalPid INTEGER)
"""
_LINE = re.compile(
    r"(?P<kind>[a-z]+)(@(?P<domain>\d+))?(:(?P<device>\d+))?(\+(?P<stream>\d+))?(!(?P<node>\d+))?\s+(?P<thread>[\d/]+)(>(?P<end_thread>[\d/]+))?"
    r"\s+(?P<start>-?\d+)\s+(?P<end>-?\d+|-)(\s+#(?P<id>-?\d+|-))?(\s(?P<rest>.*))?"
)


def report(path: Path, lines: str, *, registered: bool = False) -> Path:
    """Writes the lines as a report.

    Args:
        path: The file to be made.
        lines: The trace; empty lines and what follows ``##`` are skipped.
        registered: Whether texts are registered strings.
    """
    with writing(path) as db:
        writer = _Writer(db, registered=registered)
        for line in lines.splitlines():
            # A range of torch.compile's has the signs of a comment in its name.
            text = line.strip() if "## Call CompiledFxGraph" in line else line.split("##", 1)[0].strip()
            if text:
                writer.add(text)
        writer.finish()
    return path


def global_tid(thread: str) -> int:
    process, _, number = thread.rpartition("/")
    return (1 << 48) | (int(process or 1) << 24) | int(number)


class _Writer:
    def __init__(self, db: sqlite3.Connection, *, registered: bool) -> None:
        self.db = db
        self.db.executescript(SCHEMA)
        self.registered = registered
        self.strings: dict[str, int] = {}
        self.nodes: list[tuple[object, ...]] = []
        self.graphs: list[tuple[object, ...]] = []

    def add(self, text: str) -> None:
        found = _LINE.fullmatch(text)
        assert found, f"not a trace line: {text}"
        line: dict[str, Any] = found.groupdict()
        line["start"] = int(line["start"])
        line["end"] = None if line["end"] == "-" else int(line["end"])
        line["id"] = None if line["id"] in (None, "-") else int(line["id"])
        line["tid"] = global_tid(line["thread"])
        line["pid"] = line["tid"] & ~0xFFFFFF
        line["rest"] = (line["rest"] or "").strip()
        getattr(self, f"_{line['kind']}")(line)

    def finish(self) -> None:
        for text, number in self.strings.items():
            self.insert("StringIds", id=number, value=text)
        if self.nodes:
            name = "CUDA_GRAPH_NODE_EVENTS" if self.graphs else "CUDA_GRAPH_EVENTS"
            self.db.executescript(NODES.format(name=name))
            self.db.executemany(f"INSERT INTO {name} VALUES (?, ?, 77, ?, NULL, ?, ?)", self.nodes)  # noqa: S608
        if self.graphs:
            self.db.executescript(GRAPHS)
            self.db.executemany("INSERT INTO CUDA_GRAPH_EVENTS VALUES (?, ?, ?, ?, NULL, ?, ?, ?)", self.graphs)

    def insert(self, table: str, **columns: object) -> None:
        names, marks = ", ".join(columns), ", ".join("?" * len(columns))
        self.db.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(columns.values()))  # noqa: S608

    def string(self, text: str) -> int:
        return self.strings.setdefault(text, len(self.strings) + 1)

    def _nvtx(self, line: dict[str, Any], event: int) -> None:
        text = line["rest"] or None
        self.insert(
            "NVTX_EVENTS",
            start=line["start"],
            end=line["end"],
            eventType=event,
            globalTid=line["tid"],
            endGlobalTid=global_tid(line["end_thread"]) if line["end_thread"] else None,
            domainId=int(line["domain"] or 0),
            text=None if self.registered else text,
            textId=self.string(text) if self.registered and text else None,
        )

    def _range(self, line: dict[str, Any]) -> None:
        self._nvtx(line, 59)

    def _async(self, line: dict[str, Any]) -> None:
        self._nvtx(line, 60)

    def _mark(self, line: dict[str, Any]) -> None:
        self._nvtx(line, 34)

    def _domain(self, line: dict[str, Any]) -> None:
        line["domain"], line["rest"] = line["rest"].split()
        self.insert(
            "NVTX_EVENTS",
            start=line["start"],
            eventType=75,
            globalTid=line["tid"],
            domainId=int(line["domain"]),
            text=line["rest"],
        )

    def _op(self, line: dict[str, Any]) -> None:
        self.db.execute(OPERATORS)
        self.insert(
            "TRACEKIT_CPU_OPS",
            start=line["start"],
            end=line["end"],
            globalTid=line["tid"],
            nameId=self.string(line["rest"]),
        )

    def _said(self, line: dict[str, Any]) -> None:
        self.db.execute(DIAGNOSTICS)
        self.insert(
            "DIAGNOSTIC_EVENT",
            timestamp=line["start"],
            timestampType=1,
            source=1,
            severity=1,
            text=line["rest"],
            globalPid=line["pid"],
        )

    def _named(self, line: dict[str, Any]) -> None:
        self.db.execute("CREATE TABLE IF NOT EXISTS ThreadNames (nameId INTEGER, priority INTEGER, globalTid INTEGER)")
        self.insert("ThreadNames", nameId=self.string(line["rest"]), priority=0, globalTid=line["tid"])

    def _launch(self, line: dict[str, Any]) -> None:
        name, options = _options(line["rest"])
        self.insert(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            start=line["start"],
            end=line["end"],
            eventClass=options.get("class", 0),
            globalTid=line["tid"],
            correlationId=line["id"],
            nameId=self.string(name or "cudaLaunchKernel_v7000"),
            returnValue=options.get("returns", 0),
        )
        if not {"stream", "event", "handle"}.isdisjoint(options):
            table = "CUDA_EVENT" if "EventRecord" in name else "SYNCHRONIZATION"
            self.db.execute(STREAM_CALLS.format(name=f"CUPTI_ACTIVITY_KIND_{table}"))
            self.insert(
                f"CUPTI_ACTIVITY_KIND_{table}",
                deviceId=0,
                contextId=1,
                streamId=options.get("stream", 2**32 - 1),
                correlationId=line["id"],
                globalPid=line["pid"],
                eventId=options.get("handle", options.get("event")),
                eventSyncId=options.get("event"),
            )

    def _os(self, line: dict[str, Any]) -> None:
        self._timed("OSRT_API", line)

    def _overhead(self, line: dict[str, Any]) -> None:
        self._timed("CUPTI_ACTIVITY_KIND_OVERHEAD", line)

    def _timed(self, table: str, line: dict[str, Any]) -> None:
        self.db.execute(TIMED_CALLS.format(name=table))
        name = self.string(line["rest"])
        self.insert(table, start=line["start"], end=line["end"], globalTid=line["tid"], nameId=name)

    def _work(self, line: dict[str, Any], table: str, **columns: object) -> None:
        self.insert(
            table,
            start=line["start"],
            end=line["end"],
            deviceId=int(line["device"] or 0),
            contextId=1,
            streamId=int(line["stream"] or 7),
            correlationId=line["id"],
            globalPid=line["pid"],
            **columns,
        )

    def _kernel(self, line: dict[str, Any]) -> None:
        name = self.string(line["rest"] or "kernel")
        shape = dict.fromkeys(("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"), 1)
        rest = dict.fromkeys(
            (
                "registersPerThread",
                "staticSharedMemory",
                "dynamicSharedMemory",
                "localMemoryPerThread",
                "localMemoryTotal",
                "gridId",
            ),
            0,
        )
        self._work(
            line,
            "CUPTI_ACTIVITY_KIND_KERNEL",
            shortName=name,
            demangledName=name,
            graphNodeId=_node(line),
            **shape,
            **rest,
        )

    def _memcpy(self, line: dict[str, Any]) -> None:
        size, options = _options(line["rest"])
        self._work(
            line,
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            bytes=int(size or 0),
            copyKind=options.get("kind", 1),
            srcKind=options.get("from", 1),
            dstKind=options.get("to", 2),
            graphNodeId=_node(line),
        )

    def _memset(self, line: dict[str, Any]) -> None:
        size = int(line["rest"] or 0)
        self._work(line, "CUPTI_ACTIVITY_KIND_MEMSET", bytes=size, graphNodeId=_node(line))

    def _graph(self, line: dict[str, Any]) -> None:
        graph, instance = _graph_ids(line)
        self._work(line, "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", graphId=graph, graphExecId=instance)

    def _node(self, line: dict[str, Any]) -> None:
        original = int(line["rest"]) if line["rest"] else None
        self.nodes.append((line["start"], line["end"], line["tid"], _node(line), original))

    def _made(self, line: dict[str, Any]) -> None:
        kind, made, *of = (int(word) if word.isdigit() else word for word in line["rest"].split())
        source = of[-1] if of else None
        event, *ids = {
            "graph": (95, made, None, None),
            "clone": (96, made, source, None),
            "exec": (94, source, None, made),
        }[kind]
        self.graphs.append((line["start"], line["end"], event, line["tid"], *ids))


def _options(text: str) -> tuple[str, dict[str, int]]:
    plain, *words = re.split(r"(?:^|\s)(\w+)=(\d+)", text)
    return plain, dict(zip(words[::3], map(int, words[1::3]), strict=True))


def _graph_ids(line: dict[str, Any]) -> tuple[int, int]:
    _, instance, _, graph = line["rest"].split() or (None, "4", None, "3")
    return int(graph), int(instance)


def _node(line: dict[str, Any]) -> int | None:
    return int(line["node"]) if line["node"] else None

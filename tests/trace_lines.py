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
    run     1   10  20  gemm                  an API call, and the kernel that it started a millisecond later
    memcpy  1   30  50  #6 1024               bytes; ``kind=11`` behind them is the direction, CUPTI's code; ``from=0``
                                              and ``to=0`` are ends in pageable memory
    memset  1   30  50  #7 1024
    graph   1   30  50  #8 exec 2 of 1        a graph traced as a whole: instance 2 of graph 1
    node!9  1   30  30  4                     records that node 9 of a graph was made, as a copy of node 4 if that is
    made    1   30  30  exec 2 of 1           records that graph 1 was instantiated; ``graph 1``; ``clone 3 of 1``
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
#: What is recorded of calls that wait for streams and events, or record events; calls of the system's runtime, the
#: driver's own work, and operators on a CPU, by their kinds of lines.
STREAM_CALLS = """
CREATE TABLE IF NOT EXISTS {name} (deviceId INTEGER, contextId INTEGER, streamId INTEGER, correlationId INTEGER,
  globalPid INTEGER, eventId INTEGER, eventSyncId INTEGER)
"""
TIMED_CALLS = """
CREATE TABLE IF NOT EXISTS {name} (start INTEGER NOT NULL, end INTEGER NOT NULL, globalTid INTEGER, nameId INTEGER)
"""
TIMED = {"os": "OSRT_API", "overhead": "CUPTI_ACTIVITY_KIND_OVERHEAD", "op": "TRACEKIT_CPU_OPS"}
#: Types of NVTX events by their kinds of lines.
EVENTS = {"range": 59, "async": 60, "mark": 34}
#: The table of nodes has the older name unless graphs are recorded too.
NODES = """
CREATE TABLE {name} (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, globalTid INTEGER,
  nameId INTEGER, graphNodeId INTEGER NOT NULL, originalGraphNodeId INTEGER);
"""
GRAPHS = """
CREATE TABLE CUDA_GRAPH_EVENTS (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL,
  globalTid INTEGER, nameId INTEGER, graphId INTEGER NOT NULL, originalGraphId INTEGER, graphExecId INTEGER);
"""
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


def repeated(lines: str, times: int, *, every: int = 1000, begin: int = 0) -> str:
    """The lines again and again, each time so much later, with ids of calls of their own."""
    moved = []
    for time in range(times):
        for line in filter(None, map(str.strip, lines.splitlines())):
            kind, thread, start, end, *rest = line.split(None, 4)
            at = [str(int(one) + begin + time * every) for one in (start, end)]
            numbered = [re.sub(r"^#(?=\d)", f"#{begin + time + 1}", text) for text in rest]
            moved.append(" ".join([kind, thread, *at, *numbered]))
    return "\n".join(moved)


def global_tid(thread: str) -> int:
    process, _, number = thread.rpartition("/")
    return (1 << 48) | (int(process or 1) << 24) | int(number)


class _Writer:
    def __init__(self, db: sqlite3.Connection, *, registered: bool) -> None:
        self.db = db
        self.db.executescript(SCHEMA)
        self.registered = registered
        self.strings: dict[str, int] = {}
        self.runs = 0
        self.nodes: list[tuple[object, ...]] = []
        self.graphs: list[tuple[object, ...]] = []

    def add(self, text: str) -> None:
        found = _LINE.fullmatch(text)
        assert found, f"not a trace line: {text}"
        line: dict[str, Any] = found.groupdict()
        line["start"] = int(line["start"])
        line["end"] = None if line["end"] == "-" else int(line["end"])
        line["id"] = None if line["id"] in (None, "-") else int(line["id"])
        line["node"] = int(line["node"]) if line["node"] else None
        line["tid"] = global_tid(line["thread"])
        line["pid"] = line["tid"] & ~0xFFFFFF
        line["rest"] = (line["rest"] or "").strip()
        if line["kind"] in EVENTS:
            self._nvtx(line)
        elif line["kind"] in TIMED:
            self._timed(line)
        else:
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

    def on_thread(self, table: str, line: dict[str, Any], **columns: object) -> None:
        self.insert(table, start=line["start"], end=line["end"], globalTid=line["tid"], **columns)

    def _nvtx(self, line: dict[str, Any]) -> None:
        text, end = line["rest"] or None, line["end_thread"]
        texts = {"textId": self.string(text)} if self.registered and text else {"text": text}
        columns = {"eventType": EVENTS[line["kind"]], "domainId": int(line["domain"] or 0), **texts}
        self.on_thread("NVTX_EVENTS", line, endGlobalTid=global_tid(end) if end else None, **columns)

    def _domain(self, line: dict[str, Any]) -> None:
        number, name = line["rest"].split()
        self.on_thread("NVTX_EVENTS", line, eventType=75, domainId=int(number), text=name)

    def _said(self, line: dict[str, Any]) -> None:
        self.db.execute(DIAGNOSTICS)
        columns = {"timestampType": 1, "source": 1, "severity": 1, "text": line["rest"], "globalPid": line["pid"]}
        self.insert("DIAGNOSTIC_EVENT", timestamp=line["start"], **columns)

    def _named(self, line: dict[str, Any]) -> None:
        self.db.execute("CREATE TABLE IF NOT EXISTS ThreadNames (nameId INTEGER, priority INTEGER, globalTid INTEGER)")
        self.insert("ThreadNames", nameId=self.string(line["rest"]), priority=0, globalTid=line["tid"])

    def _launch(self, line: dict[str, Any]) -> None:
        name, options = _options(line["rest"])
        columns = {"eventClass": options.get("class", 0), "returnValue": options.get("returns", 0)}
        columns |= {"correlationId": line["id"], "nameId": self.string(name or "cudaLaunchKernel_v7000")}
        self.on_thread("CUPTI_ACTIVITY_KIND_RUNTIME", line, **columns)
        if not {"stream", "event", "handle"}.isdisjoint(options):
            table = f"CUPTI_ACTIVITY_KIND_{'CUDA_EVENT' if 'EventRecord' in name else 'SYNCHRONIZATION'}"
            self.db.execute(STREAM_CALLS.format(name=table))
            columns = {"deviceId": 0, "contextId": 1, "streamId": options.get("stream", 2**32 - 1)}
            columns |= {"correlationId": line["id"], "globalPid": line["pid"], "eventSyncId": options.get("event")}
            self.insert(table, eventId=options.get("handle", options.get("event")), **columns)

    def _run(self, line: dict[str, Any]) -> None:
        self.runs += 1
        later = line["end"] + 1_000_000
        numbered = line | {"id": 1_000_000 + self.runs}
        self._launch(numbered | {"rest": ""})
        self._kernel(numbered | {"start": later, "end": later + 10})

    def _timed(self, line: dict[str, Any]) -> None:
        table = TIMED[line["kind"]]
        self.db.execute(TIMED_CALLS.format(name=table))
        self.on_thread(table, line, nameId=self.string(line["rest"]))

    def _work(self, line: dict[str, Any], table: str, **columns: object) -> None:
        columns |= {"start": line["start"], "end": line["end"], "correlationId": line["id"], "globalPid": line["pid"]}
        columns |= {"deviceId": int(line["device"] or 0), "contextId": 1, "streamId": int(line["stream"] or 7)}
        self.insert(f"CUPTI_ACTIVITY_KIND_{table}", **columns)

    def _kernel(self, line: dict[str, Any]) -> None:
        name = self.string(line["rest"] or "kernel")
        columns = dict.fromkeys(("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"), 1)
        columns |= dict.fromkeys(("registersPerThread", "staticSharedMemory", "dynamicSharedMemory"), 0)
        columns |= dict.fromkeys(("localMemoryPerThread", "localMemoryTotal", "gridId"), 0)
        self._work(line, "KERNEL", shortName=name, demangledName=name, graphNodeId=line["node"], **columns)

    def _memcpy(self, line: dict[str, Any]) -> None:
        size, options = _options(line["rest"])
        ends = {"srcKind": options.get("from", 1), "dstKind": options.get("to", 2)}
        columns = {"bytes": int(size or 0), "copyKind": options.get("kind", 1), **ends}
        self._work(line, "MEMCPY", graphNodeId=line["node"], **columns)

    def _memset(self, line: dict[str, Any]) -> None:
        self._work(line, "MEMSET", bytes=int(line["rest"] or 0), graphNodeId=line["node"])

    def _graph(self, line: dict[str, Any]) -> None:
        _, instance, _, graph = line["rest"].split() or (None, "4", None, "3")
        self._work(line, "GRAPH_TRACE", graphId=int(graph), graphExecId=int(instance))

    def _node(self, line: dict[str, Any]) -> None:
        original = int(line["rest"]) if line["rest"] else None
        self.nodes.append((line["start"], line["end"], line["tid"], line["node"], original))

    def _made(self, line: dict[str, Any]) -> None:
        kind, made, *of = (int(word) if word.isdigit() else word for word in line["rest"].split())
        source = of[-1] if of else None
        ids = {"graph": (95, made, None, None), "clone": (96, made, source, None), "exec": (94, source, None, made)}
        event, *ids_of_graph = ids[kind]
        self.graphs.append((line["start"], line["end"], event, line["tid"], *ids_of_graph))


def _options(text: str) -> tuple[str, dict[str, int]]:
    plain, *words = re.split(r"(?:^|\s)(\w+)=(\d+)", text)
    return plain, dict(zip(words[::3], map(int, words[1::3]), strict=True))

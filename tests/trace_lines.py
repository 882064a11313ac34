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
from collections import defaultdict
from pathlib import Path
from typing import Any

from tests import nsight_tables as nsight
from tests.nsight_tables import Row, columns, generation, insert
from tests.sqlite import writing

#: Of calls that wait for streams and events, or record events.
_STREAM_CALLS = columns("deviceId, contextId, streamId, correlationId, globalPid, eventId, eventSyncId")
STREAM_CALLS = {f"CUPTI_ACTIVITY_KIND_{name}": _STREAM_CALLS for name in ("SYNCHRONIZATION", "CUDA_EVENT")}
#: Calls of the system's runtime, the driver's own work, and operators on a CPU, by their kinds of lines.
TIMED = {"os": "OSRT_API", "overhead": "CUPTI_ACTIVITY_KIND_OVERHEAD", "op": "TRACEKIT_CPU_OPS"}
TIMED_CALLS = dict.fromkeys(TIMED.values(), columns("start!, end!, globalTid, nameId"))
#: Types of NVTX events by their kinds of lines.
EVENTS = {"range": 59, "async": 60, "mark": 34}
#: Of one generation, with those that newer ones have in addition.
VERSION = "3.7.2"
NODES, GRAPHS = nsight.GRAPH_NODE_EVENTS, nsight.GRAPH_EVENTS
TABLES = generation(VERSION).tables | STREAM_CALLS | TIMED_CALLS
TABLES |= {name: generation("3.16.1").tables[name] for name in (nsight.GRAPH_TRACE, NODES, GRAPHS, nsight.DIAGNOSTICS)}
#: Those that are there without any row, too.
ALWAYS = (nsight.STRINGS, nsight.NVTX, nsight.RUNTIME, nsight.PROCESSES)
ALWAYS += (nsight.KERNEL, nsight.MEMCPY, nsight.MEMSET, nsight.GRAPH_TRACE)
#: What one line says, by the names of its parts.
Line = dict[str, Any]
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
    rows = _Rows(registered=registered)
    for line in lines.splitlines():
        # A range of torch.compile's has the signs of a comment in its name.
        text = line.strip() if "## Call CompiledFxGraph" in line else line.split("##", 1)[0].strip()
        if text:
            rows.add(text)
    with writing(path) as db:
        for name in dict.fromkeys([*ALWAYS, *rows.tables]):
            # The table of nodes has the older name unless graphs are recorded too.
            older = name == NODES and GRAPHS not in rows.tables
            insert(db, nsight.GRAPH_EVENTS if older else name, TABLES[name], rows.tables[name])
        insert(db, nsight.VERSION, columns("name TEXT!, value TEXT"), nsight.version_rows(VERSION))
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


class _Rows:
    """The rows of a report by table."""

    def __init__(self, *, registered: bool) -> None:
        self.registered = registered
        self.tables: defaultdict[str, list[Row]] = defaultdict(list)
        self.strings: dict[str, int] = {}
        self.runs = 0

    def add(self, text: str) -> None:
        found = _LINE.fullmatch(text)
        assert found, f"not a trace line: {text}"
        line: Line = found.groupdict()
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

    def string(self, text: str) -> int:
        if text not in self.strings:
            self.strings[text] = len(self.strings) + 1
            self.tables[nsight.STRINGS].append({"id": self.strings[text], "value": text})
        return self.strings[text]

    def _on_thread(self, table: str, line: Line, **more: object) -> None:
        self.tables[table].append({"start": line["start"], "end": line["end"], "globalTid": line["tid"], **more})

    def _nvtx(self, line: Line) -> None:
        text, end = line["rest"] or None, line["end_thread"]
        texts = {"textId": self.string(text)} if self.registered and text else {"text": text}
        more = {"eventType": EVENTS[line["kind"]], "domainId": int(line["domain"] or 0), **texts}
        self._on_thread(nsight.NVTX, line, endGlobalTid=global_tid(end) if end else None, **more)

    def _domain(self, line: Line) -> None:
        number, name = line["rest"].split()
        self._on_thread(nsight.NVTX, line, eventType=75, domainId=int(number), text=name)

    def _said(self, line: Line) -> None:
        row = {"timestamp": line["start"], "timestampType": 1, "source": 1, "severity": 1}
        self.tables[nsight.DIAGNOSTICS].append(row | {"text": line["rest"], "globalPid": line["pid"]})

    def _named(self, line: Line) -> None:
        self.tables[nsight.THREAD_NAMES].append({"nameId": self.string(line["rest"]), "globalTid": line["tid"]})

    def _launch(self, line: Line) -> None:
        name, options = _options(line["rest"])
        more = {"eventClass": options.get("class", 0), "returnValue": options.get("returns", 0)}
        more |= {"correlationId": line["id"], "nameId": self.string(name or "cudaLaunchKernel_v7000")}
        self._on_thread(nsight.RUNTIME, line, **more)
        if not {"stream", "event", "handle"}.isdisjoint(options):
            row = {"deviceId": 0, "contextId": 1, "streamId": options.get("stream", 2**32 - 1)}
            row |= {"correlationId": line["id"], "globalPid": line["pid"], "eventSyncId": options.get("event")}
            row["eventId"] = options.get("handle", options.get("event"))
            table = f"CUPTI_ACTIVITY_KIND_{'CUDA_EVENT' if 'EventRecord' in name else 'SYNCHRONIZATION'}"
            self.tables[table].append(row)

    def _run(self, line: Line) -> None:
        self.runs += 1
        later = line["end"] + 1_000_000
        numbered = line | {"id": 1_000_000 + self.runs}
        self._launch(numbered | {"rest": ""})
        self._kernel(numbered | {"start": later, "end": later + 10})

    def _timed(self, line: Line) -> None:
        self._on_thread(TIMED[line["kind"]], line, nameId=self.string(line["rest"]))

    def _work(self, line: Line, table: str, **more: object) -> None:
        row = {"start": line["start"], "end": line["end"], "correlationId": line["id"], "globalPid": line["pid"]}
        row |= {"deviceId": int(line["device"] or 0), "contextId": 1, "streamId": int(line["stream"] or 7)}
        self.tables[table].append(row | {"graphNodeId": line["node"], **more})

    def _kernel(self, line: Line) -> None:
        name = self.string(line["rest"] or "kernel")
        grid = dict.fromkeys(("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"), 1)
        self._work(line, nsight.KERNEL, shortName=name, demangledName=name, **grid)

    def _memcpy(self, line: Line) -> None:
        size, options = _options(line["rest"])
        ends = {"srcKind": options.get("from", 1), "dstKind": options.get("to", 2)}
        self._work(line, nsight.MEMCPY, bytes=int(size or 0), copyKind=options.get("kind", 1), **ends)

    def _memset(self, line: Line) -> None:
        self._work(line, nsight.MEMSET, bytes=int(line["rest"] or 0))

    def _graph(self, line: Line) -> None:
        _, instance, _, graph = line["rest"].split() or (None, "4", None, "3")
        self._work(line, nsight.GRAPH_TRACE, graphId=int(graph), graphExecId=int(instance))

    def _node(self, line: Line) -> None:
        original = int(line["rest"]) if line["rest"] else None
        self._on_thread(NODES, line, eventClass=77, graphNodeId=line["node"], originalGraphNodeId=original)

    def _made(self, line: Line) -> None:
        kind, made, *of = (int(word) if word.isdigit() else word for word in line["rest"].split())
        source = of[-1] if of else None
        ids = {"graph": (95, made, None, None), "clone": (96, made, source, None), "exec": (94, source, None, made)}
        event, graph, original, instance = ids[kind]
        more = {"graphId": graph, "originalGraphId": original, "graphExecId": instance}
        self._on_thread(GRAPHS, line, eventClass=event, **more)


def _options(text: str) -> tuple[str, dict[str, int]]:
    plain, *words = re.split(r"(?:^|\s)(\w+)=(\d+)", text)
    return plain, dict(zip(words[::3], map(int, words[1::3]), strict=True))

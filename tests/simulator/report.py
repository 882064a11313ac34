"""Writes a run as Nsight Systems would export it: an SQLite file of the plan's schema generation."""

from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests import nsight_tables as nsys
from tests.nsight_tables import Columns, Row, columns, generation, insert
from tests.simulator.events import START_END, GraphRecord, Launch, Mark, NodeRecord, Range, Work, signed
from tests.simulator.graphs import NODE_CREATED, RECORD_NAMES
from tests.simulator.run import Run
from tests.sqlite import writing

PUSH_POP_RANGE, START_END_RANGE, DOMAIN_CREATED, DOMAIN_DESTROYED = 59, 60, 75, 76
BACKTRACE = 67

Tables = dict[str, list[Row]]
TABLE_OF = {"kernel": nsys.KERNEL, "memcpy": nsys.MEMCPY, "memset": nsys.MEMSET, "graph": nsys.GRAPH_TRACE}


def write_report(run: Run, path: Path) -> Path:
    written = generation(run.plan.generation)
    rng = Random(f"{run.plan.seed} report")
    tables = _Rows(run, rng).tables()
    with writing(path) as db:
        for name, declared in written.tables.items():
            rows = tables.get(name, [])
            if not rows and not run.plan.oddities.empty_tables:
                continue
            if run.plan.oddities.shuffled:
                rng.shuffle(rows)
            insert(db, name, _with_additions(run, rng, name, declared), rows)
        if written.version_table is not None:
            version = nsys.version_rows(written.version)
            insert(db, written.version_table, columns("name TEXT!, value TEXT"), version)
        if run.plan.oddities.user_additions:
            insert(db, "NvtxPushPopRanges", columns("text TEXT, dur"), [{"text": "mine", "dur": 1}])
    return path


def _with_additions(run: Run, rng: Random, table: str, declared: Columns) -> Columns:
    if not run.plan.oddities.user_additions or table == nsys.STRINGS:
        return declared
    items = list(declared.items())
    items.insert(rng.randrange(len(items) + 1), ("my kernel_name", "TEXT"))
    return dict(items)


@dataclass(slots=True)
class _Rows:
    """The rows of one file being made: its string table and its domains."""

    run: Run
    rng: Random
    strings: dict[str, int] = field(default_factory=dict)
    domains: dict[tuple[int, str | None], int] = field(default_factory=dict)  # of processes, by their names

    def tables(self) -> Tables:
        self._number_domains()
        run, mains = self.run, [process.main for process in self.run.processes]
        tables: Tables = {
            nsys.NVTX: [self._range(pushed) for pushed in run.ranges if not pushed.lost],
            nsys.RUNTIME: [row for launch in run.launches for row in self._launch(launch)],
            nsys.PROCESSES: [{"globalPid": main.global_pid, "pid": main.pid, "name": "python3"} for main in mains],
        }
        name = {"nameId": self._string("python3"), "priority": 20}
        tables[nsys.THREAD_NAMES] = [name | {"globalTid": main.global_tid} for main in mains]
        tables[nsys.NVTX] += [self._mark(mark) for mark in run.marks] + self._domain_rows()
        tables |= self._graph_tables()
        tables[nsys.DIAGNOSTICS] = self._diagnostics()
        for piece in run.work:
            if not piece.lost:
                tables.setdefault(TABLE_OF[piece.kind], []).append(self._work(piece))
        tables[nsys.STRINGS] = [{"id": number, "value": text} for text, number in self.strings.items()]
        return tables

    def _string(self, text: str) -> int:
        return self.strings.setdefault(text, 3 * len(self.strings) + 1)

    def _number_domains(self) -> None:
        for process in self.run.processes:
            pid = process.main.global_pid
            self.domains[pid, None] = 0
            named = {one.domain for one in [*process.recorded_ranges, *process.recorded_marks] if one.domain}
            for number, name in enumerate(self.rng.sample(sorted(named), len(named)), start=1):
                self.domains[pid, name] = number

    def _domain_rows(self) -> list[Row]:
        if self.run.plan.oddities.nameless_domains:
            return []
        rows: list[Row] = []
        threads = {process.main.global_pid: process.main.global_tid for process in self.run.processes}
        for (pid, name), number in self.domains.items():
            if name is not None:
                row = {"start": self.run.plan.epoch_ns - 90_000_000, "globalTid": threads[pid], "domainId": number}
                rows += [row | {"eventType": DOMAIN_CREATED, "text": name}, row | {"eventType": DOMAIN_DESTROYED}]
        return rows

    def _text(self, text: str | None) -> Row:
        if text is not None and self.rng.random() < self.run.plan.oddities.registered_strings:
            return {"textId": self._string(text)}
        return {"text": text}

    def _range(self, pushed: Range) -> Row:
        row: Row = {"start": pushed.start_ns, "end": pushed.end_ns, "eventType": PUSH_POP_RANGE}
        if pushed.kind == START_END:
            row |= {"rangeId": self.rng.randrange(1, 1 << 40), "eventType": START_END_RANGE}
        row |= self._text(pushed.text) | {"globalTid": pushed.thread.global_tid}
        row["endGlobalTid"] = pushed.end_thread.global_tid if pushed.end_thread else None
        return row | {"domainId": self.domains[pushed.thread.global_pid, pushed.domain]}

    def _mark(self, mark: Mark) -> Row:
        row = self._text(mark.text) | {"start": mark.start_ns, "eventType": mark.event_type}
        return row | {
            "globalTid": mark.thread.global_tid,
            "domainId": self.domains[mark.thread.global_pid, mark.domain],
        }

    def _launch(self, launch: Launch) -> list[Row]:
        """The call's row and, with backtraces, the class-67 row that lies around it and is no call."""
        row: Row = {"start": launch.start_ns, "end": launch.end_ns, "eventClass": launch.event_class}
        row |= {"globalTid": launch.thread.global_tid, "correlationId": launch.correlation}
        row |= {"nameId": self._string(launch.name)}
        rows = [] if launch.lost else [row]
        if self.run.plan.oddities.bystanders and rows and self.rng.random() < 0.3:
            rows += self._bystanders(row)
        if self.run.plan.oddities.backtraces and launch.event_class == 0 and self.rng.random() < 0.5:
            around = 0 if launch.thread in self.run.last_seen_ns else self.rng.choice((0, 1, 400))
            traced = {"start": launch.start_ns - around, "end": launch.end_ns + around, "eventClass": BACKTRACE}
            rows.append(row | traced | {"nameId": self._string(launch.name.partition("_v")[0]), "callchainId": 3})
        return rows

    def _bystanders(self, row: Row) -> list[Row]:
        before = row | {"start": row["start"] - 3, "end": row["start"] - 1}
        failed = {"nameId": self._string("cudaLaunchKernel_v7000"), "returnValue": 719}
        idle = {"nameId": self._string("cudaMalloc_v3020")}
        return [before | failed, before | idle, before | {"correlationId": None}]

    def _diagnostics(self) -> list[Row]:
        plan, first = self.run.plan, self.run.plan.epoch_ns - 1_000
        opened = first if plan.from_the_start else first + 900
        said = [(opened, 0, "Profiling has started.")]
        for main in (process.main for process in self.run.processes):
            said.append((first + 1, main.global_pid, f"Process {main.pid} was launched by the profiler"))
            said.append((first + 500, main.global_pid, "CUDA injection initialized successfully."))
        return [
            {"timestamp": at, "timestampType": 1, "source": 1, "severity": 1, "text": text, "globalPid": pid}
            for at, pid, text in said
        ]

    def _graph_tables(self) -> Tables:
        run, written = self.run, generation(self.run.plan.generation)
        tables: Tables = {written.node_table: []}
        for node in (said for said in run.node_records if not said.lost):
            ids = {"graphNodeId": signed(node.node.id)}
            ids |= {"originalGraphNodeId": signed(node.original.id) if node.original else None}
            tables[written.node_table].append(self._created(node, NODE_CREATED, **ids))
        for graph in (said for said in run.graph_records if not said.lost and written.graph_table):
            ids = {"graphId": graph.graph, "originalGraphId": graph.original, "graphExecId": graph.executable}
            tables.setdefault(written.graph_table or "", []).append(self._created(graph, graph.event_class, **ids))
        return tables

    def _created(self, said: NodeRecord | GraphRecord, event_class: int, **ids: int | None) -> Row:
        row: Row = {"start": said.time_ns, "end": said.time_ns, "eventClass": event_class}
        return row | ids | {"globalTid": said.thread.global_tid, "nameId": self._string(RECORD_NAMES[event_class])}

    def _work(self, piece: Work) -> Row:
        row: Row = {"start": piece.start_ns, "end": piece.end_ns, "correlationId": piece.correlation}
        row |= {"globalPid": piece.on.process.global_pid, "deviceId": piece.on.device}
        row |= {"contextId": piece.on.context, "streamId": piece.on.number}
        if piece.node:
            row |= {"graphNodeId": signed(piece.node.id), "graphId": piece.node.id >> 32}
        else:
            row |= {"graphId": piece.graph_id}
        if piece.kind == "kernel":
            row |= {"demangledName": self._string(piece.full_name), "shortName": self._string(piece.name)}
            row |= {"gridX": 108, "gridY": 2, "gridZ": 1, "blockX": 128, "blockY": 1, "blockZ": 1}
            return row | {"registersPerThread": 40, "dynamicSharedMemory": 16_384, "staticSharedMemory": 48}
        if piece.kind == "graph":
            return row | {"graphExecId": piece.graph_exec}
        return row | {"bytes": piece.bytes, "copyKind": piece.copy_kind, "srcKind": 0, "dstKind": 2, "memKind": 2}

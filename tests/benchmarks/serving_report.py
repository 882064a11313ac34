"""Writes reports as serving engines with layer-wise markers would leave them, of any size.

The shape is vLLM's: every decode step calls the model, its layers and their parts; each call leaves two ranges
(the call, and the empty one with its ``Outputs``); kernels run later than their launches, and one in six is a
collective. Or CUDA graphs are captured once for every batch size, with the markers around the launches, and each step
replays one; their nodes are recorded as nsys does, the captured ones inside their launch, the instance's copies twice.
Times are made up, but nest and follow each other as real ones do.
"""

import sqlite3
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from pathlib import Path

from tests.sqlite import writing

LAYERS, LAYERS_OF_GRAPHS = 32, 36
IN_ATTENTION, IN_MLP = {"qkv_proj": 1, "attn": 4, "o_proj": 1}, {"gate_up_proj": 2, "down_proj": 2}
KERNELS_PER_PART = {"input_layernorm": 1, "post_attention_layernorm": 1, **IN_ATTENTION, **IN_MLP}
#: The last kernel of these adds up what the ranks of a tensor-parallel model have.
REDUCED, ALL_REDUCE = ("attn", "down_proj"), "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
GLOBAL_PID = (1 << 48) | (4711 << 24)
GLOBAL_TID = GLOBAL_PID | 4711

SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER,
  category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER,
  domainId INTEGER, uint64Value INTEGER, int64Value INTEGER, doubleValue REAL, uint32Value INTEGER,
  int32Value INTEGER, floatValue REAL, jsonTextId INTEGER, jsonText TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL,
  globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL,
  callchainId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
  contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
  demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER, launchType INTEGER,
  cacheConfig INTEGER, registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL, gridY INTEGER NOT NULL,
  gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL, blockY INTEGER NOT NULL, blockZ INTEGER NOT NULL,
  staticSharedMemory INTEGER NOT NULL, dynamicSharedMemory INTEGER NOT NULL, localMemoryPerThread INTEGER NOT NULL,
  localMemoryTotal INTEGER NOT NULL, gridId INTEGER NOT NULL, sharedMemoryExecuted INTEGER, graphNodeId INTEGER,
  sharedMemoryLimitConfig INTEGER);
CREATE TABLE PROCESSES (globalPid INTEGER, pid INTEGER, name TEXT);
CREATE TABLE META_DATA_EXPORT (name TEXT NOT NULL, value TEXT);
INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_PRODUCT_VERSION', '2023.4.4.54-234433681190v0'),
  ('EXPORT_SCHEMA_VERSION', '3.7.2');
"""

NODE_SCHEMA = """
CREATE TABLE CUDA_GRAPH_EVENTS (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL,
  globalTid INTEGER, nameId INTEGER, graphNodeId INTEGER NOT NULL, originalGraphNodeId INTEGER);
"""


class Strings(dict[str, int]):
    """The string table being filled: text → id."""

    def __missing__(self, text: str) -> int:
        return self.setdefault(text, len(self) + 1)


def write_report(path: Path, *, kernels: int, inline_text: bool = False) -> Path:
    per_step = LAYERS * sum(KERNELS_PER_PART.values()) + 1
    steps = [("decode", 1 << (step // 100 % 6)) for step in range(max(1, kernels // per_step))]
    return write_program(path, Program(inline_text=inline_text, parallel=True), steps)


MEMORY_USAGE = """CREATE TABLE CUDA_GPU_MEMORY_USAGE_EVENTS (start INTEGER, globalPid INTEGER, deviceId INTEGER,
                  contextId INTEGER, address INTEGER, pc INTEGER, bytes INTEGER, memKind INTEGER,
                  memoryOperationType INTEGER, name INTEGER, correlationId INTEGER)"""


def with_waits(path: Path) -> Path:
    """Adds to each launch a call that blocks, some of which allocate, or one that does neither, at its end."""
    with writing(path) as db:
        names = [(-1, "cudaDeviceSynchronize"), (-2, "cudaEventQuery"), (-3, "cudaMalloc")]
        db.executemany("INSERT INTO StringIds(id, value) VALUES (?, ?)", names)
        table = "CUPTI_ACTIVITY_KIND_RUNTIME"
        db.execute(
            f"INSERT INTO {table} SELECT end, end, eventClass, globalTid, correlationId + 1000000000, "  # noqa: S608
            f"-1 - correlationId % 3, 0, NULL FROM {table}"
        )
        db.execute(MEMORY_USAGE)
        db.execute(
            f"INSERT INTO CUDA_GPU_MEMORY_USAGE_EVENTS SELECT start, globalTid & ~0xffffff, 0, 1, correlationId, 0, "  # noqa: S608
            f"512, 2, 0, NULL, 0 FROM {table} WHERE nameId = -3"
        )
    return path


def write_program(path: Path, program: "Program", steps: Sequence[tuple[str, int]]) -> Path:
    """Writes what a program does in the given steps (kind and number of tokens)."""
    with writing(path) as db:
        db.executescript(SCHEMA)
        for kind, tokens in steps:
            program.step(kind, tokens)
            program.insert(db)
        program.finish(db)
    return path


def multiply(report: Path, processes: int, rows_in_turn: int = 20_000) -> Path:
    """Lets so many processes, each with a GPU, do what the one of a report does; their rows take turns."""
    with writing(report) as db:
        moves = {name: f"{name} + (:of << 24)" for name in ("globalTid", "globalPid")} | {"deviceId": "deviceId + :of"}
        for table in ("NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL"):
            names = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
            moved = ", ".join(moves.get(name, name) for name in names)
            [[last]] = db.execute(f"SELECT max(rowid) FROM {table}")  # noqa: S608
            db.execute(f"CREATE TABLE multiplied AS SELECT * FROM {table} WHERE 0")  # noqa: S608
            copy = f"INSERT INTO multiplied SELECT {moved} FROM {table} WHERE rowid BETWEEN :first AND :last"  # noqa: S608
            for first in range(1, last + 1, rows_in_turn):
                places = [{"of": of, "first": first, "last": first + rows_in_turn - 1} for of in range(processes)]
                db.executemany(copy, places)
            db.execute(f"DROP TABLE {table}")
            db.execute(f"ALTER TABLE multiplied RENAME TO {table}")
    return report


class Program:
    """A running model: its clock, its thread's open calls and what it has launched."""

    def __init__(self, *, inline_text: bool = False, layers: int = LAYERS, parallel: bool = False) -> None:
        self.reduced = REDUCED if parallel else ()
        self.inline = inline_text
        self.layers = layers
        self.strings = Strings()
        self.thread, self.device, self.stream, self.domain = GLOBAL_TID, 0, 7, 0
        self.clock, self.device_clock = 1_000_000, 1_000_000
        self.correlation = count(1)
        self.rows: dict[str, list[tuple[object, ...]]] = defaultdict(list)

    def insert(self, db: sqlite3.Connection) -> None:
        """Writes what has happened since the last time."""
        for table, rows in self.rows.items():
            rows.sort(key=lambda row: row[0])
            if rows:
                db.executemany(f"INSERT INTO {table} VALUES ({','.join('?' * len(rows[0]))})", rows)  # noqa: S608
            rows.clear()

    def finish(self, db: sqlite3.Connection, pids: Iterable[int] = (GLOBAL_PID,)) -> None:
        """Writes the texts and processes."""
        db.executemany("INSERT INTO StringIds(value, id) VALUES (?, ?)", self.strings.items())
        rows = [(pid, pid >> 24 & 0xFFFFFF, "python3") for pid in pids]
        db.executemany("INSERT INTO PROCESSES VALUES (?, ?, ?)", rows)

    def step(self, kind: str, tokens: int) -> None:
        start = self.clock
        root = "LlamaForCausalLM"
        self.call(root, tokens, lambda: self.call(f"{root}.model", tokens, lambda: self.model(root, tokens)))
        self.sample(tokens)
        self.device_clock = max(self.device_clock, self.clock)
        context, generated = (f"1({tokens})", "0(0)") if kind == "prefill" else ("0(0)", f"{tokens}({tokens})")
        self.range(f"execute_context_{context}_generation_{generated}", start, self.clock)
        self.clock += 20_000

    def sample(self, tokens: int) -> None:
        """Work after the model; the large report has none."""

    def model(self, root: str, batch: int) -> None:
        self.call(f"{root}.model.embed_tokens", batch, lambda: self.launch(1, "embedding_kernel"))
        for layer in range(self.layers):
            self.call(f"{root}.model.layers.{layer}", batch, lambda at=layer: self.layer(root, at, batch))

    def layer(self, root: str, layer: int, batch: int) -> None:
        here = f"{root}.model.layers.{layer}"
        self.leaf(here, "input_layernorm", batch)
        self.call(f"{here}.self_attn", batch, lambda: [self.leaf(f"{here}.self_attn", p, batch) for p in IN_ATTENTION])
        self.leaf(here, "post_attention_layernorm", batch)
        self.call(f"{here}.mlp", batch, lambda: [self.leaf(f"{here}.mlp", p, batch) for p in IN_MLP])

    def leaf(self, parent: str, part: str, batch: int) -> None:
        self.call(f"{parent}.{part}", batch, lambda: self.work(part))

    def work(self, part: str) -> None:
        is_reduced = part in self.reduced
        self.launch(KERNELS_PER_PART[part] - is_reduced, f"{part}_kernel")
        if is_reduced:
            self.launch(1, ALL_REDUCE)

    def call(self, path: str, batch: int, body: Callable[[], object]) -> None:
        start = self.clock
        self.clock += 900
        body()
        self.clock += 700
        params = "" if path.count(".") < 4 else "'TrainableParams': {'weight': [4096, 4096]}, "
        self.range(f"{{'Module': '{path}', {params}'Inputs': [[{batch}, 4096]]}}", start, self.clock)
        self.clock += 300
        self.range(f"{{'Module': '{path}', {params}'Outputs': [[{batch}, 4096]]}}", self.clock, self.clock + 200)
        self.clock += 400

    def range(self, text: str, start: int, end: int | None, *, event: int = 59, payload: str | None = None) -> None:
        inline, text_id = (text, None) if self.inline else (None, self.strings[text])
        where = (inline, self.thread, None, text_id, self.domain)
        self.rows["NVTX_EVENTS"].append((start, end, event, None, None, None, *where, *[None] * 7, payload))

    def api(self, name: str, duration: int) -> int:
        correlation = next(self.correlation)
        self.rows["CUPTI_ACTIVITY_KIND_RUNTIME"].append(
            (self.clock, self.clock + duration, 0, self.thread, correlation, self.strings[name], 0, None)
        )
        self.clock += duration + 500
        return correlation

    def duration(self, kernel: str, number: int) -> int:
        return 2_000 + 37 * (number % 91)

    def launch(self, number: int, kernel: str) -> None:
        names = self.names_of(kernel)
        for _ in range(number):
            correlation = self.api("cudaLaunchKernel_v7000", 2_500)
            begin = max(self.device_clock, self.clock + 1_000)
            self.device_clock = begin + self.duration(kernel, correlation)
            self.kernel(begin, names, correlation, None)

    def names_of(self, kernel: str) -> tuple[int, int]:
        short = self.strings[kernel]
        if kernel == ALL_REDUCE:
            return self.strings[f"{kernel}(ncclDevKernelArgsStorage<4096ul>)"], short
        return self.strings[f"void {kernel}<float, 128>(float *, float const *, int)"], short

    def kernel(self, begin: int, names: tuple[int, int], correlation: int, node: int | None) -> None:
        where = (self.device, 1, self.stream, correlation, self.thread & ~0xFFFFFF)
        sizes = (40, 108, 1, 1, 128, 1, 1, 0, 16384, 0, 0, 0, 16384)
        self.rows["CUPTI_ACTIVITY_KIND_KERNEL"].append(
            (begin, self.device_clock, *where, *names, None, None, None, *sizes, node, None)
        )


class Capturing(Program):
    """A program whose launches go into graphs, which it then replays."""

    def __init__(self) -> None:
        super().__init__(layers=LAYERS_OF_GRAPHS)
        self.graph = count(1)
        self.captured = 0
        self.nodes: list[tuple[int, str]] = []

    def launch(self, number: int, kernel: str) -> None:
        for _ in range(number):
            start = self.clock
            self.api("cudaLaunchKernel_v7000", 2_500)
            node = (self.captured << 32) | len(self.nodes)
            self.nodes.append((node, kernel))
            self.node(start + 1_000, node, None)

    def node(self, at: int, node: int, original: int | None) -> None:
        name = self.strings["Graph Node Creation"]
        self.rows["CUDA_GRAPH_EVENTS"].append((at, at, 77, GLOBAL_TID, name, node, original))

    def capture(self, batch: int) -> list[tuple[int, str]]:
        self.captured, self.nodes = next(self.graph), []
        self.api("cudaStreamBeginCapture_v10000", 1_000)
        root = "LlamaForCausalLM"
        self.call(root, batch, lambda: self.call(f"{root}.model", batch, lambda: self.model(root, batch)))
        self.api("cudaStreamEndCapture_v10000", 1_000)
        instance, start = next(self.graph), self.clock
        self.api("cudaGraphInstantiateWithFlags_v11040", 50_000)
        copies = []
        for at, (node, kernel) in enumerate(self.nodes):
            copy = (instance << 32) | at
            self.node(start + at, copy, None)
            self.node(start + at, copy, node)
            copies.append((copy, kernel))
        return copies

    def replay(self, nodes: list[tuple[int, str]], batch: int) -> None:
        start = self.clock
        correlation = self.api("cudaGraphLaunch_v10000", 90_000)
        self.range(f"execute_context_0(0)_generation_{batch}({batch})", start, self.clock)
        self.device_clock = max(self.device_clock, self.clock)
        for number, (node, kernel) in enumerate(nodes):
            begin = self.device_clock + 200
            self.device_clock = begin + self.duration(kernel, number)
            self.kernel(begin, self.names_of(kernel), correlation, node)
        self.clock += 20_000


def write_graph_report(path: Path, *, kernels: int, captures: int) -> Path:
    """Writes a report of about ``kernels`` kernels, all of them replayed."""
    program = Capturing()
    with writing(path) as db:
        db.executescript(SCHEMA + NODE_SCHEMA)
        graphs = []
        for batch in range(1, captures + 1):
            graphs.append(program.capture(batch))
            program.insert(db)
        for step in range(max(1, kernels // len(graphs[0]))):
            program.replay(graphs[step % captures], step % captures + 1)
            program.insert(db)
        program.finish(db)
    return path


if __name__ == "__main__":
    write_report(Path(sys.argv[1]), kernels=int(sys.argv[2]), inline_text="--inline" in sys.argv)

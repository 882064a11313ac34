"""Writes a report as a serving engine leaves it that captured CUDA graphs once and replays them, of any size.

The shape is vLLM's: one capture for every batch size (67 of them), each with layer-wise markers around the launches;
then decode steps, each one ``cudaGraphLaunch``. Nodes are recorded as nsys does: the captured ones inside their launch,
the instance's copies twice. Times are made up, but nest and follow each other as real ones do.
"""

from itertools import count
from pathlib import Path

from tests.benchmarks.serving_report import GLOBAL_TID, SCHEMA, Program
from tests.sqlite import writing

CAPTURES = 67
LAYERS = 36

NODE_SCHEMA = """
CREATE TABLE CUDA_GRAPH_EVENTS (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL,
  globalTid INTEGER, nameId INTEGER, graphNodeId INTEGER NOT NULL, originalGraphNodeId INTEGER);
"""


class Capturing(Program):
    """A program whose launches go into graphs, which it then replays."""

    def __init__(self) -> None:
        super().__init__(layers=LAYERS)
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


def write_graph_report(path: Path, *, kernels: int, captures: int = CAPTURES) -> Path:
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

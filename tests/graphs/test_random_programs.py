"""Programs at random that capture and replay graphs, recorded well or badly: no kernel gets a module not its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from hypothesis import given, settings, strategies as st

import tracekit
from tests.trace_lines import report

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

    import pytest

APIS = {"kernel": "cudaLaunchKernel", "memset": "cudaMemsetAsync", "memcpy": "cudaMemcpyAsync"}


@dataclass
class Recorded:
    """How a program is recorded.

    Attributes:
        nodes: When nodes are: in their launch, after the capture, or not at all.
        batch: Of how many captures nodes are recorded together, after the last of them.
        graphs: Whether graphs are.
        lost: Share of rows of launches and nodes that are lost.
        windows: Whether the begin and end of captures are.
        since: What came before is not.
    """

    nodes: str = "in time"
    batch: int = 1
    graphs: bool = True
    lost: float = 0.0
    windows: bool = True
    since: int = -(10**9)

    @property
    def whole(self) -> bool:
        """Whether the file holds the answer for every kernel."""
        recorded = self.nodes == "in time" or (self.windows and (self.nodes == "late" or self.graphs))
        return self.since < 0 and not self.lost and recorded


@dataclass
class Program:
    """One thread that captures, instantiates and replays; ``truth`` is the module of every kernel by its name."""

    rng: Random
    recorded: Recorded
    clock: int = 0
    lines: list[str] = field(default_factory=list)
    truth: dict[str, str] = field(default_factory=dict)
    numbers: dict[str, count[int]] = field(default_factory=dict)
    instances: list[tuple[int, list[tuple[int, str, str]]]] = field(default_factory=list)
    late: list[list[int]] = field(default_factory=list)

    def next(self, what: str) -> int:
        return next(self.numbers.setdefault(what, count(1)))

    def line(self, text: str, *, may_be_lost: bool = False) -> None:
        lost = may_be_lost and self.rng.random() < self.recorded.lost
        if self.clock >= self.recorded.since and not lost:
            self.lines.append(text)

    def api(self, name: str, *, may_be_lost: bool = False) -> int:
        number = self.next("correlation")
        self.line(f"launch 1 {self.clock} {self.clock + 6} #{number} {name}", may_be_lost=may_be_lost)
        self.clock += 10
        return number

    def window(self, name: str) -> None:
        if self.recorded.windows:
            self.api(name)
        self.clock += 10

    def node(self, node: int, original: str = "") -> None:
        if self.recorded.nodes != "never":
            self.line(f"node!{node} 1 {self.clock} {self.clock} {original}", may_be_lost=True)

    def graph(self, event: str) -> None:
        if self.recorded.graphs:
            self.line(f"made 1 {self.clock} {self.clock} {event}")

    def capture(self) -> None:
        graph = self.next("graph")
        self.graph(f"graph {graph}")
        self.window("cudaStreamBeginCapture")
        nodes = []
        for _ in range(self.rng.randint(1, 3)):
            module, begun = f"m{self.next('module')}", self.clock
            for _ in range(self.rng.randint(0, 2)):
                kind = self.rng.choice(["kernel", "kernel", "memset", "memcpy"])
                nodes.append((graph << 32 | len(nodes), kind, module))
                if self.recorded.nodes == "in time":
                    self.clock += 3
                    self.node(nodes[-1][0])
                    self.clock -= 3
                self.api(APIS[kind], may_be_lost=True)
            self.lines.append(f"range 1 {begun} {self.clock} {{'Module': '{module}'}}")
            self.clock += 10
        self.window("cudaStreamEndCapture")
        begun = self.clock
        if self.recorded.nodes == "late":
            # Of what was captured before the recording, no recorder knows.
            if self.clock >= self.recorded.since:
                self.late.append([node for node, _, _ in nodes])
            if len(self.late) >= self.recorded.batch:
                self.write_late()
        # What is recorded late falls into the range of another module.
        self.lines.append(f"range 1 {begun - 5} {self.clock + 5} {{'Module': 'after'}}")
        self.clock += 10
        for _ in range(self.rng.randint(0, 2)):
            self.instantiate(graph, nodes)

    def write_late(self) -> None:
        for nodes in self.late:
            for node in nodes:
                self.node(node)
                self.clock += self.rng.randint(0, 2)
        self.late.clear()

    def instantiate(self, graph: int, nodes: list[tuple[int, str, str]]) -> None:
        instance = self.next("graph")
        self.graph(f"graph {instance}")
        self.graph(f"exec {instance} of {graph}")
        copies = []
        for at, (node, kind, module) in enumerate(nodes):
            copies.append((instance << 32 | at, kind, module))
            self.node(copies[-1][0])
            self.node(copies[-1][0], str(node))
        self.node(instance << 32 | len(nodes))
        self.api("cudaGraphInstantiate")
        self.instances.append((instance, copies))

    def replay(self) -> None:
        if not self.instances:
            return
        _, nodes = self.rng.choice(self.instances)
        begun = self.clock
        self.lines.append(f"range 1 {begun} {begun + 8} {{'Module': 'around'}}")
        self.work(nodes, self.api("cudaGraphLaunch"))

    def eager(self) -> None:
        module, begun = f"m{self.next('module')}", self.clock
        number = self.api("cudaLaunchKernel")
        self.lines.append(f"range 1 {begun} {self.clock} {{'Module': '{module}'}}")
        self.work([(0, "kernel", module)], number)

    def work(self, nodes: list[tuple[int, str, str]], correlation: int) -> None:
        for node, kind, module in nodes:
            of_node = f"!{node}" if node else ""
            start = self.clock + 10 * self.next("work")
            self.truth[str(start)] = module
            self.line(f"{kind}{of_node} 1 {start} {start + 5} #{correlation} 64")


def program(rng: Random, recorded: Recorded) -> Program:
    made = Program(rng, recorded)
    for _ in range(rng.randint(1, 10)):
        rng.choice([made.capture, made.replay, made.replay, made.eager])()
        made.clock += 20
    made.write_late()
    made.replay()
    rng.shuffle(made.lines)
    return made


RECORDED = st.builds(
    Recorded,
    nodes=st.sampled_from(["in time", "late", "never"]),
    batch=st.sampled_from([1, 1, 2, 3, 99]),
    graphs=st.booleans(),
    lost=st.sampled_from([0.0, 0.0, 0.2, 0.6]),
    windows=st.booleans(),
    since=st.sampled_from([-(10**9), -(10**9), 100, 300]),
)


@settings(max_examples=40)
@given(st.randoms(use_true_random=False), RECORDED)
def test_no_kernel_gets_a_module_that_is_not_its_own(
    tmp_path_factory: pytest.TempPathFactory, rng: Random, recorded: Recorded
) -> None:
    made = program(rng, recorded)
    folder: Path = tmp_path_factory.mktemp("program")
    dataset = tracekit.parse(report(folder / "report.sqlite", "\n".join(made.lines)))
    for row in dataset.table("kernels", ["start_ns", "module", "method"]).to_pylist():
        truth = made.truth[str(row["start_ns"])]
        assert row["module"] in (truth, None)
        if recorded.whole:
            assert row["module"] == truth

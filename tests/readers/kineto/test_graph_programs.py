"""Programs at random that capture CUDA graphs and replay them later, profiled apart: no kernel gets a wrong module.

A model runs in pieces, each of which is a graph: once for every batch size; or there is a model for each. Pieces may be
alike: then they run the same kernels for different modules. Some graph captures are not recorded, or traces of another
program are given beside them. What cannot be told apart by anything in the traces does not happen: of pieces that are
alike all are recorded, or steps replay all of them; graphs that are not recorded run other kernels, or more of them,
than those that are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

import tracekit
from tests.readers.kineto.traces import PID, event, launch, trace

BASE = 1_775_000_000_000_000_000
KINDS = {"kernel": "LaunchKernel", "gpu_memcpy": "MemcpyAsync", "gpu_memset": "MemsetAsync"}
#: A node: its module, what it is, its name.
Node = tuple[str, str, str]


@dataclass
class Graph:
    nodes: list[Node]
    number: int


@dataclass
class Program:
    """The events of all traces, and the module of every replayed piece by its start."""

    rng: Random
    clock: int = 0
    ids: count[int] = field(default_factory=lambda: count(1))
    truth: dict[int, str] = field(default_factory=dict)
    captures: list[list[Any]] = field(default_factory=list)
    replay: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        rng = self.rng
        self.rocm, self.ranges, self.loses = rng.random() < 0.5, rng.random() < 0.8, rng.random() < 0.3
        self.numbered = not self.rocm and rng.random() < 0.7
        self.copies_have_ids = rng.random() < 0.5
        self.forks = rng.random() < 0.2
        self.in_order = self.loses or rng.random() < 0.6
        self.together = rng.random() < 0.5
        self.models = rng.random() < 0.5 and (self.rocm or not self.loses)
        self.sizes = [self.pieces(size) for size in range(rng.randint(1, 3))]
        self.given = [not self.loses or rng.random() < 0.6 for _ in self.sizes]

    @property
    def whole(self) -> bool:
        copies = any(kind != "kernel" for pieces in self.sizes for nodes in pieces for _, kind, _ in nodes)
        linear = not self.forks or (self.numbered and (self.copies_have_ids or not copies))
        return self.in_order and not self.loses and linear and self.ranges and (self.rocm or self.numbered)

    def pieces(self, size: int) -> list[list[Node]]:
        """What each piece of the model runs; by the length of the pieces it is told apart from other sizes."""
        alike = [self.node("", size) for _ in range(self.rng.randint(1, 3))]
        top = f"top{size}" if self.models else "top"
        pieces = [[(f"{top}.first", "kernel", "first")] * (size + 4)]
        middle = range(self.rng.randint(0, 3))
        pieces += [[(f"{top}.{number}", kind, name) for _, kind, name in alike] for number in middle]
        pieces.append([(f"{top}.last", "kernel", "last")] * (size + 8))
        return pieces

    def node(self, module: str, size: int) -> Node:
        kind = self.rng.choice(["kernel", "kernel", "kernel", "gpu_memcpy", "gpu_memset"])
        name = {"gpu_memcpy": "Memcpy DtoD (Device -> Device)", "gpu_memset": "Memset (Device)"}
        return module, kind, name.get(kind, f"{self.rng.choice(['gemm', 'gelu'])}{size if self.loses else ''}")

    def tick(self, by: int = 10) -> int:
        self.clock += by
        return self.clock

    def api(self, name: str, **args: object) -> dict[str, object]:
        row = launch(self.tick(), next(self.ids), f"{'hip' if self.rocm else 'cuda'}{name}")
        return row | {"args": {**row["args"], **args}}  # type: ignore[dict-item]

    def capture(self, nodes: list[Node]) -> list[Any]:
        rows = [self.api("StreamBeginCapture")]
        for module, kind, name in nodes:
            named = {"kernel": name} if self.rocm and kind == "kernel" else {}
            rows += [
                event("user_annotation", f"{{'Module': '{module}'}}", self.tick(), 15),
                self.api(KINDS[kind], **named),
            ]
        rows += [self.api("StreamWaitEvent")] if self.forks else []
        return [*rows, self.api("StreamEndCapture"), self.api("GraphInstantiate")]

    def replays(self, graph: Graph) -> None:
        launched = self.api("GraphLaunch")
        self.replay.append(launched)
        for place, (module, kind, name) in enumerate(graph.nodes):
            at = self.tick()
            self.truth[at * 1000] = module
            ids = {"graph id": graph.number, "graph node id": (graph.number << 32) + place}
            stream = place % 2 + 7 if self.forks else 7
            args = {"device": 0, "context": 1, "stream": stream, "correlation": launched["args"]["correlation"]}  # type: ignore[index]
            more = ids if self.numbered and (kind == "kernel" or self.copies_have_ids) else {}
            self.replay.append(event(kind, name, at, 5, f"stream {stream}", **args, **more) | {"pid": 0})

    def run(self) -> None:
        rng, graphs = self.rng, list[list[Graph]]()
        number = count(2, 2)
        for pieces, is_given in zip(self.sizes, self.given, strict=True):
            begin = self.clock
            rows = [row for nodes in pieces for row in self.capture(nodes)]
            if self.ranges:
                rows.append(event("user_annotation", "capture", begin + 1, self.clock - begin))
            if is_given:
                self.captures.append(rows)
            graphs.append([Graph(nodes, next(number)) for nodes in pieces])
            self.tick(100)
        if self.together and self.captures:
            self.captures = [[row for rows in self.captures for row in rows]]
        for _ in range(rng.randint(1, 4)):
            begin, chosen = self.clock, rng.choice(graphs)
            # As many as there are pieces, by chance in another order, would look like all of them in order.
            for graph in chosen if self.in_order else rng.choices(chosen, k=rng.randint(1, len(chosen) - 1)):
                self.replays(graph)
            if self.ranges:
                self.replay.append(event("user_annotation", "execute", begin + 1, self.clock - begin))
            self.tick(100)

    def write(self, folder: Path) -> tuple[Path, list[Path]]:
        rng = self.rng
        own = [] if rng.random() < 0.2 else self.captures
        inside = [row for rows in self.captures for row in rows] if not own else []
        paths = [trace(folder / f"capture{n}.json", *rows, baseTimeNanoseconds=BASE) for n, rows in enumerate(own)]
        if own and rng.random() < 0.3:
            self.clock = 0
            nodes = [("other.x", "kernel", "other")] * 20
            pid = PID + rng.randint(0, 1)
            rows = [row | {"pid": pid} for row in self.capture(nodes)]
            paths.append(trace(folder / "other.json", *rows, baseTimeNanoseconds=BASE))
        return trace(folder / "replay.json", *inside, *self.replay, baseTimeNanoseconds=BASE), paths


@settings(max_examples=20)
@given(rng=st.randoms(use_true_random=False))
def test_no_replayed_kernel_gets_the_module_of_another(tmp_path_factory: pytest.TempPathFactory, rng: Random) -> None:
    program = Program(rng)
    program.run()
    folder = tmp_path_factory.mktemp("traces")
    report, captures = program.write(folder)
    dataset = tracekit.parse(report, folder / "out", rows="modules", graph_captures=captures)
    rows = dataset.table("kernels", ["start_ns", "module", "cause"]).to_pylist()
    events = [*program.replay, *(row for rows in program.captures for row in rows if not captures)]
    first = min(int(row["ts"]) for row in events) * 1000
    found = {int(row["start_ns"]) + first: row["module"] for row in rows}
    assert found.keys() == program.truth.keys()
    wrong = {at: (module, program.truth[at]) for at, module in found.items() if module not in (None, program.truth[at])}
    assert not wrong
    if program.whole:
        assert None not in found.values()

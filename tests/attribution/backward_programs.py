"""Random training programs as ``emit_nvtx`` marks them, with the module of every launch of their backward passes.

They change views in place, call functions of users, differentiate twice, run modules again inside a node, run operators
in hooks, accumulate gradients, and keep several forward passes in flight, on one thread or on several.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

NODE = "autograd::engine::evaluate_function:"


@dataclass
class Node:
    """A node of autograd.

    Attributes:
        number: Its sequence number.
        name: Its name.
        module: The module that made it; None outside of all.
        inner: The node that it runs inside.
        again: The module that runs again before it does.
        clear: Whether numbers alone tell its module where one thread makes all nodes.
    """

    number: int
    name: str
    module: str | None
    inner: Node | None = None
    again: str | None = None
    clear: bool = True


@dataclass
class Program:
    """A program that runs.

    Attributes:
        seed: What it is drawn from.
        threads: How many threads run forward.
        engine: The thread that runs backward; 1 where there is no GPU.
        lines: The report, as ``tests/trace_lines.py`` has it.
        truth: The module of every launch in the backward pass, by the name of its kernel.
        clear: Which of these launches have a module that numbers alone tell where one thread makes all nodes.
    """

    seed: int
    threads: int = 1
    engine: int = 9
    lines: list[str] = field(default_factory=list)
    truth: dict[str, str | None] = field(default_factory=dict)
    clear: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.now = 0
        self.ids = 0
        self.counters: dict[int, int] = {}

    def run(self) -> str:
        """Runs some forward and backward passes. Returns the report's lines."""
        flights: list[list[Node]] = []
        for _ in range(self.random.randint(2, 5)):
            thread = self.random.randint(1, self.threads)
            flights.append(self.call(thread, "top", 0))
            # What the loss needs is outside of all modules.
            flights[-1] += self.operator(thread, None)
            while flights and self.random.random() < 0.6:
                self.backward(flights.pop(self.random.randrange(len(flights))))
        for flight in flights:
            self.backward(flight)
        return "\n".join(self.lines)

    def tick(self) -> int:
        self.now += 1
        return self.now

    def counted(self, thread: int, name: str, module: str | None) -> Node:
        number = self.counters.setdefault(thread, 0)
        self.counters[thread] += 1
        return Node(number, name, module)

    def text(self, thread: int, name: str) -> str:
        self.ids += 1
        return f"{name}, seq = {self.counters.setdefault(thread, 0)}, op_id = {self.ids}"

    def range(self, thread: int, start: int, text: str) -> None:
        self.lines.append(f"range {thread} {start} {self.tick()} {text}")

    def launch(self, thread: int, module: str | None, *, clear: bool = True, backward: bool = True) -> None:
        self.ids += 1
        name = f"k{self.ids}"
        self.lines.append(f"launch {thread} {self.tick()} {self.tick()} #{self.ids}")
        self.lines.append(f"kernel 1 {self.now + 100_000} {self.now + 100_001} #{self.ids} {name}")
        if backward:
            self.truth[name] = module
            if clear and module:
                self.clear.add(name)

    def call(self, thread: int, path: str, depth: int, *, again: bool = False) -> list[Node]:
        """Calls a module; returns the nodes that it made."""
        start, nodes = self.tick(), []
        for child in range(self.random.randint(1, 4)):
            kind = self.random.random()
            if kind < 0.35 and depth < 3:
                nodes += self.call(thread, f"{path}.{child}", depth + 1)
            elif kind < 0.5 and depth and not again:
                nodes.append(self.checkpointed(thread, f"{path}.again{child}"))
            else:
                nodes += self.operator(thread, path)
        self.range(thread, start, f"{{'Module': '{path}'}}")
        return nodes

    def checkpointed(self, thread: int, path: str) -> Node:
        """A module of which only the last node is kept, before which it runs again."""
        start = self.tick()
        self.range(thread, self.tick(), self.text(thread, "aten::tanh"))
        node = self.counted(thread, "TanhBackward0", path)
        self.range(thread, start, f"{{'Module': '{path}'}}")
        node.again = path
        return node

    def operator(self, thread: int, module: str | None) -> list[Node]:
        """Runs an operator; returns the nodes that it made."""
        kind = self.random.choice(["plain", "plain", "composite", "none", "function", "view", "several"])
        if kind == "view":
            return self.changes_a_view(thread, module)
        if kind == "function":
            return self.function(thread, module)
        start, text = self.tick(), self.text(thread, "aten::linear" if kind == "composite" else "aten::mul")
        nodes = []
        if kind == "composite":
            self.range(thread, self.tick(), self.text(thread, "aten::t"))
            nodes.append(self.counted(thread, "TBackward0", module))
            self.range(thread, self.tick(), self.text(thread, "aten::addmm"))
            nodes.append(self.counted(thread, "AddmmBackward0", module))
        elif kind == "plain":
            nodes.append(self.counted(thread, "MulBackward0", module))
        elif kind == "several":
            text = self.text(thread, "aten::_foreach_div")
            nodes += [self.counted(thread, "DivBackward0", module) for _ in range(3)]
        self.range(thread, start, text)
        return nodes

    def function(self, thread: int, module: str | None) -> list[Node]:
        """A function of a user; its input may be a view that gets its node anew."""
        start, text = self.tick(), self.text(thread, "Scale")
        nodes = [self.counted(thread, "AsStridedBackward0", module)] if self.random.random() < 0.4 else []
        nodes.append(self.counted(thread, "ScaleBackward", module))
        self.range(thread, start, text)
        return nodes

    def changes_a_view(self, thread: int, module: str | None) -> list[Node]:
        start, text = self.tick(), self.text(thread, "aten::sub_")
        inner = self.counted(thread, "SubBackward0", module)
        copies = self.counted(thread, "torch::autograd::CopySlices", module)
        copies.inner = inner
        view = self.counted(thread, "AsStridedBackward0", module)
        self.range(thread, start, text)
        return [copies, view]

    def backward(self, nodes: list[Node]) -> None:
        """Runs nodes; those that this makes run in a pass of their own."""
        made: list[Node] = []
        twice = self.random.random() < 0.2
        for node in reversed(nodes):
            made += self.evaluate(node, twice=twice)
        self.tick()
        if made:
            self.backward(made)

    def evaluate(self, node: Node, *, twice: bool) -> list[Node]:
        """Runs a node. Returns the nodes that this made, but those that it ran at once."""
        thread, start, made = self.engine, self.tick(), []
        text = f"{node.name}, seq = {node.number}, op_id = "
        own = f"{text}{self.tick()}"
        clear = node.clear and not (node.name.startswith("AsStrided") or node.again)
        if self.random.random() < 0.2:
            self.range(thread, self.tick(), f"aten::add, op_id = {self.tick()}")  # of a hook
            self.launch(thread, node.module, clear=clear)
        if node.again:
            made = self.call(thread, node.again, 3, again=True)
        begin = self.tick()
        if node.inner:
            self.launch(thread, node.module, clear=clear)
            inner, at = node.inner, self.tick()
            self.launch(thread, node.module, clear=clear)
            self.range(thread, at, f"{inner.name}, seq = {inner.number}, op_id = {self.tick()}")
        if twice and not node.again:
            made = [replace(item, clear=clear) for _ in range(2) for item in self.operator(thread, node.module)]
        self.launch(thread, node.module, clear=clear)
        self.range(thread, begin, own)
        self.range(thread, start, f"{NODE} {text}{self.tick()}")
        if self.random.random() < 0.3:
            at = self.tick()
            self.launch(thread, None)
            self.range(thread, at, f"{NODE} torch::autograd::AccumulateGrad, op_id = {self.tick()}")
        if node.again:
            for item in reversed(made):
                self.evaluate(item, twice=False)
            return []
        return made

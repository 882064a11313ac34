"""What one odd thing in a report costs: many threads, graphs, modules, open ranges, or deep nesting.

``python -m tests.benchmarks.odd_reports [--calls 120000] [--runs 3] [--only modules graphs]``. Of each thing there is a
report with N and one with 2N of it, with as many calls, and a plain one. Printed are the CPU time without the start of
Python, that of a row beside the plain report's, and the growth from N to 2N; the smallest of some runs counts.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from typing_extensions import override

import tracekit
from tests.benchmarks.measuring import benchmark, in_turn
from tests.benchmarks.serving_report import GLOBAL_TID, NODE_SCHEMA, SCHEMA, Capturing
from tests.sqlite import writing
from tracekit.markers.base import MappedKernel
from tracekit.markers.kernel_maps import compiled_graph, kernel_map

Each = Callable[[int], object]
PLAIN, PER_STEP = "plain", 48
NEXT_PROCESS = 0x1000001
LONG = {f"setting{number}": "value" for number in range(200)}
NODES_PER_CAPTURE, ROWS_PER_CAPTURE, ROWS_PER_REPLAY = 4, 31, 6


def module(path: str, inputs: object = "[8, 4096]") -> str:
    return f"{{'Module': '{path}', 'Inputs': [{inputs}]}}"


def layer(at: int) -> str:
    return module(f"Model.layers.{at % 32}")


class Odd(Capturing):
    """A program that can go on in another thread, stream or domain. Each thread has its own clock."""

    def __init__(self) -> None:
        super().__init__()
        self.clocks: dict[int, int] = {}

    def move(self, thread: int) -> None:
        self.clocks[self.thread] = self.clock
        self.thread, self.clock = thread, self.clocks.get(thread, 1_000_000)

    def within(self, text: str, body: Callable[[], object] | None = None, **how: Any) -> None:
        """A range around what ``body`` does, or around a kernel."""
        start = self.clock
        self.clock += 500
        (body or self.kernels)()
        self.ended(text, start, **how)

    def ended(self, text: str, start: int, *, ends: bool = True, lasts: int = 0, payload: str = "") -> None:
        """The range that has begun at ``start``; one that lasts longer than until now is no push/pop range."""
        self.clock += 500
        end = max(self.clock, start + lasts) if ends else None
        self.range(text, start, end, event=60 if lasts else 59, payload=payload or None)

    def kernels(self, *names: str) -> None:
        for name in names or ("gemm_kernel",):
            correlation = self.api("cudaLaunchKernel_v7000", 2_500)
            self.device_clock = self.clock + 2_000
            self.kernel(self.clock, self.names_of(name), correlation, None)

    @override
    def model(self, root: str, batch: int) -> None:
        """What a graph capture holds."""
        for at in range(NODES_PER_CAPTURE):
            self.call(f"{root}.model.layers.{at}", batch, lambda: self.launch(1, "gemm_kernel"))

    def calls(self, number: int, call: Each | None = None, before: Each = bool, per_step: int = PER_STEP) -> None:
        """Steps of calls with a kernel each; ``before`` runs before a step."""
        call = call or (lambda at: self.within(layer(at)))
        for step, first in enumerate(range(0, number, per_step)):
            before(step)
            start = self.clock
            for at in range(first, first + per_step):
                call(at)
            self.ended(module("Model"), start)

    def write(self, path: Path) -> Path:
        nodes = self.rows["CUDA_GRAPH_EVENTS"]
        pids = {self.thread & ~0xFFFFFF, *(thread & ~0xFFFFFF for thread in self.clocks)}
        path.unlink(missing_ok=True)
        with writing(path) as db:
            db.executescript(SCHEMA + (NODE_SCHEMA if nodes else ""))
            self.insert(db)
            self.finish(db, pids)
        return path


def nested(odd: Odd, n: int, number: int) -> None:
    for _ in range(number // n):
        starts = []
        for _ in range(n):
            starts.append(odd.clock)
            odd.kernels()
        for left, start in reversed([*enumerate(starts)]):
            odd.ended(module(f"block{left}"), start)


def open_ranges(odd: Odd, n: int, number: int) -> None:
    odd.calls(number, lambda at: odd.within(layer(at), ends=at % (number // n) != number // n // 2))


def replayed(odd: Odd, n: int, number: int) -> None:
    graphs = [odd.capture(batch) for batch in range(n)]
    for at in range((3 * number - ROWS_PER_CAPTURE * n) // ROWS_PER_REPLAY):
        odd.replay(graphs[at % n], at % n)


def autograd(odd: Odd, n: int, number: int) -> None:
    """Half of the calls make nodes of autograd, which run after their step on ``n`` threads."""

    def backward(step: int) -> None:
        now = odd.clock
        odd.move(GLOBAL_TID + 1 + step % n)
        odd.clock = max(now, odd.clock)
        for node in range(max(0, step - 1) * PER_STEP, step * PER_STEP):
            odd.within(f"autograd::engine::evaluate_function: AddmmBackward0, seq = {node}")
        odd.move(GLOBAL_TID)

    def call(at: int) -> None:
        odd.within(layer(at), lambda: odd.within(f"aten::addmm, seq = {at}, op_id = {at}"))

    odd.calls(number // 2, call, backward)


def compiled(odd: Odd, n: int, number: int) -> None:
    def call(at: int) -> None:
        names = [f"triton_{at % n}_{kernel}" for kernel in range(8)]
        map_id, texts = kernel_map("Model", [MappedKernel(name, True, (("layers.1", 1),)) for name in names])
        for text in texts if at < n else ():
            odd.within(text)
        odd.within(compiled_graph(map_id, "inference"), lambda: odd.kernels(*names))

    odd.calls(number // 6, call)


Calls = Callable[[Odd, int, int], object]


def spread(apart: int) -> Calls:
    """Each step on the next of ``n`` threads."""
    return lambda odd, n, number: odd.calls(number, before=lambda step: odd.move(GLOBAL_TID + step % n * apart))


def alternating(name: str) -> Calls:
    """Each step on the next of ``n`` streams, say."""
    return lambda odd, n, number: odd.calls(number, before=lambda step: setattr(odd, name, step % n))


def each(text: Callable[[int], str]) -> Calls:
    """Calls of ``n`` texts."""
    return lambda odd, n, number: odd.calls(number, lambda at: odd.within(text(at % n)))


def with_body(body: Callable[[Odd, int], object]) -> Calls:
    """Calls inside of which one of ``n`` things happens."""
    return lambda odd, n, number: odd.calls(number, lambda at: odd.within(layer(at), lambda: body(odd, at % n)))


def below(text: Callable[[int], str]) -> Calls:
    """Calls with one of ``n`` texts inside."""
    return with_body(lambda odd, at: odd.within(text(at)))


def how(options: Callable[[int, int], dict[str, Any]]) -> Calls:
    """Calls whose ranges have options of their own."""
    return lambda odd, n, number: odd.calls(number, lambda at: odd.within(layer(at), **options(at, n)))


#: What is odd, how many calls there are for one of it, and what happens.
THINGS: dict[str, tuple[int, Calls]] = {
    PLAIN: (1, lambda odd, _, number: odd.calls(number)),
    "threads": (300, spread(1)),
    "processes": (1200, spread(NEXT_PROCESS)),
    "streams": (300, alternating("stream")),
    "devices": (1200, alternating("device")),
    "domains": (300, alternating("domain")),
    "depth": (240, nested),
    "texts": (1, each(lambda at: module(f"Model.layers.{at % 32}", [at, 4096]))),
    "long texts": (24, each(lambda at: f"{module(f'Model.layers.{at % 32}', [at])[:-1]}, 'StaticParams': {LONG}}}")),
    "modules": (1, each(lambda at: module(f"Model.layers.{at // 96}.experts.{at % 96}"))),
    "plain ranges": (1, below(lambda at: f"step {at} of {at:x}")),
    "operators": (1, below(lambda at: f"aten::mm, seq = {at}, op_id = {at}")),
    "kernel names": (1, with_body(lambda odd, at: odd.kernels(f"triton_{at}"))),
    "steps": (12, lambda odd, n, number: odd.calls(number, per_step=number // n)),
    "open ranges": (12, open_ranges),
    "overlapping": (24, how(lambda at, n: {"lasts": 5_000 * n if at < n else 0})),
    "graphs": (12, replayed),
    "autograd": (1200, autograd),
    "payloads": (1, how(lambda at, n: {"payload": f'{{"bytes": {at % n}}}'})),
    "kernel maps": (120, compiled),
}


def report_of(thing: str, path: Path, *, number: int, share: float = 1) -> tuple[Path, int]:
    """A report and how many rows it has."""
    odd, (calls_of_one, run) = Odd(), THINGS[thing]
    run(odd, max(1, int(share * number) // calls_of_one), number)
    rows = sum(map(len, odd.rows.values()))
    return odd.write(path), rows


def cpu_of(report: Path, out: Path) -> float:
    begin = time.process_time()
    tracekit.parse(report, out, force=True, scheduler="here")
    return time.process_time() - begin


def measure(args: argparse.Namespace, folder: Path) -> None:
    plain, plain_rows = report_of(PLAIN, folder / "plain.sqlite", number=args.calls)
    cpu_of(plain, folder / "out")  # imports, and touches memory
    for thing in args.only or [thing for thing in THINGS if thing != PLAIN]:
        half, _ = report_of(thing, folder / "half.sqlite", number=args.calls, share=0.5)
        whole, rows = report_of(thing, folder / "whole.sqlite", number=args.calls)
        forms = {report.stem: partial(cpu_of, report, folder / "out") for report in (plain, half, whole)}
        base, one, twice = map(min, in_turn(args.runs, forms).values())
        print(
            f"{thing:<13} {max(1, args.calls // THINGS[thing][0]):>8,} in {rows:>9,} rows: {twice:6.2f} s, "
            f"a row {twice / rows / base * plain_rows:5.2f} of a plain one's; "
            f"twice as many {twice / one:5.2f}",
            flush=True,
        )


if __name__ == "__main__":
    benchmark(__doc__, measure, {"--only": {"nargs": "*", "choices": THINGS}}, calls=120_000, runs=3)

"""What a call of a compiled model costs: plain torch.compile, compile_model with guards and without, in one run.

``python -m tests.benchmarks.compiled_calls`` prints microseconds for a call of a model of many small Linears, and what
ours take of what plain ``torch.compile`` takes. The graph itself is left out: it is the same in all forms, and on a CPU
it takes longer than all that comes before it.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import nn

from tests.benchmarks.measuring import benchmark, in_turn
from tracekit.capture.compile import CompileConfig, compile_model

#: What ours may take of plain torch.compile.
LIMITS = {"guards": 1.5, "no guards": 0.5}


def _model(layers: int) -> nn.Module:
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(layers))).eval()


def nothing(graph: torch.fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Callable[..., object]:
    result = graph(*inputs)
    return lambda *_args: result


def forms(layers: int) -> dict[str, Callable[[torch.Tensor], object]]:
    config = CompileConfig(mode="eager")
    return {
        "torch.compile": torch.compile(_model(layers), fullgraph=True, dynamic=False, backend=nothing),
        "guards": compile_model(_model(layers), config, backend=nothing),
        "no guards": compile_model(_model(layers), config, guards=False, backend=nothing),
    }


def microseconds(run: Callable[[torch.Tensor], object], repeats: int) -> float:
    x = torch.randn(8, 4)
    run(x)
    began = time.perf_counter_ns()
    for _ in range(repeats):
        run(x)
    return (time.perf_counter_ns() - began) / repeats / 1e3


@torch.no_grad()
def measure(args: argparse.Namespace, _folder: Path) -> None:
    torch.set_num_threads(1)
    calls = {name: partial(microseconds, run, args.repeats) for name, run in forms(args.layers).items()}
    found = {name: min(took) for name, took in in_turn(args.rounds, calls).items()}
    for name, took in found.items():
        print(f"{name:15} {took:8.2f} us a call")
    for name, limit in LIMITS.items():
        print(f"{name} / torch.compile {found[name] / found['torch.compile']:.2f} (at most {limit})")


if __name__ == "__main__":
    benchmark(__doc__, measure, layers=40, rounds=30, repeats=200)

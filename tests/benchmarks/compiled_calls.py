"""What a call of a compiled model costs: plain torch.compile, ours past the guards, ours by bytecode, in one run.

``python -m tests.benchmarks.compiled_calls`` prints microseconds for a call of a model of many small Linears, and what
ours take of what plain ``torch.compile`` takes. The graph itself is left out unless a backend is named: it is the same
in all forms, and on a CPU it takes longer than all that comes before it.
"""

from __future__ import annotations

import argparse
import itertools
import time
from typing import TYPE_CHECKING

import torch
from torch import nn

from tracekit.capture.compile import CompileConfig, compile_model

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Backend = str | Callable[..., Callable[..., object]]

#: What ours may take of plain torch.compile.
LIMITS = {"guard filter": 0.75, "bytecode": 0.5}


def _model(layers: int) -> nn.Module:
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(layers))).eval()


def nothing(graph: torch.fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Callable[..., object]:
    """A backend whose graphs do nothing: what is left of a call is the way to them."""
    result = graph(*inputs)
    return lambda *_args: result


def forms(layers: int, backend: Backend) -> dict[str, Callable[[torch.Tensor], object]]:
    """The same model by form, each with code of its own."""
    config = CompileConfig(mode="eager")
    return {
        "torch.compile": torch.compile(_model(layers), fullgraph=True, dynamic=False, backend=backend),
        "guard filter": compile_model(_model(layers), config, backend=backend),
        "bytecode": compile_model(_model(layers), config, bytecode=True, backend=backend),
    }


def measured(layers: int, rounds: int, repeats: int, backend: Backend) -> dict[str, float]:
    """Microseconds of a call by form, the best of many rounds; the forms take turns."""
    x = torch.randn(8, 4)
    best: dict[str, float] = {}
    runs = forms(layers, backend)
    for _, (name, run) in itertools.product(range(rounds), runs.items()):
        run(x)
        began = time.perf_counter_ns()
        for _ in range(repeats):
            run(x)
        took = (time.perf_counter_ns() - began) / repeats / 1e3
        best[name] = min(best.get(name, took), took)
    return best


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--backend", help="what runs the graph, as torch.compile names it")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = measured(options.layers, options.rounds, options.repeats, options.backend or nothing)
    for name, took in found.items():
        print(f"{name:15} {took:8.2f} us a call")
    for name, limit in LIMITS.items():
        print(f"{name} / torch.compile {found[name] / found['torch.compile']:.2f} (at most {limit})")


if __name__ == "__main__":
    main()

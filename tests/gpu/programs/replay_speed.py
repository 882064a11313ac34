"""How long a call takes: eager, in compiled pieces replayed from CUDA graphs, and as one graph captured by hand."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from tracekit.capture.compile import counters
from tracekit.proof.programs.observed import device, synchronize, told
from tracekit.proof.programs.pieces import compiled, example

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 5
#: Calls in a round.
CALLS_ON_GPU, CALLS_ON_CPU = 200, 5


def nanoseconds(run: Callable[[], object], calls: int) -> float:
    """Of one call, until the GPU is done: the best round."""
    best = float("inf")
    for _ in range(ROUNDS):
        synchronize()
        began = time.perf_counter_ns()
        for _ in range(calls):
            run()
        synchronize()
        best = min(best, (time.perf_counter_ns() - began) / calls)
    return best


def by_hand(model: torch.nn.Module, x: torch.Tensor) -> Callable[[], object] | None:
    """A replay of the model as one CUDA graph; None without a GPU."""
    if not torch.cuda.is_available():
        return None
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        model(x)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(x)
    return graph.replay


@torch.no_grad()
def main() -> None:
    """Measures all forms with one input, at one address."""
    plain, copying = compiled(copy_inputs=True)
    _, bound = compiled(copy_inputs=False)
    x = example()
    expected = plain(x)
    right = [torch.allclose(model(x), expected, rtol=1e-2, atol=1e-3) for model in (copying, bound, copying, bound)]
    forms = {
        "eager_ns": lambda: plain(x),
        "copied_inputs_ns": lambda: copying(x),
        "own_inputs_ns": lambda: bound(x),
        "one_graph_ns": by_hand(plain, x),
    }
    calls = CALLS_ON_GPU if device().type == "cuda" else CALLS_ON_CPU
    figures = {name: None if run is None else nanoseconds(run, calls) for name, run in forms.items()}
    told(figures=figures, right=all(right), graphs_captured=counters.graphs_captured)


if __name__ == "__main__":
    main()

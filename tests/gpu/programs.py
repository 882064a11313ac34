"""What measures run: ``python -m tests.gpu.programs NAME FILE`` writes the figures as JSON."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tracekit.capture.compile import counters
from tracekit.selftest.models import cuda_graph, device, pieces, same, synchronize

ON_GPU = device().type == "cuda"
#: Rows, columns and depth of the product; bytes of the copy; calls in a round of replays.
SIZE, BYTES, CALLS = (8_192, 1 << 30, 200) if ON_GPU else (256, 1 << 22, 5)
WARMUP, RUNS, ROUNDS = 10, 20, 5


def product() -> tuple[nn.Module, torch.Tensor]:
    model = nn.Linear(SIZE, SIZE, bias=False, dtype=torch.bfloat16, device=device())
    return model, torch.randn(SIZE, SIZE, dtype=torch.bfloat16, device=device())


def seconds(run: Callable[[], object]) -> float:
    """Of one run, by events of the GPU around all; without a GPU by the clock of the machine."""
    for _ in range(WARMUP):
        run()
    synchronize()
    if not ON_GPU:
        return nanoseconds(run) / 1e9
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(RUNS):
        run()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3 / RUNS


@torch.no_grad()
def peaks() -> dict[str, Any]:
    model, x = product()
    multiplied = seconds(lambda: model(x))
    source = torch.empty(BYTES, dtype=torch.uint8, device=device())
    target = torch.empty_like(source)
    copied = seconds(lambda: target.copy_(source))
    # A copy reads every byte and writes it.
    return {"tflops_per_s": 2 * len(x) ** 3 / multiplied / 1e12, "gb_per_s": 2 * source.numel() / copied / 1e9}


def nanoseconds(run: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        synchronize()
        began = time.perf_counter_ns()
        for _ in range(CALLS):
            run()
        synchronize()
        best = min(best, (time.perf_counter_ns() - began) / CALLS)
    return best


@torch.no_grad()
def replay_speed() -> dict[str, Any]:
    (plain, copying), (_, bound) = pieces(copy_inputs=True), pieces(copy_inputs=False)
    x = plain.example()
    right = all(same(model(x), plain(x)) for model in (copying, bound, copying, bound))
    figures = {
        "eager_ns": nanoseconds(lambda: plain(x)),
        "copied_inputs_ns": nanoseconds(lambda: copying(x)),
        "own_inputs_ns": nanoseconds(lambda: bound(x)),
        "one_graph_ns": None,
    }
    if torch.cuda.is_available():
        figures["one_graph_ns"] = nanoseconds(cuda_graph(plain, x))
    return {"figures": figures, "right": right, "graphs_captured": counters.graphs_captured}


if __name__ == "__main__":
    figures = {"peaks": peaks, "replay_speed": replay_speed}[sys.argv[1]]()
    Path(sys.argv[2]).write_text(json.dumps(figures), "utf-8")

"""The fastest product and copy, by events of the GPU. :func:`make` gives the same product to be recorded."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch
from torch import nn

from tracekit.proof.programs.observed import device, synchronize, told

if TYPE_CHECKING:
    from collections.abc import Callable

#: Rows, columns and depth of the product; bytes of the copy.
SIZE_ON_GPU, SIZE_ON_CPU = 8_192, 256
BYTES_ON_GPU, BYTES_ON_CPU = 1 << 30, 1 << 22
WARMUP, RUNS = 10, 20


def size() -> int:
    """Of the product."""
    return SIZE_ON_GPU if device().type == "cuda" else SIZE_ON_CPU


def make() -> tuple[nn.Module, torch.Tensor]:
    """One product of matrices in bfloat16."""
    model = nn.Linear(size(), size(), bias=False, dtype=torch.bfloat16, device=device())
    return model, torch.randn(size(), size(), dtype=torch.bfloat16, device=device())


def seconds(run: Callable[[], object]) -> float:
    """Of one run, by events of the GPU around all; without a GPU by the clock of the machine."""
    for _ in range(WARMUP):
        run()
    synchronize()
    if device().type != "cuda":
        began = time.perf_counter()
        for _ in range(RUNS):
            run()
        return (time.perf_counter() - began) / RUNS
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(RUNS):
        run()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3 / RUNS


@torch.no_grad()
def main() -> None:
    """Measures both."""
    model, x = make()
    product = seconds(lambda: model(x))
    source = torch.empty(BYTES_ON_GPU if device().type == "cuda" else BYTES_ON_CPU, dtype=torch.uint8, device=device())
    target = torch.empty_like(source)
    copied = seconds(lambda: target.copy_(source))
    # A copy reads every byte and writes it.
    told(tflops_per_s=2 * size() ** 3 / product / 1e12, gb_per_s=2 * source.numel() / copied / 1e9)


if __name__ == "__main__":
    main()

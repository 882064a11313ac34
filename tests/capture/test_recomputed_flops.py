"""FLOPs of layers that are recomputed: torch stops a recomputation inside an operator that it then does not compute."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from tests.capture import comparison
from tests.capture.recordings import parsed, recorded
from tests.capture.truth import flops_of
from tracekit.capture import layer_markers, operator_markers
from tracekit.capture.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor

pytestmark = pytest.mark.torch


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient @ weight.T, x.T @ gradient


class OwnProduct(nn.Module):
    """Saves its factors only after it has multiplied them."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return Product.apply(x, self.weight)


class Gated(nn.Module):
    """Multiplies matrices last, but for something that is not computed either."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.weight) * (x @ self.weight.T)


#: What is recomputed ends in …
ENDS: dict[str, Callable[[], list[nn.Module]]] = {
    "a product": lambda: [nn.Linear(8, 8)],
    "a product that saves nothing of its own": lambda: [nn.Linear(8, 8), nn.Flatten()],
    "something else": lambda: [nn.Linear(8, 8), nn.Tanh()],
    "modules in each other": lambda: [nn.Sequential(nn.Tanh(), nn.Sequential(nn.Linear(8, 8, bias=False)))],
    "a function of its own": lambda: [OwnProduct()],
    "two products": lambda: [Gated()],
    "a convolution": lambda: [nn.Unflatten(1, (2, 4)), nn.Conv1d(2, 3, 2)],
}


class Checkpointed(nn.Module):
    def __init__(self, end: list[nn.Module]) -> None:
        super().__init__()
        self.first, self.block = nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.GELU(), *end)

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.block, self.first(x), use_reentrant=False).sin()


# Operators are marked above autograd by torch's profiler and emit_nvtx, and below it by a dispatch mode.
@pytest.mark.parametrize("above", [True, False], ids=["above autograd", "below"])
@pytest.mark.parametrize("early_stop", [True, False], ids=["stopped", "whole"])
@pytest.mark.parametrize("end", ENDS)
def test_a_product_in_which_recomputation_stops_costs_nothing(
    end: str, early_stop: bool, above: bool, tmp_path: Path
) -> None:
    model, recorder = Checkpointed(ENDS[end]()), Recorder(ops=above)
    marked = nullcontext() if above else operator_markers(recorder.emitter)

    def step() -> None:
        with set_checkpoint_early_stop(early_stop):
            model(torch.ones(4, 8)).sum().backward()

    true = flops_of(model, step)
    with recorded(recorder), layer_markers(model, emitter=recorder.emitter, backward=True), marked:
        step()
    flops = comparison.flops(parsed(recorder, tmp_path), true)
    assert [one for one in flops if one.flops not in {one.true, None}] == []
    assert sum(one.flops is not None for one in flops) > 1

"""A small model in which no two Linears have weights of one shape. Layers share a module, and one module runs twice.

Targets: :func:`make` gives it to be called, :func:`make_compiled` compiled in place by torch.compile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from typing_extensions import override

from tracekit.proof.programs.observed import device, linears, observed, told

if TYPE_CHECKING:
    from torch import Tensor

#: Sizes of the features between the Linears; times 64 on a GPU, so that kernels take longer than their launches.
WIDTHS = (4, 5, 6, 7, 8)
_ON_GPU, _ON_CPU = 64, 2
#: Rows of the input: no width is as large, so that products tell which of their dimensions are the weight's.
ROWS_ON_GPU, ROWS_ON_CPU = 192, 3


class Layer(nn.Module):
    """Two Linears around an activation."""

    def __init__(self, widths: tuple[int, int, int], act: nn.Module) -> None:
        super().__init__()
        self.up = nn.Linear(widths[0], widths[1])
        self.act = act
        self.down = nn.Linear(widths[1], widths[2])

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Wider, bent, wider."""
        y: Tensor = self.down(self.act(self.up(x)))
        return y


class Chain(nn.Module):
    """Two layers with one activation, and a square Linear that is called twice."""

    def __init__(self, act: nn.Module | None = None) -> None:
        super().__init__()
        a, b, c, d, e = (width * (_ON_GPU if device().type == "cuda" else _ON_CPU) for width in WIDTHS)
        act = nn.ReLU() if act is None else act
        self.layers = nn.ModuleList([Layer((a, b, c), act), Layer((c, d, e), act)])
        self.again = nn.Linear(e, e)

    @override
    def forward(self, x: Tensor) -> Tensor:
        """All layers, then the last Linear twice."""
        for layer in self.layers:
            x = layer(x)
        y: Tensor = self.again(self.again(x))
        return y


class Unbent(nn.Module):
    """An activation that needs no compiler of C++: Inductor leaves nothing but products of a model with it."""

    @override
    def forward(self, x: Tensor) -> Tensor:
        """The input as it is."""
        return x


def rows() -> int:
    """Rows of the input."""
    return ROWS_ON_GPU if device().type == "cuda" else ROWS_ON_CPU


def example(model: Chain, *, requires_grad: bool = False) -> Tensor:
    """An input of the model."""
    first = model.layers[0]
    assert isinstance(first, Layer)
    return torch.randn(rows(), first.up.in_features, device=device(), requires_grad=requires_grad)


def chain(act: nn.Module | None = None) -> Chain:
    """The model on its device, the same each time."""
    torch.manual_seed(0)
    model = Chain(act).to(device())
    told(rows=rows(), device=device().type)
    return model


def make() -> tuple[nn.Module, Tensor]:
    """The model with hooks, and an input that needs a gradient, so that every Linear has two products backwards."""
    model = chain()
    x = example(model, requires_grad=True)
    return observed(model), x


def make_compiled() -> tuple[nn.Module, Tensor]:
    """The model compiled in place. It has no hooks: compiled code would not run them.

    Without a GPU its activation does nothing, because Inductor would need a compiler of C++ for half a minute.
    """
    model = chain(None if device().type == "cuda" else Unbent())
    x = example(model)
    told(linears=linears(model))
    model.compile()
    return model, x

"""A model in compiled pieces, captured as CUDA graphs and replayed; without a GPU the stand-in counts the graphs.

The model is split at its attention. What is counted follows from the number of layers: pieces on both sides of every
attention, and one graph for each of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from typing_extensions import override

from tracekit.capture import step
from tracekit.capture.compile import CompileConfig, compile_model, counters
from tracekit.capture.compiling import without_graph_captures
from tracekit.proof.programs.observed import device, linears, synchronize, told
from tracekit.proof.programs.plans import LAYERS, PIECEWISE

if TYPE_CHECKING:
    from tracekit.capture.compile import CompiledModel

#: Where the model is split.
ATTENTION = "aten::scaled_dot_product_attention"
TOKENS = 48
#: Features inside of each layer: no two Linears have weights of one shape.
_WIDTHS = (96, 128)
_WIDTH = 64


class Layer(nn.Module):
    """Attention with a Linear before and behind it."""

    def __init__(self, inner: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(_WIDTH, 3 * inner)
        self.out = nn.Linear(inner, _WIDTH)

    @override
    def forward(self, x: Tensor) -> Tensor:
        """What attention gives; on a GPU added to the input, which Inductor compiles.

        Without a GPU there is no more than products and views, because a compiler of C++ would take half a minute.
        """
        q, k, v = self.qkv(x)[None, None].chunk(3, -1)
        y: Tensor = self.out(nn.functional.scaled_dot_product_attention(q, k, v)[0, 0])
        return x + y if x.is_cuda else y


class Attentive(nn.Module):
    """Layers with attention."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(width) for width in _WIDTHS[:LAYERS]])

    @override
    def forward(self, x: Tensor) -> Tensor:
        """All layers."""
        for layer in self.layers:
            x = layer(x)
        return x


def example() -> Tensor:
    """An input of the model."""
    return torch.randn(TOKENS, _WIDTH, device=device())


def config(*, copy_inputs: bool = True) -> CompileConfig:
    """The settings: CUDA graphs on a GPU; without one, a stand-in that counts them."""
    return CompileConfig(
        splitting_ops=(ATTENTION,),
        cudagraph_sizes=(TOKENS,),
        copy_inputs=copy_inputs,
        graph_capture="cuda" if device().type == "cuda" else "record",
        use_cache=False,
    )


def compiled(*, copy_inputs: bool = True) -> tuple[Attentive, CompiledModel]:
    """The model, as it is and compiled."""
    torch.manual_seed(0)
    model = Attentive().to(device()).eval()
    return model, compile_model(model, config(copy_inputs=copy_inputs))


@torch.no_grad()
def main() -> None:
    """Compiles in the first step; captures and replays in the later ones, each with an input at another address."""
    plain, model = compiled()
    inputs = [example() for _ in range(PIECEWISE)]
    before = counters.snapshot()
    with step("compile"), without_graph_captures():
        expected = [plain(x) for x in inputs]
        model(inputs[0])
        synchronize()
    right = [_step_is_right(model, x, result) for x, result in zip(inputs, expected, strict=True)]
    counts = {name: number - before[name] for name, number in counters.snapshot().items()}
    told(counters=counts, linears=linears(plain), rows=TOKENS, device=device().type, right=all(right))


def _step_is_right(model: CompiledModel, x: Tensor, expected: Tensor) -> bool:
    with step("piecewise"):
        result = model(x)
        synchronize()
    assert isinstance(result, Tensor)
    return torch.allclose(result, expected, rtol=1e-2, atol=1e-3)

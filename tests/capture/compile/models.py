"""Small models of the kinds that serve: attention is one operator, as in the engines, and splits them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tracekit.capture.compile import CompileConfig, PiecewiseBackend

ATTENTION = "tracekit_tests::attention"
#: How often the operator ran.
calls = [0]

_LIBRARY = torch.library.Library("tracekit_tests", "FRAGMENT")
_LIBRARY.define("attention(Tensor q, Tensor k, Tensor v, Tensor(a!) out) -> ()")
_LIBRARY.define("scaled(Tensor x, float by) -> Tensor")


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor) -> None:
    calls[0] += 1
    out.copy_(q + k + v)


_LIBRARY.impl("attention", _attention, "CompositeExplicitAutograd")
_LIBRARY.impl("attention", lambda _q, _k, _v, _out: None, "Meta")
_LIBRARY.impl("scaled", lambda x, by: x * by, "CompositeImplicitAutograd")


@torch.library.custom_op("tracekit_tests::three", mutates_args=())
def three(x: torch.Tensor) -> int:
    return 3


@three.register_fake
def _(x: torch.Tensor) -> int:
    return torch.library.get_ctx().new_dynamic_size()


class Function(nn.Module):
    """A function as a model."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


class Silly(nn.Module):
    """Attention twice: f(x) = 9 x + 19."""

    def __init__(self, *, unbacked: bool = False) -> None:
        super().__init__()
        self.unbacked = unbacked

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        x = x + 2
        out = torch.empty_like(x)
        torch.ops.tracekit_tests.attention(x, x, x, out)
        x = out
        if self.unbacked:
            number = torch.ops.tracekit_tests.three(x)
            x = x * (x.new_ones(x.shape[0], number).sum(-1) // number)
        x = x - 2
        x = x - 1
        out = torch.empty_like(x)
        torch.ops.tracekit_tests.attention(x, x, x, out)
        x = out
        return x + 1


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        q = q + positions.unsqueeze(-1)
        attended = torch.empty_like(q)
        torch.ops.tracekit_tests.attention(q, k, v, attended)
        x = x + self.out(attended)
        return x + self.down(torch.relu(self.up(x)))


class Llama(nn.Module):
    def __init__(self, layers: int, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, width)
        self.layers = nn.ModuleList([Layer(width) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, positions)
        return self.norm(x)


class Encoder(nn.Module):
    """Masked attention over padded sequences; a dict comes out."""

    def __init__(self, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.embed = nn.Embedding(16, width)
        self.qkv = nn.Linear(width, 3 * width)
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: torch.Tensor, *, mask: torch.Tensor | None = None) -> dict[str, Any]:
        x = self.embed(ids)
        batch, length, width = x.size()
        shape = (batch, length, self.heads, width // self.heads)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        allowed = None if mask is None else mask[:, None, None, :]
        attended = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        x = self.norm(x + attended.transpose(1, 2).reshape(batch, length, width))
        return {"last": x, "pooled": (x[:, 0], x.mean(1)), "rows": batch}


class Branching(nn.Module):
    """What it computes depends on the data, which breaks the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x)
        if x.sum() > 0:
            return self.b(x).relu()
        return self.b(x) - 1


class Counting(nn.Module):
    """Writes to a buffer at every call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return x * self.count


def compiled(
    model: nn.Module, *dynamic: torch.Tensor, backend: PiecewiseBackend | None = None, **settings: Any
) -> Callable[..., Any]:
    for tensor in dynamic:
        torch._dynamo.mark_dynamic(tensor, 0)
    return torch.compile(
        model,
        backend=backend or PiecewiseBackend(CompileConfig(**settings)),
        fullgraph=True,
        options={"guard_filter_fn": torch.compiler.skip_all_guards_unsafe},
    )


def ids(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(size) % 32, torch.arange(size)


def traced(function: Callable[..., Any], *args: torch.Tensor) -> torch.fx.GraphModule:
    found: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, _inputs: object) -> Callable[..., Any]:
        found.append(graph)
        return graph.forward

    torch.compile(function, backend=keep, fullgraph=True, dynamic=True)(*args)
    return found[0]

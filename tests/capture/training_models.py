"""Small models of the kinds that are trained, and whose backward work is easily given to the wrong module."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

SIZE, WORDS = 8, 5


def numbers() -> Tensor:
    return torch.randn(2, 4, SIZE)


def words() -> Tensor:
    return torch.randint(0, WORDS, (2, 4))


class Mlp(nn.Module):
    """Has operators of its own before, between and after its children."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(SIZE, SIZE)
        self.down = nn.Linear(SIZE, SIZE)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.down(nn.functional.gelu(self.up(x.sin())) * 2)).tanh()


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Mlp() for _ in range(3)])
        self.last = nn.Linear(SIZE, SIZE)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        for _ in range(20):
            x = x.tanh()
        return self.last(x).tanh()


class Attention(nn.Module):
    """Only the first layer of a model has the bias; all others are passed what it made."""

    def __init__(self, *, bias: bool) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(SIZE, SIZE) for _ in range(4))
        if bias:
            self.relative_attention_bias = nn.Embedding(4, 1)

    def forward(self, x: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
        scores = self.q(x) @ self.k(x).transpose(-1, -2)
        if bias is None:
            bias = self.relative_attention_bias(torch.arange(4)).view(1, 1, 4).expand(1, 4, 4) * 1.5
        return self.o((scores + bias).softmax(-1) @ self.v(x)), bias


class Layer(nn.Module):
    def __init__(self, *, bias: bool) -> None:
        super().__init__()
        self.norm, self.norm_2 = nn.LayerNorm(SIZE), nn.LayerNorm(SIZE)
        self.attention = Attention(bias=bias)
        self.mlp = Mlp()

    def forward(self, x: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
        attended, bias = self.attention(self.norm(x), bias)
        x = x + attended
        return x + self.mlp(self.norm_2(x)), bias


class SharedBias(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(bias=number == 0) for number in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        bias = None
        for layer in self.layers:
            x, bias = layer(x, bias)
        return x * 0.5


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, SIZE)
        self.layers = nn.ModuleList([Layer(bias=True) for _ in range(3)])
        self.head = nn.Linear(SIZE, WORDS)
        self.reentrant = reentrant

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=self.reentrant)[0]
        return self.head(x.relu())


class SharedWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Mlp()
        self.embed = nn.Embedding(WORDS, SIZE)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for _ in range(3):
            x = self.block(x).sin()
        return x @ self.embed.weight.T


class Frozen(nn.Module):
    """A frozen model runs twice; its second input needs a gradient, its first does not."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.trained = Residual().requires_grad_(requires_grad=False), Residual()
        self.prompt = nn.Parameter(torch.zeros(SIZE))

    def forward(self, x: Tensor) -> Tensor:
        return self.trained(self.frozen(self.frozen(x) + self.prompt).relu())


class Tapped(nn.Module):
    """Keeps losses of its own aside, computed from the middle of it."""

    balance: Tensor
    inner: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Mlp(), Mlp()
        self.router, self.last = nn.Linear(SIZE, 4), nn.Linear(SIZE, SIZE)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        self.balance = (self.router(x).softmax(-1) ** 2).mean() * 3
        x = self.second(x).cos()
        self.inner = x.tanh()
        return self.last(x) + 1


class _Sine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0].cos()


class OwnFunction(nn.Module):
    """A function with a backward of its own, and tensors that change in place below views of them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = Mlp(), nn.Linear(SIZE, SIZE)
        self.in_place = nn.Sequential(nn.Linear(SIZE, SIZE), nn.ReLU(inplace=True))

    def forward(self, x: Tensor) -> Tensor:
        x = _Sine.apply(_Sine.apply(self.first(x)) * 2)
        y = self.last(x)
        part = y[..., :2]
        y.mul_(2)
        part.add_(1)
        return self.in_place(_Sine.apply(y) + part.sum()).sum()


class Pair(nn.Module):
    """Two models of which each is called from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.judge = Mlp(), Tapped()


def tapped_loss(model: Tapped) -> list[Tensor]:
    return [model(numbers()).sum() + model.balance + model.inner.mean()]


def only_tapped_loss(model: Tapped) -> list[Tensor]:
    model(numbers())
    return [model.balance]


def several_passes(model: Tapped) -> list[Tensor]:
    output = model(numbers())
    return [output.sum(), model.balance, model.inner.sum(), output.mean()]


def pair_loss(model: Pair) -> list[Tensor]:
    made = model.generator(numbers())
    return [(model.judge(made) * model.generator(numbers())).sum() + model.judge.balance]


def penalized(model: nn.Module) -> list[Tensor]:
    """The gradient of the inputs is a part of the loss; it is only computed, not differentiated."""
    x = numbers().requires_grad_()
    output = model(x)
    (gradient,) = torch.autograd.grad(output.sum(), x, retain_graph=True)
    return [output.mean() + gradient.sum()]


def accumulated(model: nn.Module) -> list[Tensor]:
    return [model(numbers()).sum() for _ in range(3)]


def loss_of(inputs: Callable[[], Tensor]) -> Callable[[nn.Module], list[Tensor]]:
    return lambda model: [model(inputs()).sum()]


#: A model, and what calls it and returns its losses.
TRAINED: dict[str, tuple[Callable[[], nn.Module], Callable[..., list[Tensor]]]] = {
    "mlp": (Mlp, loss_of(numbers)),
    "residual": (Residual, loss_of(numbers)),
    "shared bias": (SharedBias, loss_of(numbers)),
    "checkpointed": (lambda: Checkpointed(reentrant=False), loss_of(words)),
    "checkpointed reentrant": (lambda: Checkpointed(reentrant=True), loss_of(words)),
    "shared weights": (SharedWeights, loss_of(words)),
    "frozen": (Frozen, loss_of(numbers)),
    "tapped": (Tapped, tapped_loss),
    "only tapped": (Tapped, only_tapped_loss),
    "several passes": (Tapped, several_passes),
    "own function": (OwnFunction, loss_of(numbers)),
    "pair": (Pair, pair_loss),
    "penalized": (Residual, penalized),
    "accumulated": (Residual, accumulated),
}

"""The model of PyTorch's own test of its module hierarchy; TorchScript reads its types from the module it is in."""

from __future__ import annotations

from torch import Tensor, nn  # noqa: TC002 - TorchScript looks it up


class A(nn.Module):
    def my_new_method(self, x: Tensor) -> Tensor:
        return x * 3

    def forward_impl_(self, x: Tensor, y: Tensor) -> Tensor:
        return self.my_new_method(x) + y

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        y = y - 2
        return self.forward_impl_(x, y)


class B(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 2


class C(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.A0, self.B0 = A(), B()

    def call_b(self, x: Tensor) -> Tensor:
        return self.B0.forward(x)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.A0.forward(x, y) + self.call_b(x)

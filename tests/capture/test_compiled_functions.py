"""Kernel maps of compiled functions that are given modules: the code is the same whichever modules they are."""

from collections.abc import Callable
from itertools import cycle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.capture.kernel_truth import Watched, heaviest, memory, owners, watched, wrong_owners
from tracekit.capture import compiled_maps

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("hollow")]

_WIDTH = 8
Step = Callable[[Tensor], Tensor]


class Model(nn.Module):
    """Modules that are equal, and a step that is its work."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(_WIDTH, _WIDTH) for _ in range(3))
        self.step: Step | None = None

    def forward(self, x: Tensor) -> Tensor:
        assert self.step is not None
        return self.step(x)


def variables(model: Model) -> Step:
    a, b = model.a, model.b
    return torch.compile(lambda x: b(a(x)).sin())


def arguments(model: Model) -> Step:
    both = torch.compile(lambda x, first, second: second(first(x)).sin())
    return lambda x: both(both(x, model.a, model.b), model.b, model.c)


def exchanged_arguments(model: Model) -> Step:
    both = torch.compile(lambda x, first, second: second(first(x)).sin())
    orders = cycle([(model.a, model.b), (model.b, model.a)])
    return lambda x: both(x, *next(orders))


def a_parameter_of_another_module(model: Model) -> Step:
    a = model.a
    step = torch.compile(lambda x, weight: a(functional.linear(x, weight)))
    return lambda x: step(x, model.b.weight)


def two_steps(make: Callable[[Model], Step], *, trains: bool) -> Watched:
    model = Model().train(trains).requires_grad_(trains)
    with compiled_maps(), torch.set_grad_enabled(trains):
        model.step = make(model)
        return twice(model, model, trains=trains)


def twice(model: nn.Module, run: Callable[[Tensor], Tensor], *, trains: bool, **options: Any) -> Watched:
    with watched(model, **options) as seen:
        for _ in range(2):
            model.zero_grad(set_to_none=True)
            result = run(torch.ones(4, _WIDTH))
            if trains:
                result.sum().backward()
    return seen


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("make", [variables, arguments, a_parameter_of_another_module])
def test_products_are_of_the_modules_that_a_function_is_given(make: Callable[[Model], Step], *, trains: bool) -> None:
    seen = two_steps(make, trains=trains)
    weights, gradients = owners(seen.model), owners(seen.model, gradients=True)
    if make is a_parameter_of_another_module:
        # As eager calls show it: what the function itself computes is its caller's work, with whatever weight.
        for known, parameter in ((weights, seen.model.b.weight), (gradients, seen.model.b.weight.grad)):
            if parameter is not None:
                known[memory(parameter)] = {"top"}
    assert wrong_owners(seen, weights, gradients) == []
    assert seen.unmapped == []
    assert len(seen.products) >= 4
    assert [kernel.name for kernel in seen.kernels if not kernel.modules] == []


def test_a_backward_run_is_of_the_modules_of_its_forward_run() -> None:
    seen = two_steps(exchanged_arguments, trains=True)
    told = [[kernel.modules[0][0] for kernel in run.kernels] for run in seen.runs]
    assert [paths for paths in told if paths[-1] == "top"] == [["top.a", "top.b", "top"], ["top.b", "top.a", "top"]]
    assert [paths[-1] for paths in told if paths[0] == "top"] == ["top.a", "top.b"]
    assert seen.unmapped == []


class Act(nn.Module):
    """A module without parameters."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sin().relu()


class Gated(nn.Module):
    """A layer with a module without parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.act = nn.Linear(_WIDTH, _WIDTH), nn.Linear(_WIDTH, _WIDTH), Act()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.up(x))


class Stack(nn.Module):
    """Equal layers that a method of the model runs, in two graphs each."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Gated() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.run(layer, x)
        return x

    def run(self, layer: nn.Module, x: Tensor) -> Tensor:
        x = layer.up(x)
        torch._dynamo.graph_break()
        return layer.act(layer.down(x))


class Unrolled(Stack):
    """Layers in variables of their own, of which a graph has the end of one and the begin of the next."""

    def forward(self, x: Tensor) -> Tensor:
        first, second, third, fourth = self.layers
        x = first.down(functional.silu(broken(first.up(x))))
        x = second.down(broken(second.up(first.act(x))))
        x = third.down(broken(third.up(second.act(x))))
        return fourth.act(fourth.down(broken(fourth.up(third.act(x)))))


@torch.compiler.disable
def broken(x: Tensor) -> Tensor:
    return x * 2


def test_graphs_from_one_graph_break_to_the_next_serve_the_modules_on_both_sides() -> None:
    model = Unrolled()
    with compiled_maps(), torch.no_grad(), watched(model) as seen:
        torch.compile(model)(torch.ones(4, _WIDTH))
    products = [kernel for kernel in seen.kernels if not kernel.generated]
    assert [heaviest(kernel) for kernel in products] == [
        f"top.layers.{layer}.{part}" for layer in range(4) for part in ("up", "down")
    ]
    acts = [kernel for kernel in seen.kernels if "sin" in kernel.name]
    assert [heaviest(kernel) for kernel in acts] == [f"top.layers.{layer}.act" for layer in range(4)]


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("skip", [[], ["*.act"]])
def test_equal_layers_behind_a_graph_break_keep_their_work(skip: list[str], *, trains: bool) -> None:
    model = Stack().requires_grad_(trains)
    with compiled_maps(), torch.set_grad_enabled(trains):
        seen = twice(model, torch.compile(model), trains=trains, skip=skip)
    of_layers = [f"top.layers.{layer}.{part}" for layer in range(4) for part in ("up", "down")]
    once = [*of_layers, *(reversed(of_layers) if trains else ())]
    products = [[kernel for kernel in run.kernels if not kernel.generated] for run in seen.runs]
    assert [heaviest(kernels[0]) for kernels in products] == once * 2
    assert seen.unmapped == []


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("skip", [[], ["*.act"], [Act, Gated]])
def test_modules_without_parameters_in_code_of_their_own_are_those_that_are_called(
    skip: list[type[nn.Module] | str], *, trains: bool
) -> None:
    """Where no call tells which layer runs, its work is of none."""
    model = nn.Sequential(*(Gated() for _ in range(4)))
    for layer in model:
        layer.act.compile()
    with compiled_maps(), torch.set_grad_enabled(trains):
        seen = twice(model, model, trains=trains, skip=skip)
    of_layers = [] if Act in skip else [f"top.{layer}.act" for layer in range(4)]
    once = [*of_layers, *(reversed(of_layers) if trains else ())]
    assert [heaviest(kernel) for kernel in seen.kernels] == once * 2
    assert len(seen.unmapped) == (0 if of_layers else 8 + 8 * trains)

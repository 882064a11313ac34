"""Captured graphs and what changes between two calls: parameters, inputs in every form, threads; right results."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

from tests.capture.compile import COMPILING
from tests.capture.compile.models import ATTENTION, Function, Llama, compiled, ids
from tracekit.capture.compile import CompileConfig, compile_model, counters
from tracekit.capture.compile.backend import PiecewiseBackend

pytestmark = [*COMPILING, pytest.mark.usefixtures("bound")]
SETTINGS: dict[str, Any] = {"mode": "eager", "cudagraph_sizes": (2, 3, 4)}


def without_guards(model: nn.Module, **settings: Any) -> Callable[..., Any]:
    return compile_model(model, CompileConfig(**SETTINGS | settings), guards=False)


def with_guards(model: nn.Module, **settings: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(model, backend=PiecewiseBackend(CompileConfig(**SETTINGS | settings)))


def new_data(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data = torch.randn_like(parameter)


def replaced(model: nn.Module) -> None:
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            setattr(module, name, nn.Parameter(torch.randn_like(parameter)))


def swapped_buffer(model: nn.Module) -> None:
    for module in model.modules():
        for name, buffer in list(module._buffers.items()):
            module._buffers[name] = None if buffer is None else buffer.clone().add_(1)
    new_data(model)


def normalized() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 4)).eval()


@pytest.mark.parametrize(
    ("make", "args", "change", "pieces"),
    [
        (normalized, (torch.randn(4, 4),), new_data, 1),
        (normalized, (torch.randn(4, 4),), replaced, 1),
        (normalized, (torch.randn(4, 4),), swapped_buffer, 1),
        (lambda: Llama(2), ids(4), new_data, 3),
    ],
)
@pytest.mark.parametrize("compile_as", [without_guards, with_guards])
def test_changed_parameters_are_noticed(compile_as: Any, make: Any, args: Any, change: Any, pieces: int) -> None:
    model = make()
    run = compile_as(model, splitting_ops=(ATTENTION,))
    for _ in range(3):
        with counters.expect(graphs_captured=pieces):
            for _ in range(3):
                torch.testing.assert_close(run(*args), model(*args))
        change(model)


@pytest.mark.parametrize("copy_inputs", [False, True])
def test_threads_get_the_results_of_their_own_inputs(*, copy_inputs: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)).eval()
    run = without_guards(model, copy_inputs=copy_inputs)
    run(torch.randn(4, 4))

    def work(_: int) -> None:
        with torch.no_grad():
            for _ in range(300):
                x = torch.randn(4, 4)
                torch.testing.assert_close(run(x), model(x))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))


def test_threads_that_capture_at_once_capture_once() -> None:
    model, args = Llama(2), ids(4)
    run = without_guards(model, splitting_ops=(ATTENTION,))
    with torch.no_grad():
        run(*ids(7))  # a size of no graph: all code is there
    start = threading.Barrier(4)

    def work(_: int) -> torch.Tensor:
        start.wait()
        with torch.no_grad():
            return run(*args)

    with counters.expect(graphs_captured=3), ThreadPoolExecutor(4) as threads:
        results = list(threads.map(work, range(4)))
    for result in results:
        torch.testing.assert_close(result, model(*args))


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(4, 3),
        lambda: torch.randn(1, 3).expand(4, 3),
        lambda: torch.randn(9).as_strided((4, 3), (2, 1)),
        lambda: torch.randn(4, 9)[:, 2:8:2],
        lambda: torch.randn(4, 0),
    ],
    ids=["plain", "expanded", "windows", "a slice", "empty"],
)
def test_inputs_of_every_form_are_copied(make: Callable[[], torch.Tensor]) -> None:
    run = with_guards(Function(lambda x: x * 2 + 1), copy_inputs=True)
    for _ in range(4):
        x = make()
        assert torch.equal(run(x), x * 2 + 1)


def test_inputs_made_in_inference_mode_may_be_used_outside_and_the_reverse() -> None:
    run = compiled(Function(lambda x: x * 2 + 1), first := torch.randn(4, 3), copy_inputs=True, **SETTINGS)
    for _ in range(3):
        with torch.inference_mode():
            inside = torch.randn(4, 3)
            assert torch.equal(run(first), first * 2 + 1)
            assert torch.equal(run(inside), inside * 2 + 1)
        assert torch.equal(run(inside), inside * 2 + 1)
        assert torch.equal(run(torch.ones(4, 3)), torch.full((4, 3), 3.0))


def write(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    y.mul_(2)
    return x.sum() + y.sum()


@pytest.mark.parametrize(
    "views",
    [
        lambda base: (base[:4], base[2:]),
        lambda base: (base[:4, ::2], base[:4, 1::2]),
        lambda base: (base[:4].clone(), base[2:].clone()),
    ],
    ids=["overlapping", "interleaved", "apart"],
)
def test_what_is_written_to_inputs_is_not_lost(views: Callable[[torch.Tensor], Any]) -> None:
    run = torch.compile(write, backend=PiecewiseBackend(CompileConfig(copy_inputs=True, **SETTINGS)), dynamic=False)
    for _ in range(4):
        base, expected = (torch.arange(24.0).reshape(6, 4) for _ in range(2))
        inputs, others = views(base), views(expected)
        assert torch.equal(run(*inputs), write(*others))
        assert all(map(torch.equal, (base, *inputs), (expected, *others)))


def test_a_warm_up_draws_no_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    model, x = Function(lambda x: x + torch.rand_like(x)), torch.zeros(4)
    run = without_guards(model, cudagraph_warmups=3, graph_capture="record")
    run(torch.zeros(7))
    torch.manual_seed(0)
    results = [run(x) for _ in range(3)]
    torch.manual_seed(0)
    assert all(torch.equal(result, model(x)) for result in results)


@pytest.mark.parametrize("copy_inputs", [False, True])
def test_results_that_are_views_of_captured_memory_are_copied(*, copy_inputs: bool) -> None:
    model = Function(lambda x: (x * 2).transpose(0, 1))  # the result is a view that a splitting operator made
    run = without_guards(model, splitting_ops=("aten::transpose",), copy_inputs=copy_inputs)
    x = torch.zeros(4, 3)
    results = [run(x.fill_(number)) for number in range(4)]
    assert [float(result[0, 0]) for result in results] == [0, 2, 4, 6]

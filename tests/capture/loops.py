"""Counts the steps of programs that run them themselves by hooks of its own, and reads what a recording says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import tracekit

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.capture.places import Place
    from tracekit.dataset.opening import Dataset

SIZE = 4


class Net(nn.Module):
    """A small model to train."""

    def __init__(self, outputs: int = SIZE) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(SIZE, 2 * SIZE), nn.Linear(2 * SIZE, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


class Count:
    """Counts the calls of a model in each step of the program that runs."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.steps: list[int] = []
        self.watched = ""
        self._calls = 0

    def watch(self, model: nn.Module, name: str = "", *, training: bool = True) -> nn.Module:
        """Counts its calls; by default those that train it."""
        self.watched = name or type(model).__name__

        def called(module: nn.Module, *_: object) -> None:
            self._calls += not training or (module.training and torch.is_grad_enabled())

        model.register_forward_pre_hook(called)
        return model

    def step_ended(self, *_: object) -> None:
        self.steps.append(self._calls)
        self._calls = 0

    def ends_with(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function; a step ends with each call of it."""

        def counted(*args: object, **kwargs: object) -> object:
            result = function(*args, **kwargs)
            self.step_ended()
            return result

        return counted


COUNT = Count()


def recorded(place: Place, program: Callable[[], None], *args: object) -> Dataset:
    """Records a program of a module of the tests."""
    COUNT.forget()
    report = place.folder / f"{program.__name__}.sqlite"
    outcome = place.capture("--force", "-o", report, *args, f"{program.__module__}:{program.__name__}")
    assert outcome.code == 0, outcome
    return tracekit.parse(report, force=True)


def calls_by_step(dataset: Dataset, root: str) -> list[int]:
    """How many forward calls of a root each step has."""
    calls = dataset.calls(["module", "step_id", "phase"])
    own = calls[(calls.module == root) & (calls.phase == "forward")]
    return [int((own.step_id == step).sum()) for step in range(len(dataset.steps()))]


def times_of(dataset: Dataset, root: str) -> int:
    """How many forward calls of a root were recorded."""
    calls = dataset.calls(["module", "phase"])
    return int(((calls.module == root) & (calls.phase == "forward")).sum())

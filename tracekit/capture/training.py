"""Marks the phases of a training loop that belong to no module: steps of optimizers, and the end of an evaluation.

Optimizers are numbered in the order of their first steps, so that those of one class are told apart.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch.compiler import is_dynamo_compiling
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data.dataloader import _BaseDataLoaderIter

from tracekit.capture.emit import close_down_to, default_emitter
from tracekit.capture.frames import running_steps
from tracekit.markers import spelling
from tracekit.markers.phases import AFTER_EVALUATION, AFTER_NO_GRAD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self

    from torch import nn
    from torch.optim import Optimizer


class _OptimizerStep:
    """An open range around a step of an optimizer."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer


class OptimizerMarkers:
    """Marks the steps of all optimizers while the block runs."""

    def __init__(self, begins: Callable[[], object]) -> None:
        """Prepares the markers.

        Args:
            begins: Called before each step of an optimizer.
        """
        self._begins = begins
        self._watching = ExitStack()
        self._numbers: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()
        self._ended = False

    def step_ended(self) -> bool:
        """Whether, since the last question, the last of the optimizers that take turns has ended its step."""
        ended, self._ended = self._ended, False
        return ended

    @property
    def stepping(self) -> bool:
        """Whether a step of an optimizer is running on this thread."""
        return any(isinstance(entry, _OptimizerStep) for entry in default_emitter().lane.open)

    def __enter__(self) -> Self:
        self._watching.callback(register_optimizer_step_pre_hook(self._before).remove)
        self._watching.callback(register_optimizer_step_post_hook(self._after).remove)
        return self

    def __exit__(self, *_exception: object) -> None:
        self._watching.close()

    def _before(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:  # noqa: ANN401 - as torch has it
        if is_dynamo_compiling():
            return
        _close_interrupted(optimizer)
        self._begins()
        try:
            number = self._numbers.setdefault(optimizer, len(self._numbers))
        except TypeError:  # a class of the user's whose optimizers cannot be keys
            return
        emitter = default_emitter()
        opener = emitter.opener(spelling.optimizer(type(optimizer).__name__, number))
        emitter.lane.open.append(_OptimizerStep(optimizer))
        opener()

    def _after(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:  # noqa: ANN401 - as torch has it
        if is_dynamo_compiling():
            return
        if (entry := _innermost(optimizer)) is None:
            return
        _close(entry)
        if _innermost(optimizer) is None and self._numbers[optimizer] == len(self._numbers) - 1:
            self._ended = True


def _close_interrupted(begins: Optimizer | None = None) -> None:
    """Closes the ranges of optimizer steps on this thread that an exception ended without running our hook.

    Args:
        begins: The optimizer that begins a step now, if one does.
    """
    opened = default_emitter().lane.open
    running = Counter(entry.optimizer for entry in opened if isinstance(entry, _OptimizerStep))
    for optimizer, count in running.items():
        for _ in range(count - running_steps(optimizer) + (optimizer is begins)):
            if (entry := _innermost(optimizer)) is not None:
                _close(entry)


def _innermost(optimizer: Optimizer) -> _OptimizerStep | None:
    """The innermost open step of an optimizer on this thread."""
    opened = default_emitter().lane.open
    steps = (entry for entry in reversed(opened) if isinstance(entry, _OptimizerStep))
    return next((entry for entry in steps if entry.optimizer is optimizer), None)


def _close(entry: _OptimizerStep) -> None:
    emitter = default_emitter()
    close_down_to(entry, emitter.lane.open, emitter.close)
    emitter.lane.open.pop()
    emitter.close()


@contextmanager
def data_markers() -> Iterator[None]:
    """While the block runs, marks where a DataLoader fetches a batch, as torch does for its own profiler alone."""
    fetch = _BaseDataLoaderIter.__next__

    @wraps(fetch)
    def marked(loader: _BaseDataLoaderIter) -> object:
        emitter = default_emitter()
        emitter.opener(spelling.data(type(loader).__name__))()
        try:
            return fetch(loader)
        finally:
            emitter.close()

    _BaseDataLoaderIter.__next__ = marked  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        _BaseDataLoaderIter.__next__ = fetch  # type: ignore[method-assign]


class EvaluationMarkers:
    """Marks where a model is trained again after calls without gradients."""

    def __init__(self) -> None:
        self._before: WeakKeyDictionary[nn.Module, str | None] = WeakKeyDictionary()

    def called(self, root: nn.Module) -> None:
        """A root is about to be called."""
        _close_interrupted()
        now = None
        if not torch.is_grad_enabled():
            now = AFTER_NO_GRAD if root.training else AFTER_EVALUATION
        before, self._before[root] = self._before.get(root), now
        if now is None and before is not None:
            emitter = default_emitter()
            emitter.opener(spelling.training(before))()
            emitter.close()

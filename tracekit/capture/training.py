"""Marks the phases of a training loop that belong to no module: steps of optimizers, and loading data.

Optimizers are numbered in the order of their first steps, so that those of one class are told apart.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

from torch.amp import GradScaler
from torch.compiler import is_dynamo_compiling
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data.dataloader import _BaseDataLoaderIter

from tracekit.capture.emit import close_down_to, default_emitter
from tracekit.capture.frames import running_steps
from tracekit.markers import spelling

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from torch.optim import Optimizer


class _Begins(Protocol):
    def __call__(self, *, first_turn: bool) -> None: ...


class _OptimizerStep:
    """An open range around a step of an optimizer."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer


class _ScaledStep:
    """An open range around a gradient scaler's step, which may skip that of the optimizer."""


class OptimizerMarkers:
    """Marks the steps of all optimizers while the block runs."""

    def __init__(self, begins: _Begins) -> None:
        """Prepares the markers.

        Args:
            begins: Called before each step of an optimizer, with whether it is the first one of an optimizer that
                takes turns with others that have stepped once.
        """
        self._begins = begins
        self._watching = ExitStack()
        self._numbers: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()
        self._times: Counter[int] = Counter()
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
        self._watching.enter_context(self._scaled_steps())
        return self

    def __exit__(self, *_exception: object) -> None:
        self._watching.close()

    @contextmanager
    def _scaled_steps(self) -> Iterator[None]:
        """While the block runs, marks the steps of a gradient scaler too: it may skip that of its optimizer."""
        step = GradScaler.step

        @wraps(step)
        def marked(scaler: GradScaler, optimizer: Optimizer, *args: Any, **kwargs: Any) -> float | None:  # noqa: ANN401
            scaled = _ScaledStep()
            opened = self._open(optimizer, scaled)
            try:
                return step(scaler, optimizer, *args, **kwargs)
            finally:
                if opened:
                    _close(scaled)
                    self._stepped(optimizer)

        GradScaler.step = marked  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            GradScaler.step = step  # type: ignore[method-assign]

    def _before(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:  # noqa: ANN401 - as torch has it
        if is_dynamo_compiling():
            return
        close_interrupted(optimizer)
        self._begins(first_turn=self._is_first_turn(optimizer))
        self._open(optimizer, _OptimizerStep(optimizer))

    def _is_first_turn(self, optimizer: Optimizer) -> bool:
        known = any(one is optimizer for one in self._numbers)
        return not known and set(self._times.values()) == {1}

    def _open(self, optimizer: Optimizer, entry: _OptimizerStep | _ScaledStep) -> bool:
        """Opens the range of a step. Returns whether it could."""
        try:
            number = self._numbers.setdefault(optimizer, len(self._numbers))
        except TypeError:  # a class of the user's whose optimizers cannot be keys
            return False
        emitter = default_emitter()
        opener = emitter.opener(spelling.optimizer(type(optimizer).__name__, number))
        emitter.lane.open.append(entry)
        opener()
        return True

    def _after(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:  # noqa: ANN401 - as torch has it
        if is_dynamo_compiling():
            return
        if (entry := _innermost(optimizer)) is None:
            return
        _close(entry)
        self._stepped(optimizer)

    def _stepped(self, optimizer: Optimizer) -> None:
        if _innermost(optimizer) is not None:
            return
        number = self._numbers[optimizer]
        self._times[number] += 1
        most = max(self._times.values())
        taking_turns = [each for each, times in self._times.items() if times >= most - 1]
        if number == max(taking_turns):
            self._ended = True


def close_interrupted(begins: Optimizer | None = None) -> None:
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


def _close(entry: _OptimizerStep | _ScaledStep) -> None:
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

"""What begins the steps of a program that runs its own, while it runs: what it marks, its optimizers, or its models."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakSet

from torch import nn

from tracekit.capture.steps import step
from tracekit.capture.trained import TrainingMarkers
from tracekit.capture.training import OptimizerMarkers

if TYPE_CHECKING:
    from tracekit.capture.schedule import Schedule

#: As at reading: the size of a root that leads another, and how often a loop may call others before its leader.
_MUCH, _LONGEST_CYCLE = 2, 8


class StepStarts:
    """What begins a step of a program that runs its own: a marked step, else an optimizer, else the root that leads."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self.restart()
        self.optimizers = OptimizerMarkers(self._optimizer_begins)

    def restart(self) -> None:
        """Forgets the models that were called, as a forked process does those of its parent."""
        self._known: WeakSet[nn.Module] = WeakSet()
        self._size = 0

    def marked_step(self) -> None:
        """A step that the program marks begins."""
        self._schedule.taken_over(step)
        self._schedule.begins(step)

    def outermost_call(self, root: nn.Module, updated: bool) -> None:  # noqa: FBT001 - as it is called
        """A call from outside all modules begins.

        Args:
            root: The module.
            updated: Whether it was changed since its last call, by no known optimizer.
        """
        if self._schedule.by is step:
            return
        if not self.optimizers.stepping and self.optimizers.step_ended():
            self._schedule.begins(OptimizerMarkers)
        elif updated:
            self._schedule.taken_over(TrainingMarkers, begun=1)
            self._schedule.begins(TrainingMarkers)
        else:
            self._root_called(root)

    def _optimizer_begins(self, *, first_turn: bool) -> None:
        """An optimizer begins a step.

        Args:
            first_turn: Whether it steps for the first time, after others that have stepped once.
        """
        if self._schedule.by is step:
            return
        if self._schedule.by is None:  # an optimizer that calls the model itself, as LBFGS does
            self._schedule.begins(OptimizerMarkers)
        elif self._schedule.by is not OptimizerMarkers:
            self._schedule.taken_over(OptimizerMarkers, begun=1)
        elif self.optimizers.step_ended():  # the model was not called since: this one calls it, too
            self._schedule.begins(OptimizerMarkers)
        elif first_turn:
            self._schedule.goes_on()

    def _root_called(self, root: nn.Module) -> None:
        """A call of a root begins. The first root leads, unless soon after it one with twice as many modules runs."""
        if root not in self._known:
            self._known.add(root)
            size = sum(1 for _ in root.modules())
            if size >= _MUCH * self._size and self._schedule.begun <= _LONGEST_CYCLE:
                self._size = size
                if isinstance(self._schedule.by, nn.Module):
                    self._schedule.taken_over(root)
        self._schedule.begins(root)

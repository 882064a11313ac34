"""Marks the models, steps and optimizers of a program that runs its steps itself."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracekit.capture.inventory import FIGURE, MARKED
from tracekit.capture.layers import SKIPPED, layer_markers
from tracekit.capture.roots import RootMarkers
from tracekit.capture.starts import StepStarts
from tracekit.capture.steps import on_step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

    from tracekit.capture.compiling import Compiling
    from tracekit.capture.layers import LayerMarkers
    from tracekit.capture.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Settings:
    """What to record.

    Attributes:
        steps: Iterations to record; None means 5 of a model, all of a program.
        warmup: Iterations to run before; None means 2 of a model, none of a program.
        ops: Whether to mark operators.
        backward: Whether to mark backward passes and, where the target returns a model, to run them.
        skip: Patterns of dotted names that get no markers.
        depth: Modules more than this many levels below the model get no markers.
        keep_fused: Whether layers whose fused path hooks would switch off are marked as one call.
        compiling: How to compile the model; None runs it as it is.
    """

    steps: int | None = None
    warmup: int | None = None
    ops: bool = False
    backward: bool = False
    skip: tuple[str, ...] = ()
    depth: int | None = None
    keep_fused: bool = False
    compiling: Compiling | None = None

    def put_on(self, model: nn.Module, prefix: str) -> LayerMarkers:
        """Marks a model as these settings say."""
        skip: list[type[nn.Module] | str] = [*SKIPPED, *self.skip]
        markers = layer_markers(
            model, prefix, skip=skip, depth=self.depth, backward=self.backward, keep_fused=self.keep_fused
        )
        markers.warns = False  # the command says it, for all models together
        return markers


class Marking:
    """Puts the markers on a program's models and remembers them, so that their modules can be counted at its end."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._handles: list[LayerMarkers] = []
        self._inherited: list[LayerMarkers] = []

    def forked(self) -> None:
        """In a forked process, models of its parent count only if they are called here, too."""
        self._inherited = [*self._inherited, *self._handles]
        self._handles = []
        for handle in self._inherited:
            handle.restart()

    def put_on(self, model: nn.Module, prefix: str) -> LayerMarkers:
        """Marks a model as the settings say."""
        self._handles.append(handle := self._settings.put_on(model, prefix))
        return handle

    def figures(self) -> dict[str, int]:
        """How many modules ran marked and, by cause, unmarked. Known once the markers are taken off."""
        counts: Counter[str] = Counter({MARKED: 0})
        handles = self._handles + [handle for handle in self._inherited if handle.inventory[MARKED]]
        for handle in handles:
            counts.update(handle.inventory)
        figures = {FIGURE(name): count for name, count in counts.items()}
        return figures | {"fused_paths_off": sum(handle.fused_paths_off for handle in handles)}


class _MarkedProgram:
    """The markers of a program, while they are on."""

    def __init__(self, schedule: Schedule, starts: StepStarts) -> None:
        self._schedule = schedule
        self._starts = starts

    def forked(self) -> None:
        """In a forked process, steps count from its own first one."""
        self._schedule.restart()
        self._starts.restart()


@contextmanager
def marked_program(schedule: Schedule, put_on: Callable[[nn.Module, str], LayerMarkers]) -> Iterator[_MarkedProgram]:
    """While the block runs, marks every model and every step of an optimizer, and tells the schedule of steps.

    Args:
        schedule: What begins and ends with the steps.
        put_on: Marks a model under a name.
    """
    starts = StepStarts(schedule)
    roots = RootMarkers(starts.outermost_call, put_on)
    with roots, starts.optimizers, on_step(starts.marked_step):
        yield _MarkedProgram(schedule, starts)

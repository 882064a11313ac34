"""Runs a target and decides what of it is recorded; how it is recorded is the engine's affair."""

from __future__ import annotations

import sys
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tracekit.capture.compiling import compile_figures, without_captures
from tracekit.capture.layers import SKIPPED, layer_markers
from tracekit.capture.marks import unwrapped
from tracekit.capture.roots import RootMarkers
from tracekit.capture.schedule import Schedule
from tracekit.capture.steps import step, told_of_steps
from tracekit.capture.target import explained
from tracekit.capture.tensors import all_tensors
from tracekit.errors import CaptureError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from tracekit.capture.compiling import Compiling
    from tracekit.capture.layers import LayerMarkers
    from tracekit.capture.schedule import Window
    from tracekit.capture.target import Target

#: For a model and its inputs, where nothing else is asked for.
STEPS, WARMUP = 5, 2
_EXPECTED = "expected (model, inputs), or nothing if it runs steps itself"


@dataclass(frozen=True, slots=True)
class Settings:
    """What is to be recorded.

    Attributes:
        steps: Iterations to record; None for 5 of a model, all of a program.
        warmup: Iterations before that; None for 2 of a model, none of a program.
        ops: Whether to mark operators.
        backward: Whether to mark backward passes, and to run them where a model is given.
        skip: Patterns of dotted names that get no marker.
        depth: Modules deeper than this get no marker.
        compiling: How to compile a model that is given; None to run it as it is.
    """

    steps: int | None = None
    warmup: int | None = None
    ops: bool = False
    backward: bool = False
    skip: tuple[str, ...] = ()
    depth: int | None = None
    compiling: Compiling | None = None

    def put_on(self, model: nn.Module, prefix: str) -> LayerMarkers:
        """Marks a model as wanted."""
        skip: list[type[nn.Module] | str] = [*SKIPPED, *self.skip]
        return layer_markers(model, prefix, skip=skip, depth=self.depth, backward=self.backward)


@dataclass(frozen=True, slots=True)
class _Program:
    """A model with what it is called with."""

    model: Any
    marked: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


def run(
    target: Target, settings: Settings, window: Window, operators: AbstractContextManager[object]
) -> dict[str, int]:
    """Runs a target to its end.

    Args:
        target: What to run.
        settings: What of it to record.
        window: Opened and closed around that.
        operators: Entered while it runs.

    Returns:
        The time of an iteration before and while it was recorded, in nanoseconds, where a model was given.

    Raises:
        CaptureError: If it fails, or nothing in it could be recorded.
    """
    try:
        with operators:
            if settings.compiling is not None:
                program = _program(target.spec, _given(target))
                return _compiled_steps(program, target, settings, window)
            made = _self_running(target, settings, window)
            if made is None:
                return {}
            return _steps(_program(target.spec, made), target, settings, window)
    finally:
        window.close()


def exit_code(leaving: SystemExit) -> int:
    """The exit code that Python would give; a text is printed, as Python does."""
    if leaving.code is None or isinstance(leaving.code, int):
        return leaving.code or 0
    print(leaving.code, file=sys.stderr)  # noqa: T201 - the target's own words
    return 1


def _self_running(target: Target, settings: Settings, window: Window) -> object:
    """Calls the target with markers on whatever model it runs; what it returns."""
    warmup = target.warmup if settings.warmup is None else settings.warmup
    schedule = Schedule(window, warmup, settings.steps)

    def stepped() -> None:
        schedule.taken_over(step)
        schedule.begins(step)

    roots = RootMarkers(lambda _: schedule.begins(RootMarkers), settings.put_on)
    with roots, told_of_steps(stepped), explained(target.spec, target.file):
        made = target.call()
    if made is None and not schedule.opened:
        ran = f"ran {schedule.begun} of {warmup} steps of warm-up" if schedule.begun else "called no module"
        raise CaptureError(f"{target.spec}: {ran}, so nothing was recorded; {_EXPECTED}")
    return made


def _given(target: Target) -> object:
    """What the target returns, who may not run steps itself."""
    with explained(target.spec, target.file):
        made = (target.model or target.call)()
    if made is None:
        raise CaptureError(f"{target.spec}: returned nothing to compile; expected (model, inputs)")
    return made


def _program(spec: str, made: object) -> _Program:
    if not isinstance(made, tuple) or len(made) != 2 or not isinstance(made[0], nn.Module):  # noqa: PLR2004
        if isinstance(made, Coroutine):
            made.close()  # or Python warns that nobody awaited it
        raise CaptureError(f"{spec}: returned {_named(made)}; {_EXPECTED}")
    model, inputs = made
    if isinstance(inputs, Mapping):
        named = {str(name): value for name, value in inputs.items()}
        return _Program(model, model, kwargs=named)
    args = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    return _Program(model, model, args)


def _named(made: object) -> str:
    if isinstance(made, tuple):
        return f"({', '.join(type(item).__name__ for item in made)})"
    return f"a {type(made).__name__}"


def _steps(program: _Program, target: Target, settings: Settings, window: Window) -> dict[str, int]:
    """Calls a model as often as wanted, the warm-up outside of the window."""
    warmup = WARMUP if settings.warmup is None else settings.warmup
    steps = STEPS if settings.steps is None else settings.steps
    name = type(unwrapped(program.marked)).__name__
    figures = {}
    with settings.put_on(program.marked, name), explained(target.spec, target.file):
        for _ in range(warmup):
            figures["step_before_ns"] = _timed(program, settings)
        window.open()
        spent = 0
        for _ in range(steps):
            with step(kind="train" if settings.backward else None):
                spent += _timed(program, settings)
        figures["step_recorded_ns"] = spent // max(1, steps)
    return figures


def _compiled_steps(program: _Program, target: Target, settings: Settings, window: Window) -> dict[str, int]:
    """As :func:`_steps`, of the compiled model. Captures of CUDA graphs lie in the window, compiling does not."""
    compiling = settings.compiling
    assert compiling is not None
    before = compile_figures()
    compiled = replace(program, model=compiling.compiled(program.model), marked=program.model)
    with explained(target.spec, target.file), without_captures():
        _timed(compiled, settings)
    if compiling.captures:
        window.open()
    figures = _steps(compiled, target, settings, window)
    now = compile_figures()
    left_out = bool(compiling.cudagraph_sizes) and not compiling.captures
    return figures | {name: now[name] - before[name] for name in now} | {"no_gpu": int(left_out)}


def _timed(program: _Program, settings: Settings) -> int:
    """Calls the model once, to the end of what it asked of the GPU; nanoseconds."""
    before = time.perf_counter_ns()
    with torch.set_grad_enabled(settings.backward):
        output = program.model(*program.args, **program.kwargs)
    if settings.backward:
        _backward(output)
        program.marked.zero_grad(set_to_none=True)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter_ns() - before


def _backward(output: object) -> None:
    wanted = [tensor for tensor in all_tensors(output) or () if tensor.requires_grad]
    if not wanted:
        message = "no output of the model requires a gradient; leave --backward out"
        raise CaptureError(message)
    sum(tensor.float().sum() for tensor in wanted).backward()  # type: ignore[union-attr]

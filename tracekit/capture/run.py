"""Runs a target and decides which part of the run is recorded. How it is recorded is up to the engine."""

from __future__ import annotations

import sys
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tracekit.capture.compiling import compile_figures, without_graph_captures
from tracekit.capture.layers import SKIPPED, layer_markers
from tracekit.capture.marks import unwrapped
from tracekit.capture.roots import RootMarkers
from tracekit.capture.schedule import Schedule
from tracekit.capture.steps import on_step, step
from tracekit.capture.target import errors_in_one_line
from tracekit.capture.tensors import all_tensors
from tracekit.errors import CaptureError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from tracekit.capture.compiling import Compiling
    from tracekit.capture.layers import LayerMarkers
    from tracekit.capture.schedule import Window
    from tracekit.capture.target import Target

#: Defaults for a target that returns a model and its inputs.
STEPS, WARMUP = 5, 2
_EXPECTED = "expected (model, inputs), or None from a function that runs steps itself"


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
        compiling: How to compile the model; None runs it as it is.
    """

    steps: int | None = None
    warmup: int | None = None
    ops: bool = False
    backward: bool = False
    skip: tuple[str, ...] = ()
    depth: int | None = None
    compiling: Compiling | None = None

    def put_on(self, model: nn.Module, prefix: str) -> LayerMarkers:
        """Marks a model as these settings say."""
        skip: list[type[nn.Module] | str] = [*SKIPPED, *self.skip]
        return layer_markers(model, prefix, skip=skip, depth=self.depth, backward=self.backward)


@dataclass(frozen=True, slots=True)
class _Program:
    """A model and the arguments to call it with.

    ``model`` is called and ``marked`` is marked; they differ where the model is compiled.
    """

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
        settings: What to record.
        window: Opened and closed around the recorded part.
        operators: Entered while the target runs.

    Returns:
        Where the target returned a model: the time of an iteration before and during the recording, in nanoseconds.

    Raises:
        CaptureError: If the target fails, or nothing in it could be recorded.
    """
    try:
        with operators:
            if settings.compiling is not None:
                program = _program(target.spec, _result_to_compile(target))
                return _run_compiled_steps(program, target, settings, window)
            result = _called_with_root_markers(target, settings, window)
            if result is None:
                return {}
            return _run_steps(_program(target.spec, result), target, settings, window)
    finally:
        window.close()


def exit_code(leaving: SystemExit) -> int:
    """The exit code that Python would use. Prints a text given to ``sys.exit``, as Python does."""
    if leaving.code is None or isinstance(leaving.code, int):
        return leaving.code or 0
    print(leaving.code, file=sys.stderr)  # noqa: T201 - the target's own message
    return 1


def _called_with_root_markers(target: Target, settings: Settings, window: Window) -> object:
    """Calls the target, marks the models that it runs, and returns its result."""
    warmup = target.warmup if settings.warmup is None else settings.warmup
    schedule = Schedule(window, warmup, settings.steps)

    def begin_step() -> None:
        schedule.taken_over(step)
        schedule.begins(step)

    roots = RootMarkers(lambda _: schedule.begins(RootMarkers), settings.put_on)
    with roots, on_step(begin_step), errors_in_one_line(target.spec, target.file):
        result = target.call()
    if result is None and not schedule.opened:
        end = f"ended after {schedule.begun} of {warmup} warm-up steps" if schedule.begun else "called no module"
        raise CaptureError(f"{target.spec}: {end}, so nothing was recorded; {_EXPECTED}")
    return result


def _result_to_compile(target: Target) -> object:
    """The result of a target that must return a model, because only then can the model be compiled."""
    with errors_in_one_line(target.spec, target.file):
        result = (target.model or target.call)()
    if result is None:
        raise CaptureError(f"{target.spec}: returned no model to compile; expected (model, inputs)")
    return result


def _program(spec: str, result: object) -> _Program:
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[0], nn.Module):  # noqa: PLR2004
        if isinstance(result, Coroutine):
            result.close()  # else Python warns that it was never awaited
        raise CaptureError(f"{spec}: returned {_type_name(result)}; {_EXPECTED}")
    model, inputs = result
    if isinstance(inputs, Mapping):
        kwargs = {str(name): value for name, value in inputs.items()}
        return _Program(model, model, kwargs=kwargs)
    args = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    return _Program(model, model, args)


def _type_name(result: object) -> str:
    if isinstance(result, tuple):
        return f"({', '.join(type(item).__name__ for item in result)})"
    return f"an object of type {type(result).__name__}"


def _run_steps(program: _Program, target: Target, settings: Settings, window: Window) -> dict[str, int]:
    """Runs the warm-up, opens the window, and runs the steps to record."""
    warmup = WARMUP if settings.warmup is None else settings.warmup
    steps = STEPS if settings.steps is None else settings.steps
    name = type(unwrapped(program.marked)).__name__
    figures = {}
    with settings.put_on(program.marked, name), errors_in_one_line(target.spec, target.file):
        for _ in range(warmup):
            figures["step_before_ns"] = _timed(program, settings)
        window.open()
        recorded_ns = 0
        for _ in range(steps):
            with step(kind="train" if settings.backward else None):
                recorded_ns += _timed(program, settings)
        figures["step_recorded_ns"] = recorded_ns // max(1, steps)
    return figures


def _run_compiled_steps(program: _Program, target: Target, settings: Settings, window: Window) -> dict[str, int]:
    """As :func:`_run_steps`, with the model compiled. Graph captures happen inside the window, compiling outside."""
    compiling = settings.compiling
    assert compiling is not None
    before = compile_figures()
    compiled = replace(program, model=compiling.compiled(program.model), marked=program.model)
    with errors_in_one_line(target.spec, target.file), without_graph_captures():
        _timed(compiled, settings)
    if compiling.captures_graphs:
        window.open()
    figures = _run_steps(compiled, target, settings, window)
    after = compile_figures()
    no_gpu = bool(compiling.cudagraph_sizes) and not compiling.captures_graphs
    return figures | {name: after[name] - before[name] for name in after} | {"no_gpu": int(no_gpu)}


def _timed(program: _Program, settings: Settings) -> int:
    """Calls the model once and waits for the GPU. Returns nanoseconds."""
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
    differentiable = [tensor for tensor in all_tensors(output) or () if tensor.requires_grad]
    if not differentiable:
        message = "no output of the model requires a gradient; remove --backward"
        raise CaptureError(message)
    sum(tensor.float().sum() for tensor in differentiable).backward()  # type: ignore[union-attr]

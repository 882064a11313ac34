"""Runs a target and decides which part of the run is recorded. How it is recorded is up to the engine."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tracekit.capture.compiling import compile_figures, compiled, without_graph_captures
from tracekit.capture.marks import unwrapped
from tracekit.capture.program import Marking, marked_program
from tracekit.capture.schedule import Schedule
from tracekit.capture.steps import step
from tracekit.capture.target import errors_in_one_line, join_threads
from tracekit.capture.tensors import all_tensors
from tracekit.errors import CaptureError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from tracekit.capture.program import Settings
    from tracekit.capture.schedule import Window
    from tracekit.capture.target import Target

#: Defaults for a target that returns a model and its inputs.
STEPS, WARMUP = 5, 2
#: Steps before the recording that must have been timed for their median to be told; the first does not count.
_TIMED = 3
_EXPECTED = "expected (model, inputs), or None from a function that runs steps itself"
_OTHER_PROCESSES = "processes that it starts are recorded with: tracekit capture -- python {}"


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
    target: Target,
    settings: Settings,
    window: Window,
    operators: AbstractContextManager[object],
    figures: dict[str, int] | None = None,
) -> dict[str, int]:
    """Runs a target to its end.

    Args:
        target: What to run.
        settings: What to record.
        window: Opened and closed around the recorded part.
        operators: Entered while the target runs.
        figures: Receives the figures as they become known; it holds them even if the target fails or exits.

    Returns:
        The figures: modules marked and unmarked, by cause, and, where the target returned a model, the median time of
        an iteration before and during the recording, in nanoseconds.

    Raises:
        CaptureError: If the target fails, or nothing in it could be recorded.
    """
    figures = {} if figures is None else figures
    marking = Marking(settings)
    try:
        with operators:
            if settings.compiling is not None:
                program = _program(target.spec, _result_to_compile(target))
                figures |= _run_compiled_steps(program, target, settings, window, marking)
            elif (result := _called_with_root_markers(target, settings, window, marking)) is not None:
                figures |= _run_steps(_program(target.spec, result), target, settings, window, marking)
    finally:
        window.close()
        figures |= marking.figures()
    return figures


def exit_code(leaving: SystemExit) -> int:
    """The exit code that Python would use. Prints a text given to ``sys.exit``, as Python does."""
    if leaving.code is None or isinstance(leaving.code, int):
        return leaving.code or 0
    print(leaving.code, file=sys.stderr)  # noqa: T201 - the target's own message
    return 1


def _called_with_root_markers(target: Target, settings: Settings, window: Window, marking: Marking) -> object:
    """Calls the target, marks the models that it runs, and returns its result."""
    warmup = target.warmup if settings.warmup is None else settings.warmup
    schedule = Schedule(window, warmup, settings.steps)
    with marked_program(schedule, marking.put_on), errors_in_one_line(target.spec, target.file):
        before = set(threading.enumerate())
        if (result := target.call()) is None:
            join_threads(before)
    if result is None and not schedule.opened:
        raise CaptureError(f"{target.spec}: {_why_nothing(target, schedule.begun, warmup)}")
    return result


def _why_nothing(target: Target, begun: int, warmup: int) -> str:
    """Why nothing was recorded, and what to do."""
    if begun:
        return f"ended after {begun} of {warmup} warm-up steps, so nothing was recorded; set a smaller --warmup"
    advice = _OTHER_PROCESSES.format(target.spec) if target.spec == target.file else _EXPECTED
    return f"called no module, so nothing was recorded; {advice}"


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
    # A namedtuple is one argument: a batch with names.
    several = isinstance(inputs, tuple | list) and not hasattr(inputs, "_fields")
    args = tuple(inputs) if several else (inputs,)
    return _Program(model, model, args)


def _type_name(result: object) -> str:
    if isinstance(result, tuple):
        return f"({', '.join(type(item).__name__ for item in result)})"
    return f"an object of type {type(result).__name__}"


def _run_steps(
    program: _Program, target: Target, settings: Settings, window: Window, marking: Marking
) -> dict[str, int]:
    """Runs the warm-up, opens the window, and runs the steps to record."""
    warmup = WARMUP if settings.warmup is None else settings.warmup
    steps = STEPS if settings.steps is None else settings.steps
    name = type(unwrapped(program.marked)).__name__
    with marking.put_on(program.marked, name), errors_in_one_line(target.spec, target.file):
        before_ns = [_timed(program, settings) for _ in range(warmup)]
        window.open()
        recorded_ns = []
        for _ in range(steps):
            with step(kind="train" if settings.backward else None):
                recorded_ns.append(_timed(program, settings))
    return _step_figures(before_ns, recorded_ns)


def _step_figures(before_ns: list[int], recorded_ns: list[int]) -> dict[str, int]:
    """Median times of a step. The first call is left out, because it also sets things up."""
    times_ns = {"step_before_ns": before_ns[1:], "step_recorded_ns": recorded_ns}
    least = {"step_before_ns": _TIMED, "step_recorded_ns": 1}
    return {name: int(median(times)) for name, times in times_ns.items() if len(times) >= least[name]}


def _run_compiled_steps(
    program: _Program, target: Target, settings: Settings, window: Window, marking: Marking
) -> dict[str, int]:
    """As :func:`_run_steps`, with the model compiled. Graph captures happen inside the window, compiling outside."""
    compiling = settings.compiling
    assert compiling is not None
    before = compile_figures()
    backend = compiling.piecewise()
    program = replace(program, model=compiled(program.model, backend), marked=program.model)
    with errors_in_one_line(target.spec, target.file), without_graph_captures():
        _timed(program, settings)
    if backend.missing_operators:
        raise CaptureError(f"{target.spec}: {backend.missing_operators}")
    if compiling.captures_graphs:
        window.open()
    figures = _run_steps(program, target, settings, window, marking)
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

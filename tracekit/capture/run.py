"""Runs a target: what a user asks to record. A function in a file or a module, a script, or the demo.

``file.py:function`` and ``package.module:function`` return ``(model, inputs)`` or run steps themselves. ``file.py`` is
run as a script. A target is the user's code: whatever it raises becomes one line that names the place.

Here it is decided which part of the run is recorded; how it is recorded is up to the engine. With ``--compile``, the
model runs in compiled pieces. Compiling itself is not recorded.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import runpy
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import thread as pools
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import nn

from tracekit.capture.compile_config import CompileConfig
from tracekit.capture.emit import nothing
from tracekit.capture.frames import replaced
from tracekit.capture.marks import all_tensors, unwrapped
from tracekit.capture.program import Marking, Settings, marked_program
from tracekit.capture.schedule import Schedule, Window
from tracekit.capture.steps import step
from tracekit.capture.writing import INTERRUPTED, say
from tracekit.errors import CaptureError, TracekitError, UsageError, did_you_mean
from tracekit.progress import Progress, no_progress

DEMO = "demo"
EXPECTED = "expected FILE.py:FUNCTION, PACKAGE.MODULE:FUNCTION, FILE.py or demo"
_MOST_CHARACTERS = 300
#: Defaults for a target that returns a model and its inputs.
STEPS, WARMUP = 5, 2
#: The median of fewer steps before the recording is not worth printing; the first does not count.
_TIMED = 3
#: Threads that a program leaves running are named if they take longer to end.
_SOON_S = 2
_EXPECTED = "expected (model, inputs), or None from a function that runs steps itself"
_OTHER_PROCESSES = "processes that it starts are recorded with: tracekit capture -- python {}"


@dataclass(frozen=True, slots=True)
class Job:
    """What to record, and where to write the report. Only ``torch`` has a Chrome trace and reports progress."""

    target: str
    arguments: tuple[str, ...]
    settings: Settings
    report: Path
    chrome_trace: Path | None = None
    progress: Progress = no_progress
    #: Called with the outcome where the target ends this process by ``os._exit``.
    ended: Callable[[Outcome], object] = bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a job. If the target failed, the report holds what was recorded until then."""

    exit_code: int = 0
    #: Why the target failed; None if it did not.
    problem: TracekitError | None = None
    #: What recording cost and how much it recorded and lost, by name. Times are in nanoseconds.
    figures: dict[str, int] = field(default_factory=dict)
    #: What went wrong without harming the run or the report, one line each.
    warnings: tuple[str, ...] = ()


def run(
    target: Target,
    settings: Settings,
    window: Window,
    operators: AbstractContextManager[object],
    figures: dict[str, int],
    stopped: Callable[[], object] = nothing,
) -> None:
    """Runs a target to its end, inside ``operators``; the window is open around the recorded part.

    ``figures`` receives what becomes known, so that it is there even if the target fails or exits: modules marked and
    unmarked, by cause, and, where the target returned a model, the median time of an iteration before and during the
    recording, in nanoseconds. ``stopped`` is called when Ctrl-C ends the target, before the window closes, which may
    take long.

    Raises:
        CaptureError: If the target fails, or nothing in it could be recorded.
    """
    job = _Run(target, settings, window, Marking(settings))
    try:
        with operators, job.marking.models_noted():
            if settings.compiling is not None:
                figures |= _run_compiled_steps(job, settings.compiling)
            elif (result := _called_with_root_markers(job)) is not None:
                figures |= _run_steps(job, _program(target.spec, result))
    except KeyboardInterrupt:
        stopped()
        raise
    finally:
        window.close()
        figures |= job.marking.figures()


class _Run(NamedTuple):
    target: Target
    settings: Settings
    window: Window
    marking: Marking


def ended(runs: Callable[[], object]) -> tuple[int, TracekitError | None]:
    """Runs something to its end. Returns the exit code that Python would use, and why it failed.

    Prints a text given to ``sys.exit``, as Python does.
    """
    try:
        runs()
    except TracekitError as error:
        return error.exit_code, error
    except KeyboardInterrupt:
        return INTERRUPTED, None
    except SystemExit as leaving:
        if leaving.code is None or isinstance(leaving.code, int):
            return leaving.code or 0, None
        print(leaving.code, file=sys.stderr)  # noqa: T201 - the target's own message
        return 1, None
    return 0, None


def _called_with_root_markers(job: _Run) -> object:
    target, settings = job.target, job.settings
    warmup = target.warmup if settings.warmup is None else settings.warmup
    schedule = Schedule(job.window, warmup, settings.steps)
    with marked_program(schedule, job.marking.put_on), errors_in_one_line(target.spec, target.file):
        result = None
        with threads_ended(lambda: result is None):
            result = target.call()
    if result is None and not schedule.opened:
        why = f"ended after {schedule.begun} of {warmup} warm-up steps", "set a smaller --warmup"
        if not schedule.begun:
            script = target.spec == target.file
            why = "called no module", _OTHER_PROCESSES.format(target.spec) if script else _EXPECTED
        raise CaptureError(f"{target.spec}: {why[0]}, so nothing was recorded; {why[1]}")
    return result


#: A model, with its positional and its keyword arguments.
_Program = tuple[nn.Module, Sequence[Any], Mapping[str, Any]]


def _program(spec: str, result: object) -> _Program:
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[0], nn.Module):  # noqa: PLR2004
        if isinstance(result, Coroutine):
            result.close()  # else Python warns that it was never awaited
        kinds = ", ".join(type(item).__name__ for item in result) if isinstance(result, tuple) else ""
        returned = f"({kinds})" if kinds else f"an object of type {type(result).__name__}"
        raise CaptureError(f"{spec}: returned {returned}; {_EXPECTED}")
    model, inputs = result
    if isinstance(inputs, Mapping):
        return model, (), {str(name): value for name, value in inputs.items()}
    # A namedtuple is one argument: a batch with names.
    several = isinstance(inputs, tuple | list) and not hasattr(inputs, "_fields")
    return model, tuple(inputs) if several else (inputs,), {}


def _run_steps(job: _Run, program: _Program) -> dict[str, int]:
    target, settings, window, marking = job
    warmup = WARMUP if settings.warmup is None else settings.warmup
    steps = STEPS if settings.steps is None else settings.steps
    model = program[0]
    marks = marking.put_on(model, type(unwrapped(model)).__name__, may_train=False)
    with marks, errors_in_one_line(target.spec, target.file):
        before_ns = [_timed(program, settings) for _ in range(warmup)]
        window.open()
        recorded_ns = []
        for _ in range(steps):
            with step(kind="train" if settings.backward else None):
                recorded_ns.append(_timed(program, settings))
    figures = {"step_recorded_ns": int(median(recorded_ns))} if recorded_ns else {}
    if len(before_ns) > _TIMED:  # the first call also sets things up
        figures["step_before_ns"] = int(median(before_ns[1:]))
    return figures


def _timed(program: _Program, settings: Settings) -> int:
    model, args, kwargs = program
    before = time.perf_counter_ns()
    with torch.set_grad_enabled(bool(settings.backward)):
        output = model(*args, **kwargs)
    if settings.backward:
        differentiable = [tensor for tensor in all_tensors(output) or () if tensor.requires_grad]
        if not differentiable:
            raise CaptureError("no output of the model requires a gradient; remove --backward")
        sum(tensor.float().sum() for tensor in differentiable).backward()  # type: ignore[union-attr]
        model.zero_grad(set_to_none=True)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter_ns() - before


def _run_compiled_steps(job: _Run, config: CompileConfig) -> dict[str, int]:
    """As :func:`_run_steps`, with the model compiled. Graph captures happen inside the window, compiling outside."""
    # Dynamo and Inductor are slow to import.
    from tracekit.capture.compile import PiecewiseBackend, compile_model, counters  # noqa: PLC0415
    from tracekit.capture.compile.cudagraph import graph_captures_on_hold  # noqa: PLC0415

    target, settings, window, _ = job
    with errors_in_one_line(target.spec, target.file):
        result = (target.model or target.call)()
    if result is None:
        raise CaptureError(f"{target.spec}: returned no model to compile; expected (model, inputs)")
    model, args, kwargs = _program(target.spec, result)
    before = counters.snapshot()
    backend = PiecewiseBackend(config)
    backend.warns = False  # the error below has the same line
    program = compile_model(model, config, backend=backend), args, kwargs
    with errors_in_one_line(target.spec, target.file), graph_captures_on_hold():
        _timed(program, settings)
    if backend.missing_operators:
        raise CaptureError(f"{target.spec}: {backend.missing_operators}")
    if backend.graphs is not None:
        window.open()
    figures = _run_steps(job, program)
    after = counters.snapshot()
    no_gpu = bool(config.cudagraph_sizes) and backend.graphs is None
    return figures | {name: after[name] - before[name] for name in after} | {"no_gpu": int(no_gpu)}


class Target(NamedTuple):
    """Something to run: ``call`` may return ``(model, inputs)``; if not, ``model`` does, if it exists."""

    spec: str
    file: str
    call: Callable[[], Any]
    warmup: int = 0
    model: Callable[[], Any] | None = None


def load(spec: str, arguments: tuple[str, ...] = ()) -> Target:
    """Finds and imports a target; ``arguments`` is what a script finds in ``sys.argv``."""
    place, colon, name = spec.rpartition(":")
    if spec == DEMO:
        from tracekit.capture import demo  # noqa: PLC0415 - used only in this case

        return Target(spec, str(demo.__file__), demo.small_llama, demo.WARMUP, demo.model_and_prompt)
    if not colon and spec.endswith(".py"):
        return Target(spec, _file(spec), lambda: _script(spec, arguments))
    if not place or not name:
        raise UsageError(f"{spec!r} is not something to record; {EXPECTED}")
    if arguments:
        raise UsageError(f"{spec}: a function takes no arguments after --; wrap it in a function without parameters")
    with errors_in_one_line(spec, place):
        module = _from_file(place) if place.endswith(".py") else _from_package(place)
    return Target(spec, str(module.__file__), _function(module, place, name))


@contextmanager
def errors_in_one_line(spec: str, file: str) -> Iterator[None]:
    """Turns an exception of the user's code into one line. Exits and interrupts pass through."""
    try:
        yield
    except CaptureError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it raises
        raised = f"{spec}: raised {error_line(error, file)}"
        raise CaptureError(f"{raised}; run it without tracekit for the full traceback") from None


def error_line(error: BaseException, file: str) -> str:
    """``ValueError: too long (model.py, line 12, in forward)``, with the innermost frame, if possible in the file."""
    frames = traceback.extract_tb(error.__traceback__)
    candidates = [frame for frame in frames if Path(frame.filename).name == Path(file).name] or frames
    message = " ".join(str(error).split())
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    text = text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…"
    if not candidates:
        return text
    frame = candidates[-1]
    return f"{text} ({Path(frame.filename).name}, line {frame.lineno}, in {frame.name})"


@contextmanager
def threads_ended(wanted: Callable[[], bool]) -> Iterator[None]:
    """When a program ends, waits for the threads that it began as Python does before it exits, but not after Ctrl-C."""
    before, hooks = set(threading.enumerate()), threading._threading_atexits  # type: ignore[attr-defined]
    known = list(hooks)

    def running() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread not in before and not thread.daemon]

    try:
        yield
    finally:
        if running() and wanted() and not isinstance(sys.exception(), KeyboardInterrupt):
            try:
                _end(running, hooks)
            finally:
                hooks[:] = known
                pools._shutdown = False  # we use some, too


def _end(running: Callable[[], list[threading.Thread]], hooks: list[Callable[[], object]]) -> None:
    """Pools of threads and processes end theirs in exit hooks of ``threading``, which come before the waiting."""
    timer = threading.Timer(_SOON_S, lambda: say(f"waiting for {', '.join(thread.name for thread in running())}"))
    timer.daemon = True
    timer.start()
    try:
        while hooks:
            hooks.pop()()
        while left := running():
            left[0].join()
    finally:
        timer.cancel()


def _file(place: str) -> str:
    if not Path(place).is_file():
        raise CaptureError(f"{place}: file not found; {EXPECTED}")
    return place


def _from_file(place: str) -> ModuleType:
    path = Path(_file(place)).resolve()
    sys.path.insert(0, str(path.parent))
    # The file may have the name of a module that is already imported.
    name = f"target_{path.stem}" if path.stem in sys.modules else path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise CaptureError(f"{place}: not a Python file; {EXPECTED}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # so that its classes can be pickled, for workers
    spec.loader.exec_module(module)
    return module


def _from_package(place: str) -> ModuleType:
    sys.path.insert(0, "")
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{place}.".startswith(f"{error.name}."):
            raise CaptureError(f"{place}: module not found; {EXPECTED}") from None
        raise


def _function(module: ModuleType, place: str, name: str) -> Callable[[], Any]:
    function: Any = module
    for part in name.split("."):
        owner, function = function, getattr(function, part, None)
        if function is None:
            functions = [key for key, item in getattr(owner, "__dict__", {}).items() if inspect.isfunction(item)]
            hint = did_you_mean(part, functions) if functions else EXPECTED
            raise CaptureError(f"{place}: has no function {name}; {hint}")
    if not callable(function):
        raise CaptureError(f"{place}: {name} is not a function; {EXPECTED}")
    try:
        inspect.signature(function).bind()
    except TypeError:
        message = f"{place}: {name}{inspect.signature(function)} needs arguments; expected a function without any"
        raise CaptureError(message) from None
    except ValueError:
        pass  # it is written in C and has no signature
    return function  # type: ignore[no-any-return]


def _script(place: str, arguments: tuple[str, ...]) -> None:
    sys.path.insert(0, str(Path(place).resolve().parent))
    with replaced(sys, "argv", [place, *arguments]):
        runpy.run_path(place, run_name="__main__")

"""Targets: what a user asks to record. A function in a file or a module, a script, or the demo.

``file.py:function`` and ``package.module:function`` return ``(model, inputs)`` or run steps themselves. ``file.py`` is
run as a script. A target is the user's code: whatever it raises becomes one line that says where.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import runpy
import sys
import threading
import traceback
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracekit.capture.attach import marks_on
from tracekit.capture.frames import failed_call
from tracekit.capture.marks import unwrapped
from tracekit.capture.tensors import call_key, marker_tensors
from tracekit.errors import CaptureError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from tracekit.capture.tensors import Tensors

DEMO = "demo"
EXPECTED = "expected FILE.py:FUNCTION, PACKAGE.MODULE:FUNCTION, FILE.py or demo"
_MOST_CHARACTERS = 300
#: Above this many functions, a message does not list them.
_MOST_NAMES = 8


@dataclass(frozen=True, slots=True)
class Target:
    """Something to run.

    Attributes:
        spec: As the user named it.
        file: The file that contains it; errors name the line in this file.
        call: Runs it. The result may be ``(model, inputs)``.
        warmup: How many of the steps that it runs itself are warm-up.
        model: Returns ``(model, inputs)``, for a target whose ``call`` does not; None if there is no such function.
    """

    spec: str
    file: str
    call: Callable[[], Any]
    warmup: int = 0
    model: Callable[[], Any] | None = None


def load(spec: str, arguments: tuple[str, ...] = ()) -> Target:
    """Finds and imports a target.

    Args:
        spec: As the user named it.
        arguments: What a script finds in ``sys.argv``.

    Raises:
        UsageError: If the spec has none of the supported forms.
        CaptureError: If the target does not exist, or importing it fails.
    """
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
    """Turns an exception of the user's code into one line. Exits and interrupts pass through.

    Raises:
        CaptureError: In place of the exception.
    """
    try:
        yield
    except CaptureError:
        raise
    except Exception as error:  # noqa: BLE001 - the user's code may raise anything
        place = "".join(f" in {call}" for call in [_failed_call(error)] if call)
        message = f"{spec}: raised {error_line(error, file)}{place}; run it without tracekit for the full traceback"
        raise CaptureError(message) from None


def error_line(error: BaseException, file: str) -> str:
    """``ValueError: too long (model.py, line 12, in forward)``, with the innermost frame, if possible in the file."""
    frames = traceback.extract_tb(error.__traceback__)
    candidates = [frame for frame in frames if Path(frame.filename).name == Path(file).name] or frames
    message = " ".join(str(error).split())
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    text = _cut(text)
    if not candidates:
        return text
    frame = candidates[-1]
    return f"{text} ({Path(frame.filename).name}, line {frame.lineno}, in {frame.name})"


@contextmanager
def _threads_joined() -> Iterator[None]:
    """At the end of the block, waits for the threads that it started, as Python does before it exits.

    Not for daemon threads, and not after Ctrl-C.
    """
    before = set(threading.enumerate())
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException:
        join_threads(before)
        raise
    join_threads(before)


def join_threads(before: set[threading.Thread]) -> None:
    """Waits for all threads but these and daemons, also for those that begin meanwhile."""
    while running := [thread for thread in threading.enumerate() if thread not in before and not thread.daemon]:
        for thread in running:
            thread.join()


def _failed_call(error: BaseException) -> str:
    """``Net.layers.3 (Linear) with inputs [2, 4] float32``: the innermost module call that raised, if one did."""
    if (call := failed_call(error)) is None:
        return ""
    name = type(unwrapped(call.module)).__name__
    paths = [marks.path for marks in marks_on(call.module) if marks.path]
    positional, by_name = call_key(call.args, call.kwargs)
    texts = [_shapes(positional), *(f"{name}={_shapes(tensors)}" for name, tensors in by_name)]
    given = ", ".join(text for text in texts if text)
    place = f"{paths[0]} ({name})" if paths else name
    return place + (f" with inputs {_cut(given)}" if given else "")


def _shapes(tensors: Tensors) -> str:
    described = marker_tensors(tensors) or ()
    return ", ".join(f"{shape} {kind.rpartition(' ')[0]}" for shape, kind in described)


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…"


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
            message = f"{place}: module not found; {EXPECTED}"
            raise CaptureError(message) from None
        raise


def _function(module: ModuleType, place: str, name: str) -> Callable[[], Any]:
    function: Any = module
    for part in name.split("."):
        around, function = function, getattr(function, part, None)
        if function is None:
            raise CaptureError(f"{place}: has no function {name}; {_functions_like(part, around)}")
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


def _functions_like(name: str, around: object) -> str:
    """What to do about a name that does not exist: the names that are close to it, or the functions that do exist."""
    own = getattr(around, "__name__", None)
    functions = [
        key
        for key, item in getattr(around, "__dict__", {}).items()
        if inspect.isfunction(item) and not key.startswith("_") and item.__module__ == own
    ]
    if close := get_close_matches(name, functions, n=3):
        return f"did you mean {' or '.join(close)}?"
    if functions and len(functions) <= _MOST_NAMES:
        return f"it has {', '.join(functions)}"
    return EXPECTED


def _script(place: str, arguments: tuple[str, ...]) -> None:
    before = sys.argv
    sys.argv = [place, *arguments]
    sys.path.insert(0, str(Path(place).resolve().parent))
    try:
        with _threads_joined():
            runpy.run_path(place, run_name="__main__")
    finally:
        sys.argv = before

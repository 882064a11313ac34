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
import traceback
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracekit.errors import CaptureError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

DEMO = "demo"
EXPECTED = "expected FILE.py:FUNCTION, PACKAGE.MODULE:FUNCTION, FILE.py or demo"
_MOST_CHARACTERS = 300


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
        message = f"{spec}: raised {error_line(error, file)}; run it without tracekit for the full traceback"
        raise CaptureError(message) from None


def error_line(error: BaseException, file: str) -> str:
    """``ValueError: too long (model.py, line 12, in forward)``, with the innermost frame, if possible in the file."""
    frames = traceback.extract_tb(error.__traceback__)
    candidates = [frame for frame in frames if Path(frame.filename).name == Path(file).name] or frames
    message = " ".join(str(error).split())
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    if len(text) > _MOST_CHARACTERS:
        text = f"{text[:_MOST_CHARACTERS]}…"
    if not candidates:
        return text
    frame = candidates[-1]
    return f"{text} ({Path(frame.filename).name}, line {frame.lineno}, in {frame.name})"


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
        function = getattr(function, part, None)
    if function is None:
        raise CaptureError(f"{place}: has no function {name}; {EXPECTED}")
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
    before = sys.argv
    sys.argv = [place, *arguments]
    sys.path.insert(0, str(Path(place).resolve().parent))
    try:
        runpy.run_path(place, run_name="__main__")
    finally:
        sys.argv = before

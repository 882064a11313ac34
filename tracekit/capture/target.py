"""What a user names to be recorded: a function of a file or a module, a script, or the demo.

``file.py:function`` and ``package.module:function`` return ``(model, inputs)`` or run steps themselves; ``file.py`` is
run as a script. A target is a stranger's code: whatever it does ends as one line that says where.
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
        file: The file it is in; its frames are named when it fails.
        call: Runs it; what it returns may be ``(model, inputs)``.
        warmup: How many of the steps that it runs itself are not worth recording.
        model: Gives ``(model, inputs)`` where ``call`` does not; None if there is no such.
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
        UsageError: If it is not of a form that is known.
        CaptureError: If there is no such thing, or importing it fails.
    """
    place, colon, name = spec.rpartition(":")
    if spec == DEMO:
        from tracekit.capture import demo  # noqa: PLC0415 - made for this case alone

        return Target(spec, str(demo.__file__), demo.small_llama, demo.WARMUP, demo.model_and_prompt)
    if not colon and spec.endswith(".py"):
        return Target(spec, _file(spec), lambda: _script(spec, arguments))
    if not place or not name:
        raise UsageError(f"{spec!r} names nothing to record; {EXPECTED}")
    if arguments:
        raise UsageError(f"{spec}: a function takes no arguments; wrap it in a function of its own")
    with explained(spec, place):
        module = _from_file(place) if place.endswith(".py") else _from_package(place)
    return Target(spec, str(module.__file__), _function(module, place, name))


@contextmanager
def explained(spec: str, file: str) -> Iterator[None]:
    """Turns whatever a stranger's code raises into one line; exits and interrupts pass.

    Raises:
        CaptureError: In place of the exception.
    """
    try:
        yield
    except CaptureError:
        raise
    except Exception as error:  # noqa: BLE001 - a stranger's code may raise anything
        message = f"{spec}: raised {in_words(error, file)}; correct it, or run it without tracekit"
        raise CaptureError(message) from None


def in_words(error: BaseException, file: str) -> str:
    """``ValueError: too long (model.py, line 12, in forward)``: the innermost place in the file, else the innermost."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).name == Path(file).name] or frames
    said = " ".join(str(error).split())
    where = f" ({Path(own[-1].filename).name}, line {own[-1].lineno}, in {own[-1].name})" if own else ""
    text = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return (text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…") + where


def _file(place: str) -> str:
    if not Path(place).is_file():
        raise CaptureError(f"{place}: there is no such file; {EXPECTED}")
    return place


def _from_file(place: str) -> ModuleType:
    path = Path(_file(place)).resolve()
    sys.path.insert(0, str(path.parent))
    # A file may have the name of a module that others need.
    name = f"target_{path.stem}" if path.stem in sys.modules else path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise CaptureError(f"{place}: is no Python file; {EXPECTED}")
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
            message = f"{place}: there is no such module; {EXPECTED}"
            raise CaptureError(message) from None
        raise


def _function(module: ModuleType, place: str, name: str) -> Callable[[], Any]:
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        what = "has no function" if found is None else "has no function but a value"
        raise CaptureError(f"{place}: {what} {name}; {EXPECTED}")
    try:
        inspect.signature(found).bind()
    except TypeError:
        message = f"{place}: {name}{inspect.signature(found)} needs arguments; expected a function without any"
        raise CaptureError(message) from None
    except ValueError:
        pass  # written in C: calling it will tell
    return found  # type: ignore[no-any-return]


def _script(place: str, arguments: tuple[str, ...]) -> None:
    before = sys.argv
    sys.argv = [place, *arguments]
    sys.path.insert(0, str(Path(place).resolve().parent))
    try:
        runpy.run_path(place, run_name="__main__")
    finally:
        sys.argv = before

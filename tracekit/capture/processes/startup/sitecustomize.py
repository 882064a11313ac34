"""Python runs this file at its start, because ``tracekit capture -- COMMAND`` put its folder on ``PYTHONPATH``.

It runs the ``sitecustomize`` that the folder hides, if there is one. If the process imports torch, recording starts
after that; otherwise nothing happens. Every Python that the command starts runs this file, so it loads next to nothing
and has no syntax that Python 3.7 does not know.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))
_OLDEST = (3, 11)


class _TorchWatch:
    """Finds no module itself, but notices that torch is imported."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """The specification of torch, whose loader then starts the recording; None for all other modules."""
        if name != "torch":
            return None
        others = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        specs = (finder.find_spec(name, path, target) for finder in others)  # type: ignore[arg-type]
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            self._start_after(spec.loader)
        return spec

    def _start_after(self, loader: Loader) -> None:
        exec_module = loader.exec_module

        def exec_module_and_start(module: ModuleType) -> None:
            exec_module(module)
            loader.exec_module = exec_module  # type: ignore[method-assign]
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                _start()

        loader.exec_module = exec_module_and_start  # type: ignore[method-assign]


def _start() -> None:
    """Starts the recording with the tracekit that runs the command, whichever the program has installed."""
    try:
        if "tracekit" not in sys.modules:
            from importlib.util import spec_from_file_location

            _load(spec_from_file_location("tracekit", os.path.join(_PACKAGE, "__init__.py")))
        from tracekit.capture.processes import start_if_asked

        start_if_asked()
    except Exception as error:  # noqa: BLE001 - whatever it raises
        _write_problem(f"{type(error).__name__}: {error}")


def _load(spec: ModuleSpec | None) -> None:
    from importlib.util import module_from_spec

    if spec is None or spec.loader is None:
        return
    module = sys.modules[spec.name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise


def _write_problem(text: str) -> None:
    import json

    try:
        folder = json.loads(os.environ["TRACEKIT_RECORDING"])["folder"]
        path = os.path.join(folder, f"{os.getpid()}-{os.urandom(4).hex()}.problem")
        with open(path, "w", encoding="utf-8") as file:
            file.write(" ".join(text.split()))
    except (OSError, ValueError, KeyError):
        return


def _run_hidden() -> None:
    """Runs the ``sitecustomize`` that Python would have run without this one. Its errors are the program's."""
    from importlib.machinery import PathFinder

    _load(PathFinder.find_spec("sitecustomize", [path for path in sys.path if os.path.abspath(path) != _HERE]))


if os.environ.get("TRACEKIT_RECORDING"):
    if sys.version_info >= _OLDEST:
        sys.meta_path.insert(0, _TorchWatch())
    elif any(os.path.isdir(os.path.join(path, "torch")) for path in sys.path):
        _write_problem("its Python is older than 3.11, which tracekit needs")
_run_hidden()

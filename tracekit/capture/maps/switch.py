"""Switches kernel maps on and off."""

from __future__ import annotations

import importlib.util
import logging
import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from tracekit.capture.maps import inductor
from tracekit.capture.maps.runs import switch
from tracekit.errors import CaptureError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_LOG = logging.getLogger("tracekit.capture")

unsupported = inductor.unsupported
_users = 0


@contextmanager
def compiled_maps(*, cpu_kernels: bool = False) -> Iterator[None]:
    """While the block runs, compiled graphs of Inductor get kernel maps, and their runs are ranges that name them.

    Graphs that were compiled before have none: enter the block before the first call of a compiled model. Code that
    Inductor cached without maps is compiled once more.

    Args:
        cpu_kernels: Whether torch.profiler shall see Inductor's kernels on the CPU, which costs a fraction of a
            microsecond for each (``torch._inductor.config.cpp.enable_kernel_profile``).

    Raises:
        CaptureError: If this release of PyTorch is not known.
    """
    with _switched(cpu_kernels=cpu_kernels):
        if (reason := inductor.watch()) is not None:
            raise CaptureError(reason)
        yield


@contextmanager
def maps_of_recording(*, cpu_kernels: bool = False) -> Iterator[None]:
    """As :func:`compiled_maps`, for programs that may compile nothing: waits until they import Inductor.

    If the release is not known, a warning says so and the program runs as it is.
    """
    with _switched(cpu_kernels=cpu_kernels), _when_imported(inductor.COMPILER, _watch_or_warn):
        yield


def cache_tag() -> str:
    """What a cache of compiled code must have in its key while maps are on; empty while they are off."""
    if not inductor.is_on():
        return ""
    cpp: Any = sys.modules["torch._inductor.config"].cpp
    return f"{inductor.CACHE_TAG}, cpu_kernels={cpp.enable_kernel_profile}"


@contextmanager
def _switched(*, cpu_kernels: bool) -> Iterator[None]:
    global _users  # noqa: PLW0603 - the process has one compiler
    with ExitStack() as settings:
        settings.enter_context(_cache_key())
        if cpu_kernels:
            settings.enter_context(
                _when_imported("torch._inductor.config", lambda: settings.enter_context(_profiled()))
            )
        _users += 1
        switch.on = True
        try:
            yield
        finally:
            _users -= 1
            if not _users:
                switch.on = False
                inductor.unwatch()


@contextmanager
def _cache_key() -> Iterator[None]:
    """Gives PyTorch's compile caches a key of their own."""
    from torch.compiler import config  # noqa: PLC0415 - only needed here

    before = config.cache_key_tag
    config.cache_key_tag = before if inductor.CACHE_TAG in before else f"{before}{inductor.CACHE_TAG}"
    try:
        yield
    finally:
        config.cache_key_tag = before


@contextmanager
def _profiled() -> Iterator[None]:
    """Has Inductor's C++ kernels tell torch.profiler their names, where they can."""
    cpp: Any = sys.modules["torch._inductor.config"].cpp
    before = cpp.enable_kernel_profile
    cpp.enable_kernel_profile = before or sys.platform in ("linux", "win32")
    try:
        yield
    finally:
        cpp.enable_kernel_profile = before


def _watch_or_warn() -> None:
    if (reason := inductor.watch()) is not None:
        _LOG.warning(reason)


@contextmanager
def _when_imported(name: str, action: Callable[[], object]) -> Iterator[None]:
    """Takes an action now, if a module is imported, or as soon as it is while the block runs."""
    if name in sys.modules:
        action()
        yield
        return
    finder = _Finder(name, action)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        finder.name = ""
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)


class _Finder:
    """Finds one module as all other finders do, and takes an action when it has been imported."""

    def __init__(self, name: str, action: Callable[[], object]) -> None:
        self.name = name
        self.action = action

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's own spec, with a loader that takes the action afterwards."""
        if name != self.name:
            return None
        self.name = ""  # also so that this finder does not find itself
        spec = importlib.util.find_spec(name)
        loader: Any = None if spec is None else spec.loader
        if loader is None:
            return spec
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            loader.exec_module = execute
            execute(module)
            self.action()

        loader.exec_module = exec_module
        return spec

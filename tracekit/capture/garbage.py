"""Marks of Python's garbage collections, in which all threads of a process that run Python stand still.

Those of the youngest objects are many and short, and get none; nor do those before there is a model.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tracekit.capture.emit import quiet_emitter
from tracekit.markers import formatting

_MARKED_GENERATIONS = (1, 2)


class _Marks:
    """Called by Python as a collection begins and ends, one at a time."""

    def __init__(self, wanted: Callable[[], bool]) -> None:
        self._wanted = wanted
        # Collections begin anywhere, also while the emitter is changed; so all that changes it is done before.
        emitter = quiet_emitter()
        self._open = {number: emitter.opener(formatting.garbage_collection(number)) for number in _MARKED_GENERATIONS}
        self._close = emitter.close
        self._opened = False

    def __call__(self, phase: str, about: dict[str, Any]) -> None:
        if phase == "start":
            opener = self._open.get(about["generation"]) if self._wanted() else None
            self._opened = opener is not None
            if opener is not None:
                opener()
        elif self._opened:
            self._opened = False
            self._close()


@contextmanager
def collection_markers(wanted: Callable[[], bool]) -> Iterator[None]:
    """Marks garbage collections of older generations while the block runs, each if it is ``wanted``."""
    marks = _Marks(wanted)
    gc.callbacks.append(marks)
    try:
        yield
    finally:
        gc.callbacks.remove(marks)

"""How much work something is, counted: the same on every machine, however busy."""

import sys
import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import tracekit

PACKAGE = str(Path(tracekit.__file__).parent)


class Counted(np.ndarray):
    """An array that counts the elements which it and all that comes of it are asked to look at."""

    elements = 0

    @classmethod
    def of(cls, array: np.ndarray) -> "Counted":
        return array.view(cls)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **more: Any) -> Any:
        Counted.elements += _elements(inputs)
        plain = {name: tuple(map(_plain, value)) if name == "out" else _plain(value) for name, value in more.items()}
        found = getattr(ufunc, method)(*map(_plain, inputs), **plain)
        return found.view(Counted) if isinstance(found, np.ndarray) else found

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        Counted.elements += _elements(args)
        return super().__array_function__(function, types, args, kwargs)

    def __getitem__(self, chosen: Any) -> Any:
        found = super().__getitem__(chosen)
        Counted.elements += _elements([found])
        return found


def _elements(values: Iterable[Any]) -> int:
    return sum(one.size for one in values if isinstance(one, np.ndarray))


def _plain(value: Any) -> Any:
    return value.view(np.ndarray) if isinstance(value, Counted) else value


def elements_of(function: Callable[[], object]) -> int:
    before = Counted.elements
    function()
    return Counted.elements - before


def lines_of(function: Callable[[], object]) -> int:
    """How many lines of the package run, on all threads that it starts."""
    counts: Counter[int] = Counter()

    def called(frame: FrameType, _event: str, _arg: object) -> Callable[..., object] | None:
        return ran if frame.f_code.co_filename.startswith(PACKAGE) else None

    def ran(_frame: FrameType, event: str, _arg: object) -> Callable[..., object]:
        counts[threading.get_ident()] += event == "line"
        return ran

    before = sys.gettrace(), threading.gettrace()
    sys.settrace(called)
    threading.settrace(called)
    try:
        function()
    finally:
        sys.settrace(before[0])
        threading.settrace(before[1])
    return counts.total()


def peak_bytes_of(function: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

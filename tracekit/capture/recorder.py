"""The embedded recorder: records torch.profiler's events and our markers as a report like those that nsys exports.

Markers are ranges of torch.profiler itself, so markers, operators and (through CUPTI) CUDA calls and kernels share one
clock. In the profiler, a range's name is a number; its text is kept here, complete and unescaped.
"""

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path

import torch
from torch._C._profiler import _ExperimentalConfig, _RecordFunctionFast
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity, profile

from tracekit.capture.emit import Lane, epoch
from tracekit.capture.kineto import NUMBERED, ProcessTrace
from tracekit.capture.schedule import wait_for_gpu
from tracekit.errors import CaptureError

_PROFILER_IN_USE = (
    "nothing was recorded, because the program uses torch.profiler itself and only one profiler can run at a time; "
    "remove it from the program, or record with --engine nsys"
)


class _Guards(threading.local):
    def __init__(self) -> None:
        self.open: list[_RecordFunctionFast] = []


class ProfilerEmitter:
    """Emits markers to torch.profiler, as the index of their text among the distinct texts."""

    def __init__(self) -> None:
        self.lane = Lane()
        self.texts: list[str] = []
        self.opened = count()
        self._numbers: dict[str, int] = {}
        self._guards = _Guards()
        self._lock = threading.Lock()
        self.close: Callable[[], object] = self._close

    def opener(self, text: str, /) -> Callable[[], object]:
        """Returns a function that opens a range of this text."""
        return partial(self._open, self._name(text))

    def native_range(self, text: str) -> tuple[Callable[[], object], Callable[[], object]]:
        """Functions written in C that open and close a range of this text, of which one is open at a time."""
        guard = _RecordFunctionFast(self._name(text))
        return guard.__enter__, partial(guard.__exit__, None, None, None)

    def _name(self, text: str) -> str:
        with self._lock:
            number = self._numbers.setdefault(text, len(self.texts))
            if number == len(self.texts):
                self.texts.append(text)
        return f"{NUMBERED}{number}"

    def end_ranges(self) -> None:
        """Ends the open ranges of all threads, as :func:`_end_ranges` those of the program."""
        self._guards = _Guards()

    def forked(self) -> None:
        """In a forked process: a thread that is not here any more may have held the lock."""
        self._lock = threading.Lock()

    def _open(self, name: str) -> None:
        next(self.opened)
        guard = _RecordFunctionFast(name)
        guard.__enter__()
        self._guards.open.append(guard)

    def _close(self) -> None:
        if not (guards := self._guards.open):
            return  # the range was opened before the window
        try:
            guards.pop().__exit__(None, None, None)
        except RuntimeError:
            # As above, but just before: torch does not know the range and asks to report a bug.
            return


class Recorder:
    """Records a window of this process; of several, only the last one is kept."""

    def __init__(self, *, ops: bool = False, gpu: Callable[[], bool] | None = None) -> None:
        self.emitter = ProfilerEmitter()
        #: Whether to record the GPU, asked when a window opens. By default, if there is one; but only asking
        #: keeps processes that are forked later from using it.
        self._gpu = gpu
        self._with_gpu = self._inherited = False
        #: Whether to record the shapes of operators, so that they can be ranges, too.
        self.ops = ops
        #: Whether there was a window before, here or in the process that this one was forked from.
        self._earlier = False
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.figures: dict[str, int] = {}
        self.warnings: list[str] = []
        self._profile: profile | None = None
        self._open = False
        #: How many windows were opened, and how many markers in the last one.
        self.windows, self.opened = 0, 0
        #: A program's threads may open and close the window at the same time.
        self._changing = threading.RLock()

    @property
    def recorded(self) -> bool:
        """Whether a window was opened."""
        return self._profile is not None

    @property
    def window(self) -> int:
        """The number of the open window, from 1; 0 if none is open."""
        return self.windows if self._open else 0

    def open(self) -> None:
        """Begins to record. Drops what an earlier window recorded."""
        with self._changing:
            self.close()
            if self._inherited:
                self._end_inherited()
            if self._earlier:
                _end_ranges()
            self._earlier = True
            self._with_gpu = torch.cuda.is_available() if self._gpu is None else self._gpu()
            self._profile, starting = None, _new_profile(record_shapes=self.ops, gpu=self._with_gpu)
            self.emitter.end_ranges()
            # Kineto logs every start and stop to stderr, which belongs to the program.
            os.environ.setdefault("KINETO_LOG_LEVEL", "99")
            with self._timed("start_ns"):
                _start(starting)
            # What other threads opened meanwhile was before the window, not lost.
            self.emitter.opened = count()
            self._profile, self._open = starting, True
            if (inner := starting.profiler) is not None:
                inner.acc_events = False  # else it makes a Python object of every event as soon as it stops
            self.windows += 1
            epoch.begin()

    def close(self) -> None:
        """Waits for the GPU and closes the window, if it is open; an error if the program's own profiler ended ours."""
        with self._changing:
            if not self._open:
                return
            # Until it has ended: what a signal's handler raises meanwhile leaves no recording.
            self._open, profiler, self._profile = False, self._profile, None
            if profiler is None or not torch.autograd.profiler._is_profiler_enabled:
                # The program's own profile ended ours too; what is left of ours must not be touched.
                raise CaptureError(_PROFILER_IN_USE)
            with self._timed("stop_ns"):
                if self._gpu is None or self._with_gpu:
                    wait_for_gpu(self.warnings)
                profiler.stop()
            self.emitter.end_ranges()
            # Markers from here on are outside the window, not lost.
            self.opened = next(self.emitter.opened)
            self._profile = profiler

    #: The next window drops what this one recorded.
    drop = close

    def forget(self) -> None:
        """In a forked process: drops what its parent recorded, so that a window of its own can be opened."""
        if self._open and self._profile is not None:
            # Else the inherited profiler would fill the memory of a process that runs no model.
            torch._C._autograd._enable_record_function(False)  # noqa: FBT003
            self._inherited = True
        self._begin_anew()
        self.emitter.forked()

    def _end_inherited(self) -> None:
        """Ends the profiler of the parent, which takes as long as the parent's recording is large."""
        self._inherited = False
        torch._C._autograd._enable_record_function(True)  # noqa: FBT003
        torch._C._autograd._disable_profiler()
        torch.autograd.profiler._set_is_profiler_enabled(False)  # noqa: FBT003

    def write_trace(self, path: Path) -> None:
        """Closes the window and writes torch.profiler's own trace of it."""
        self.close()
        if self._profile is not None:
            self._profile.export_chrome_trace(str(path))
            if not path.exists():  # torch raises nothing
                message = f"{path.parent}: torch.profiler could not write its trace here; free some space, or choose"
                raise CaptureError(f"{message} another folder with -o and the variable TMPDIR")

    def process_trace(self, path: Path) -> ProcessTrace:
        """Closes the window and writes torch.profiler's own trace of it; returns it with what it lacks."""
        self.write_trace(path)
        return ProcessTrace(path, self.emitter.texts, os.getpid())

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        before = time.perf_counter_ns()
        yield
        self.figures[name] = time.perf_counter_ns() - before


def _start(profiler: profile) -> None:
    try:
        profiler.start()
    except BaseException:  # Ctrl-C, as starting may take seconds
        with suppress(Exception):
            profiler.stop()
        raise


def _end_ranges() -> None:
    """Ends the open ranges of the program to torch, while no profiler runs. Others, of no window, take their places.

    If a range that begins in one window ended in a later one, torch would write to memory that it has freed.
    """
    for each in gc.get_objects():
        if type(each) is record_function and getattr(each, "record", None) is not None:
            each.record = torch.ops.profiler._record_function_enter_new(each.name, each.args)


def _new_profile(*, record_shapes: bool, gpu: bool) -> profile:
    return profile(
        activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if gpu else [])],
        record_shapes=record_shapes,
        acc_events=True,
        # These ids of operators cost a tenth of each event, and only work on a GPU has a use for them.
        experimental_config=_ExperimentalConfig(profile_all_threads=True, disable_external_correlation=not gpu),
    )

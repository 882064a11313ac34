"""The embedded recorder: torch.profiler and our markers, on one clock, become a report such as nsys exports.

Markers are ranges of torch's profiler itself, so that they, the operators and (by way of CUPTI) the CUDA calls and
kernels carry times of one clock. A range's name is a number there; its text is kept here, whole and unescaped.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import torch
from torch._C._profiler import _ExperimentalConfig, _RecordFunctionFast
from torch.profiler import ProfilerActivity, profile

from tracekit.capture.emit import new_lane
from tracekit.capture.kineto import NUMBERED, rows_of
from tracekit.capture.schedule import wait_for_gpu
from tracekit.errors import CaptureError
from tracekit.nsight.nsys import passing_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tracekit.capture.kineto import Row, Rows, Span


_TAKEN = (
    "the program uses torch.profiler itself, of which there is one at a time: nothing was recorded; "
    "take it out, or record with --engine nsys"
)


#: A name in Kineto's trace; one with quotes in it stands there as it is. Numbers alone need none of this.
_QUOTED = re.compile(rb'("cat": "\w*user_annotation",\s*"name": ").*(",\s*"pid": )')


class _Guards(threading.local):
    """The ranges that a thread has open."""

    def __init__(self) -> None:
        self.open: list[_RecordFunctionFast] = []


class Profiled:
    """Torch's profiler as a place for markers.

    Attributes:
        texts: The distinct texts, by the number that stands for them in the trace.
        opened: Counts the ranges that were opened.
    """

    def __init__(self) -> None:
        self.lane = new_lane()
        self.texts: list[str] = []
        self.opened = count()
        self._numbers: dict[str, int] = {}
        self._guards = _Guards()
        self._lock = threading.Lock()
        self.close: Callable[[], object] = self._close

    def opener(self, text: str, /) -> Callable[[], object]:
        """What opens a range of this text."""
        with self._lock:
            number = self._numbers.setdefault(text, len(self.texts))
            if number == len(self.texts):
                self.texts.append(text)
        return partial(self._open, f"{NUMBERED}{number}")

    def _open(self, name: str) -> None:
        next(self.opened)
        guard = _RecordFunctionFast(name)
        guard.__enter__()
        self._guards.open.append(guard)

    def _close(self) -> None:
        guard = self._guards.open.pop()
        try:
            guard.__exit__(None, None, None)
        except RuntimeError:
            # It was opened before the window: torch knows nothing of it and asks to be told of a bug.
            return


class Recorder:
    """Records a window of this process.

    Attributes:
        emitter: Where markers must go.
        figures: What recording cost, in nanoseconds, and what it held and lost, by name.
        warnings: What went wrong at the end of the recording and did not harm it.
        windows: How many were opened; the last one is what is recorded.
    """

    def __init__(self, *, ops: bool = False) -> None:
        self.emitter = Profiled()
        self.figures: dict[str, int] = {}
        self.warnings: list[str] = []
        self._ops = ops
        self._profile: profile | None = None
        self._open = False
        self._opened = 0
        self.windows = 0

    @property
    def recorded(self) -> bool:
        """Whether the window was ever opened."""
        return self._profile is not None

    @property
    def window(self) -> int:
        """The number of the window that is open, from 1 on; 0 if none is."""
        return self.windows if self._open else 0

    def open(self) -> None:
        """Begins to record; what an earlier window held is dropped."""
        self.close()
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._profile = profile(
            activities=activities,
            record_shapes=self._ops,
            acc_events=True,
            experimental_config=_ExperimentalConfig(profile_all_threads=True),
        )
        self.emitter.opened = count()
        # Kineto logs every start and stop to stderr, which is the program's.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        with self._timed("start_ns"):
            self._profile.start()
        self.windows += 1
        self._open = True

    def close(self) -> None:
        """Ends the window, once the GPU has done what was asked of it."""
        if self._open and self._profile is not None:
            self._open = False
            if not torch.autograd.profiler._is_profiler_enabled:
                # Another profile ended ours with its own; what is left of it must not be touched.
                self._profile = None
                raise CaptureError(_TAKEN)
            with self._timed("stop_ns"):
                wait_for_gpu(self.warnings)
                self._profile.stop()
            # What is marked from here on is not lost but outside.
            self._opened = next(self.emitter.opened)

    def rows(self) -> Rows:
        """What was recorded, as rows of Nsight's tables."""
        self.close()
        with self._timed("convert_ns"), passing_folder(self.warnings) as folder:
            path = folder / "trace.json"
            if self._profile is not None:
                self._profile.export_chrome_trace(str(path))
            trace = _loaded(path.read_bytes())
            names = self._annotations(int(trace.get("baseTimeNanoseconds", 0)))
            rows = rows_of(trace, self.emitter.texts, os.getpid(), ops=self._ops, names=names)
        self.figures |= {
            "markers": rows.numbered,
            "markers_lost": max(0, self._opened - rows.numbered),
            "operators": len(rows.operators),
        }
        return rows

    def _annotations(self, base_ns: int) -> dict[Span, str]:
        """What annotations were called, by their times; in its trace Kineto spoils what is not plain ASCII."""
        profiler = self._profile.profiler if self._profile is not None else None
        results = profiler.kineto_results if profiler is not None else None
        return {
            (event.start_ns() - base_ns, event.end_ns() - base_ns): event.name()
            for event in (results.events() if results is not None else ())
            if event.is_user_annotation()
        }

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        before = time.perf_counter_ns()
        yield
        self.figures[name] = time.perf_counter_ns() - before


def _loaded(written: bytes) -> Row:
    """Kineto's Chrome trace, also if it is no JSON because a name in it has quotes; such names are then empty.

    Raises:
        CaptureError: If it is none for another reason.
    """
    for text in (written, _QUOTED.sub(rb"\1\2", written)):
        try:
            trace: Row = json.loads(text)
        except ValueError:
            continue
        return trace
    raise CaptureError("torch's profiler wrote a trace that is no JSON; record with --engine nsys, or another torch")

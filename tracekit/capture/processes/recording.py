"""Marks and records this process, if ``tracekit capture -- COMMAND`` asks for it."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol

import torch

from tracekit.capture.emit import nvtx_emitter, routed_to
from tracekit.capture.graphs import counted_graphs
from tracekit.capture.maps import maps_of_recording
from tracekit.capture.processes.ending import Ending
from tracekit.capture.processes.own_markers import before_own_markers, has_own_markers
from tracekit.capture.processes.patience import kill_when_written
from tracekit.capture.processes.request import Request
from tracekit.capture.processes.window import ProcessWindow, refuse
from tracekit.capture.program import Marking, marked_program
from tracekit.capture.schedule import Schedule, attempt
from tracekit.capture.training import data_markers

if TYPE_CHECKING:
    from torch import nn

    from tracekit.capture.layers import LayerMarkers


class _Marked(Protocol):
    """A process that is marked."""

    def forked(self) -> None:
        """Goes on in a forked process."""

    def finish(self) -> None:
        """The process ends."""


#: What marks this process; at most one.
_started: list[_Marked] = []


def start_if_asked() -> bool:
    """Starts to mark and record this process, if ``tracekit capture -- COMMAND`` asks for it; else does nothing.

    It may be called any number of times, and raises nothing. Programs need not call it, because each of their processes
    calls it at its start, but plugins may, where a process's environment has lost ``PYTHONPATH``.

    Returns:
        Whether this process is marked.
    """
    if _started:
        return True
    try:
        request = Request.of_environment()
    except (KeyError, TypeError, ValueError, OSError):  # another release's, or no request at all
        return False
    if request is None:
        return False
    try:
        marked = ProcessMarkers(request) if request.engine == "nsys" else ProcessRecording(request)
    except Exception as error:  # noqa: BLE001 - the program must go on, whatever is wrong
        refuse(request, f"{type(error).__name__}: {error}")
        return False
    _started.append(marked)
    ending = Ending(marked.finish, marked.forked)
    if isinstance(marked, ProcessRecording):
        marked.window.opens = ending.watch_termination
        kill_when_written(request.folder, ending.finish)
    return True


class _Everything:
    """The window of a process that another tool records as a whole."""

    def open(self) -> None:
        """Does nothing."""

    def drop(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""


class ProcessMarkers:
    """The markers of a process that nsys records."""

    def __init__(self, request: Request) -> None:
        nvtx_emitter()  # raises where nvtx is missing
        self._marking = Marking(request.settings)
        self._entered = ExitStack()
        self._entered.enter_context(data_markers())
        self._entered.enter_context(maps_of_recording())
        self._entered.enter_context(marked_program(Schedule(_Everything()), self._put_on))

    def _put_on(self, model: nn.Module, prefix: str) -> LayerMarkers:
        """Marks a model, unless the program marks it by itself, or until it does."""
        own = has_own_markers(model)
        before_own_markers(self.remove)
        markers = self._marking.put_on(model, prefix)
        if own:
            markers.remove()
        return markers

    def remove(self) -> None:
        """Takes all markers off."""
        self._entered.close()

    def forked(self) -> None:
        """Nothing changes: the tool records forked processes, too."""

    def finish(self) -> None:
        """Nothing is left to do."""


class ProcessRecording:
    """The recording of this process by torch's profiler.

    Attributes:
        window: What is recorded.
    """

    def __init__(self, request: Request) -> None:
        settings = request.settings
        self.window = ProcessWindow(request)
        self._marking = Marking(settings)
        self._entered = ExitStack()
        recorder = self.window.recorder
        self._entered.enter_context(routed_to(recorder.emitter))
        self._entered.enter_context(maps_of_recording(cpu_kernels=True))
        self._graphs = self._entered.enter_context(counted_graphs(lambda: recorder.window))
        schedule = Schedule(self.window, settings.warmup or 0, settings.steps)
        self._program = self._entered.enter_context(marked_program(schedule, self._marking.put_on))
        # Called at once, if the process uses the GPU already.
        torch.cuda._lazy_call(self.window.gpu_begins)  # type: ignore[no-untyped-call]

    def forked(self) -> None:
        """Records a forked process by itself. Its models keep their markers."""
        self.window.forked()
        self._program.forked()
        self._marking.forked()

    def finish(self) -> None:
        """Ends the recording and writes what is not written yet."""
        recorder = self.window.recorder
        self.window.close()
        if self.window.piece.trace:
            attempt(self._entered.close, "the markers could not be taken off", recorder.warnings)
            figures = self._marking.figures() | self._graphs.figures(recorder.windows)
            attempt(lambda: self.window.describe(figures), "the figures are incomplete", recorder.warnings)

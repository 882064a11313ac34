"""Marks and records this process, if ``tracekit capture -- COMMAND`` asks for it, and writes all before it ends.

The request travels in the environment. A process leaves a file that records its start, torch.profiler's trace, and a
file with what belongs to the trace; or why it is not recorded.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import torch
from torch import nn

from tracekit.capture.arrivals import SentCalls
from tracekit.capture.attach import watched_calls
from tracekit.capture.emit import nothing, quiet_emitter, routed_to
from tracekit.capture.ending import Ending
from tracekit.capture.maps import maps_of_recording
from tracekit.capture.process_files import Piece, ProcessFiles, write_problem
from tracekit.capture.program import Marking, Settings, marked_program
from tracekit.capture.recorder import Recorder
from tracekit.capture.schedule import Schedule, attempt, counted_graphs
from tracekit.capture.writing import OPENED, describe_process
from tracekit.errors import CaptureError

_OTHER_PROCESS = (
    "of this TARGET, only one process is recorded (with nsys also its forks); to record all: tracekit capture -- "
    "python FILE.py"
)
_FORKED_WITH_GPU = "it was forked while its parent recorded the GPU; start it with spawn to record it"
#: Environment variable with the request; ``startup/sitecustomize.py`` spells it too.
VARIABLE = "TRACEKIT_RECORDING"
_STARTUP = Path(__file__).parent / "startup"
_PATHS = "PYTHONPATH"
#: Whether this process is marked for a command, once that is decided.
_started: list[bool] = []


def start_if_asked() -> bool:
    """Marks and records this process, if ``tracekit capture -- COMMAND`` asks for it; returns whether it is marked.

    It may be called any number of times, and raises nothing. Programs need not call it, because each of their processes
    calls it at its start, but plugins may, where a process's environment has lost ``PYTHONPATH``.
    """
    if _started:
        return _started[0]
    try:
        request = Request.of_environment()
    except (KeyError, TypeError, ValueError, OSError):  # another release's, one that is over, or none at all
        return False
    try:
        if request.engine:
            _mark_until_the_end(request)
        else:
            _refuse_at_first_call(request.folder)
        _started.append(bool(request.engine))
    except Exception as error:  # noqa: BLE001 - whatever it raises
        write_problem(request.folder, f"{type(error).__name__}: {error}")
        return False
    return _started[0]


@contextmanager
def others_refused(folder: Path, *, forks: bool) -> Iterator[None]:
    """While the block runs, other processes report at their first call of a module that they are not recorded."""
    before = {name: os.environ.get(name) for name in (VARIABLE, _PATHS)}
    os.environ.update(Request(folder, "", Settings()).environment(os.environ))
    _started.append(False)
    refusing = [folder] if forks else []
    os.register_at_fork(after_in_child=lambda: list(map(_refuse_at_first_call, refusing)))
    try:
        yield
    finally:
        refusing.clear()
        _started.clear()
        for name, value in before.items():
            os.environ.pop(name, None)
            os.environ.update({name: value} if value is not None else {})


def _refuse_at_first_call(folder: Path) -> None:
    watching = ExitStack()

    def refuse(_module: nn.Module) -> bool:
        watching.close()
        write_problem(folder, _OTHER_PROCESS)
        return True

    watching.enter_context(watched_calls(quiet_emitter().lane, refuse))


def _mark_until_the_end(request: Request) -> None:
    """Marks this process, for nsys or for its own recording."""
    settings, entered = request.settings, ExitStack()
    window = SentCalls(request.folder) if request.engine == "nsys" else ProcessWindow(request)
    marking = Marking(settings)
    entered.enter_context(window.marks())
    entered.enter_context(marking.models_noted())
    schedule = Schedule(window, settings.warmup or 0, settings.steps)
    restart_steps = entered.enter_context(marked_program(schedule, marking.put_on))

    def forked() -> None:
        window.forked()
        restart_steps()
        marking.forked()

    def figures(warnings: list[str]) -> dict[str, int]:
        attempt(entered.close, "the markers could not be taken off", warnings)
        return marking.figures()

    window.opens = Ending(request.folder, lambda: window.leave(figures), forked).watch_termination


class ProcessWindow:
    """The window of a process. When it closes, the recording is written at once."""

    def __init__(self, request: Request) -> None:
        self.opens: Callable[[], object] = nothing
        self.refused: str | None = None
        self.recorder = Recorder(ops=request.settings.ops, gpu=lambda: self._gpu)
        self._request = request
        self._gpu = False
        self._open = False
        self._begin_piece()

    @contextmanager
    def marks(self) -> Iterator[None]:
        """Records the markers, graphs and kernel maps of the process, while the block runs."""
        recorder = self.recorder
        graphs = counted_graphs(lambda: recorder.window)
        with routed_to(recorder.emitter), maps_of_recording(cpu_kernels=True), graphs as self._graphs:
            # Called at once, if the process uses the GPU already.
            torch.cuda._lazy_call(self.gpu_begins)  # type: ignore[no-untyped-call]
            yield

    def _begin_piece(self) -> None:
        self.piece, self._files = Piece(), ProcessFiles(self._request.folder)

    def open(self) -> None:
        """Begins to record. A failure is reported at the end of the command and does not reach the program."""
        if self.refused:
            write_problem(self._request.folder, self.refused)
            self.refused = None
            return
        with self._failure_reported():
            self.recorder.open()
            self._open = True
            self._files.begin()
            self.opens()

    def close(self) -> None:
        """Stops recording and writes what was recorded."""
        if self._open:
            self._open = False
            with self._failure_reported():
                self._write()

    def drop(self) -> None:
        """Stops recording and forgets what was recorded."""
        if self._open:
            self._open = False
            with self._failure_reported():
                self.recorder.close()
                self._files.withdraw()

    @contextmanager
    def _failure_reported(self) -> Iterator[None]:
        """Runs a part of the recording. If it fails, nothing of this process is in the report."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it raises
            self._files.withdraw()
            reason = str(error) if isinstance(error, CaptureError) else f"{type(error).__name__}: {error}"
            write_problem(self._request.folder, reason)

    def _write(self) -> None:
        recorder = self.recorder
        recorder.write_trace(self._files.trace)
        self.piece.trace = self._files.trace.name
        self.piece.texts = recorder.emitter.texts
        self.piece.about = describe_process(recorder.warnings)
        self.describe({OPENED: recorder.opened})

    def leave(self, figures: Callable[[list[str]], Mapping[str, int]]) -> None:
        """Writes what was recorded, with other figures."""
        self.close()
        if self.piece.trace:
            warnings, graphs = self.recorder.warnings, self._graphs
            counts = {**figures(warnings), **graphs(self.recorder.windows)}
            attempt(lambda: self.describe(counts), "the figures are incomplete", warnings)

    def describe(self, figures: dict[str, int]) -> None:
        """Adds figures to what was written."""
        self.piece.figures |= self.recorder.figures | figures
        self.piece.warnings = self.recorder.warnings
        self._files.write(self.piece)

    def gpu_begins(self) -> None:
        """The process is about to use the GPU for the first time. From now on, the GPU is recorded, too.

        Not before: the profiler would start CUDA, and then forked processes could not use the GPU.
        """
        self._gpu = True
        if self._open:
            self.close()
            self._begin_piece()
            self.open()

    def forked(self) -> None:
        """Starts over in a forked process."""
        self.refused = _FORKED_WITH_GPU if self._open and self._gpu else None
        self._open = self._gpu = False
        self.recorder.forget()
        self._begin_piece()


@dataclass(frozen=True, slots=True)
class Request:
    """What each process records: itself with engine ``torch``; with ``nsys`` it emits markers; with ``""`` nothing."""

    folder: Path
    engine: str
    settings: Settings

    @classmethod
    def of_environment(cls) -> Self:
        """The request that this process was started with; an error if there is none, or it is over."""
        values = json.loads(os.environ[VARIABLE])
        return cls(Path(values["folder"]).resolve(strict=True), values["engine"], Settings.of_json(values["settings"]))

    def environment(self, given: Mapping[str, str]) -> dict[str, str]:
        """An environment with the request, and with the folder of the start-up hook before all other paths."""
        values = {"folder": self.folder.absolute(), "engine": self.engine, "settings": asdict(self.settings)}
        paths = os.pathsep.join(path for path in (str(_STARTUP), given.get(_PATHS)) if path)
        return {**given, VARIABLE: json.dumps(values, default=str), _PATHS: paths}

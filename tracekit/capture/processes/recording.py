"""Marks and records this process, if ``tracekit capture -- COMMAND`` asks for it, and writes all before it ends.

The request travels in the environment. A process leaves a file that records its start, torch.profiler's trace, and a
file with what belongs to the trace; or why it is not recorded.

Its end is noticed at Python's exit, ``os._exit`` (as workers of multiprocessing end), forks, signals that it sends to
itself (as uvicorn does again what it got), and SIGTERM, where the program leaves it as it is and records in its main
thread. SIGKILL and crashes give no notice; but servers, vLLM's among them, kill their workers, and a process of the
command waits before it kills one that has not written its recording.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import mmap
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import update_wrapper
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn, Self

import torch

from tracekit.capture.emit import nothing, nvtx_emitter, routed_to
from tracekit.capture.garbage import collection_markers
from tracekit.capture.kineto import trace_in
from tracekit.capture.maps import maps_of_recording
from tracekit.capture.program import Marking, Settings, marked_program
from tracekit.capture.recorder import Recorder
from tracekit.capture.rows import Description, Span, describe_process, empty_description, uses_gpu
from tracekit.capture.schedule import Schedule, attempt, counted_graphs, data_markers
from tracekit.errors import CaptureError

#: Annotations of a trace, and those among them whose names Kineto passes on as they are (see ``capture/kineto.py``).
_ANNOTATION = re.compile(rb'"cat": "user_annotation"')
_UNHARMED = re.compile(rb'"cat": "user_annotation",\s*"name": "(?!unknown")[^"/\\\x00-\x1f\x7f-\xff]+",\s*"pid": ')
_FORKED_WITH_GPU = "it was forked while its parent recorded the GPU; start it with spawn to record it"
_WAITING = (signal.SIGTERM, signal.SIGINT)
_DEADLY = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
#: How long a process may take to write its recording once another one wants to kill it.
_KILL_TIMEOUT_S = 60
#: Environment variable with the request; ``startup/sitecustomize.py`` spells it too.
VARIABLE = "TRACEKIT_RECORDING"
_STARTUP = Path(__file__).parent / "startup"
_PATHS = "PYTHONPATH"
#: The figure that counts the markers opened in the window.
OPENED = "markers_opened"
_BEGUN, _TRACE, _PIECE, _PROBLEM = ".begun", ".trace", ".piece", ".problem"
#: What marks this process; at most one.
_started: list[ExitStack | ProcessRecording] = []


def start_if_asked() -> bool:
    """Marks and records this process, if ``tracekit capture -- COMMAND`` asks for it; returns whether it is marked.

    It may be called any number of times, and raises nothing. Programs need not call it, because each of their processes
    calls it at its start, but plugins may, where a process's environment has lost ``PYTHONPATH``.
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
        nsys = request.engine == "nsys"
        _started.append(_markers_for_nsys(request.settings) if nsys else ProcessRecording(request))
    except Exception as error:  # noqa: BLE001 - whatever it raises
        _refuse(request, f"{type(error).__name__}: {error}")
        return False
    return True


def _markers_for_nsys(settings: Settings) -> ExitStack:
    nvtx_emitter()  # raises where nvtx is missing
    whole: Any = SimpleNamespace(open=nothing, drop=nothing, close=nothing)
    entered = ExitStack()
    atexit.register(entered.close)  # later, what it closes is half gone
    entered.enter_context(data_markers())
    marking = Marking(settings)
    entered.enter_context(collection_markers(marking))
    entered.enter_context(maps_of_recording())
    entered.enter_context(marked_program(Schedule(whole), marking.put_on))
    return entered


class ProcessRecording:
    """The recording of this process by torch's profiler, until it ends."""

    def __init__(self, request: Request) -> None:
        settings = request.settings
        self._window = ProcessWindow(request)
        self._marking = Marking(settings)
        self._entered = ExitStack()
        recorder = self._window.recorder
        self._entered.enter_context(routed_to(recorder.emitter))
        self._entered.enter_context(collection_markers(self._marking))
        self._entered.enter_context(maps_of_recording(cpu_kernels=True))
        self._graphs = self._entered.enter_context(counted_graphs(lambda: recorder.window))
        schedule = Schedule(self._window, settings.warmup or 0, settings.steps)
        self._restart_steps = self._entered.enter_context(marked_program(schedule, self._marking.put_on))
        # Called at once, if the process uses the GPU already.
        torch.cuda._lazy_call(self._window.gpu_begins)  # type: ignore[no-untyped-call]
        ending = Ending(self._finish, self._forked)
        self._window.opens = ending.watch_termination
        kill_when_written(request.folder, ending.finish)

    def _forked(self) -> None:
        self._window.forked()
        self._restart_steps()
        self._marking.forked()

    def _finish(self) -> None:
        recorder = self._window.recorder
        self._window.close()
        if self._window.piece.trace:
            attempt(self._entered.close, "the markers could not be taken off", recorder.warnings)
            figures = self._marking.figures() | self._graphs.figures(recorder.windows)
            attempt(lambda: self._window.describe(figures), "the figures are incomplete", recorder.warnings)


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

    def _begin_piece(self) -> None:
        self.piece, self._files = Piece(), ProcessFiles(self._request.folder)

    def open(self) -> None:
        """Begins to record. A failure is reported at the end of the command and does not reach the program."""
        if self.refused:
            _refuse(self._request, self.refused)
            self.refused = None
        else:
            self._try(self._begin)

    def close(self) -> None:
        """Stops recording and writes what was recorded."""
        if self._open:
            self._open = False
            self._try(self._write)

    def drop(self) -> None:
        """Stops recording and forgets what was recorded."""
        if self._open:
            self._open = False
            self._try(self._withdraw)

    def _try(self, action: Callable[[], object]) -> None:
        """Runs a part of the recording. If it fails, nothing of this process is in the report."""
        try:
            action()
        except Exception as error:  # noqa: BLE001 - whatever it raises
            self._files.withdraw()
            reason = str(error) if isinstance(error, CaptureError) else f"{type(error).__name__}: {error}"
            _refuse(self._request, reason)

    def _begin(self) -> None:
        self.recorder.open()
        self._open = True
        self._files.begin()
        self.opens()

    def _withdraw(self) -> None:
        self.recorder.close()
        self._files.withdraw()

    def _write(self) -> None:
        recorder = self.recorder
        recorder.write_trace(self._files.trace)
        self.piece.trace = self._files.trace.name
        self.piece.texts = recorder.emitter.texts
        self.piece.names = _garbled_names(self._files.trace, recorder)
        self.piece.about = describe_process(recorder.warnings, on_device=uses_gpu())
        self.describe({OPENED: recorder.opened})

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
        """Begins anew in a forked process."""
        self.refused = _FORKED_WITH_GPU if self.recorder.records_gpu else None
        self._open = self._gpu = False
        self.recorder.forget()
        self._begin_piece()


def _refuse(request: Request, reason: str) -> None:
    with suppress(OSError):
        write_problem(request.folder, reason)


def _garbled_names(trace: Path, recorder: Recorder) -> list[tuple[Span, str]]:
    """The names of all annotations by their times, if Kineto garbled any; reading them takes long."""
    with trace.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        every, unharmed = (sum(1 for _ in pattern.finditer(content)) for pattern in (_ANNOTATION, _UNHARMED))
    if every == unharmed:
        return []
    return list(recorder.annotation_names(trace_in(trace)["baseTimeNanoseconds"]).items())


class _Thread(threading.local):
    """The signals that a thread had blocked before it forked."""

    blocked: Collection[int] = ()


class Ending:
    """Calls back once before the process ends, and in every process that it forks."""

    def __init__(self, ends: Callable[[], object], forked: Callable[[], object]) -> None:
        self._ends = ends
        self._forked = forked
        self._lock = threading.RLock()
        self._begun = False
        self._pipe: tuple[int, int] | None = None
        self._thread = _Thread()
        atexit.register(self.finish)
        self._watch_hard_exits()
        os.register_at_fork(
            before=self._before_fork, after_in_parent=self._after_in_parent, after_in_child=self._after_in_child
        )

    def finish(self) -> None:
        """Calls back, unless that has begun; waits while another thread does it."""
        with self._lock:
            if self._begun:
                return
            self._begun = True
            with _signals_later():
                self._ends()

    def watch_termination(self) -> None:
        """From now on, SIGTERM calls back before it ends the process, if it would end it as it is."""
        main = threading.current_thread() is threading.main_thread()
        if self._pipe or not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return
        signal.signal(signal.SIGTERM, self._terminate)
        self._wait_on_a_thread()

    def _watch_hard_exits(self) -> None:
        leave = os._exit

        def finish_and_leave(status: int) -> NoReturn:
            try:
                self.finish()
            finally:
                leave(status)

        put_in_place(finish_and_leave, leave)

    def _terminate(self, *_signal: object) -> None:
        self.finish()
        # Python's own function works only in the main thread.
        ctypes.CDLL(None).signal(int(signal.SIGTERM), None)
        os.kill(os.getpid(), signal.SIGTERM)

    def _wait_on_a_thread(self) -> None:
        """The main thread may never come back from a call into C, so another thread waits for the signal, too."""
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        if (other := signal.set_wakeup_fd(writing, warn_on_full_buffer=False)) != -1:
            signal.set_wakeup_fd(other)
            os.close(reading)
            os.close(writing)
            return
        self._pipe = reading, writing
        threading.Thread(target=self._waiting, args=(reading,), name="tracekit", daemon=True).start()

    def _waiting(self, reading: int) -> None:
        with suppress(OSError):  # the program closed all files
            while number := os.read(reading, 1):
                watching = signal.getsignal(signal.SIGTERM) == self._terminate
                if watching and number[0] == signal.SIGTERM:
                    self._terminate()

    def _before_fork(self) -> None:
        # A signal to the new process must not reach the pipe, at whose other end is this process.
        if self._pipe:
            self._thread.blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def _after_in_parent(self) -> None:
        if self._pipe:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._thread.blocked)

    def _after_in_child(self) -> None:
        self._lock = threading.RLock()
        self._begun = False
        if self._pipe:
            pipe, self._pipe = self._pipe, None
            if (other := signal.set_wakeup_fd(-1)) not in {-1, pipe[1]}:
                signal.set_wakeup_fd(other)
            for descriptor in pipe:
                os.close(descriptor)
            if signal.getsignal(signal.SIGTERM) == self._terminate:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, self._thread.blocked)
        self._forked()


def put_in_place(function: Callable[..., Any], original: Callable[..., Any], module: ModuleType = os) -> None:
    """Replaces a module's function. Like the original, it can be pickled: it goes by the name that it has there."""
    update_wrapper(function, original)
    function.__module__ = module.__name__
    setattr(module, original.__name__, function)


@contextmanager
def _signals_later() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {int(number): signal.signal(number, lambda came_now, _: came.append(came_now)) for number in _WAITING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for number in came[:1]:
            os.kill(os.getpid(), number)


def kill_when_written(folder: Path, finish: Callable[[], object]) -> None:
    """From now on, before this process kills one that records, it asks it to end and waits until all is written."""
    kill, raise_signal = os.kill, signal.raise_signal

    def raise_later(number: int, /) -> None:
        if _ends(number):
            finish()
        raise_signal(number)

    def kill_later(pid: int, number: int, /) -> None:
        if pid == os.getpid() and _ends(number):
            finish()
        elif number == signal.SIGKILL and pid in unfinished(folder):
            kill(pid, signal.SIGTERM)
            end = time.monotonic() + _KILL_TIMEOUT_S
            while pid in unfinished(folder) and lives(pid) and time.monotonic() < end:
                time.sleep(0.05)
        kill(pid, number)

    put_in_place(kill_later, kill)
    put_in_place(raise_later, raise_signal, signal)


def _ends(number: int) -> bool:
    return number == signal.SIGKILL or (number in _DEADLY and signal.getsignal(number) is signal.SIG_DFL)


@dataclass(frozen=True, slots=True)
class Request:
    """What each process records: itself with engine ``torch``; with ``nsys``, it only emits markers."""

    folder: Path
    engine: str
    settings: Settings

    @classmethod
    def of_environment(cls) -> Self | None:
        """The request that this process was started with; None if there is none, or it is over."""
        text = os.environ.get(VARIABLE)
        if not text:
            return None
        values = json.loads(text)
        request = cls(Path(values["folder"]), values["engine"], Settings.of_json(values["settings"]))
        return request if request.folder.is_dir() else None

    def environment(self, given: Mapping[str, str]) -> dict[str, str]:
        """An environment with the request, and with the folder of the start-up hook before all other paths."""
        values = {"folder": str(self.folder.absolute()), "engine": self.engine, "settings": asdict(self.settings)}
        paths = os.pathsep.join(path for path in (str(_STARTUP), given.get(_PATHS)) if path)
        return {**given, VARIABLE: json.dumps(values), _PATHS: paths}


@dataclass(slots=True)
class Piece:
    """What one process recorded: torch.profiler's trace, if there is one, and what the trace lacks or garbles."""

    pid: int = field(default_factory=os.getpid)
    trace: str = ""
    texts: list[str] = field(default_factory=list)
    names: list[tuple[Span, str]] = field(default_factory=list)
    about: Description = field(default_factory=empty_description)
    figures: dict[str, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


class ProcessFiles:
    """The files of one process in the folder of a command."""

    def __init__(self, folder: Path) -> None:
        # Process ids may come again, also in other name spaces.
        self._stem = folder / f"{os.getpid()}-{os.urandom(4).hex()}"

    @property
    def trace(self) -> Path:
        """Where torch.profiler's trace goes."""
        return self._stem.with_suffix(_TRACE)

    def begin(self) -> None:
        """Notes that the process records."""
        self._stem.with_suffix(_BEGUN).touch()

    def withdraw(self) -> None:
        """Notes that nothing will come of it."""
        self._stem.with_suffix(_BEGUN).unlink(missing_ok=True)

    def write(self, piece: Piece) -> None:
        """Writes what belongs to the trace, whole or not at all."""
        place = self._stem.with_suffix(_PIECE)
        partial = place.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(piece)), "utf-8")
        partial.replace(place)


def pieces(folder: Path) -> list[Piece]:
    """What all processes recorded, in the order of their ids."""
    recorded = []
    for path in folder.glob(f"*{_PIECE}"):
        values: dict[str, Any] = json.loads(path.read_text("utf-8"))
        names = [((start, end), name) for (start, end), name in values["names"]]
        recorded.append(Piece(**(values | {"names": names})))
    return sorted(recorded, key=lambda piece: piece.pid)


def unfinished(folder: Path) -> list[int]:
    """The ids of processes that began to record and wrote nothing."""
    begun = [path for path in folder.glob(f"*{_BEGUN}") if not path.with_suffix(_PIECE).exists()]
    return sorted(int(path.name.partition("-")[0]) for path in begun)


def lives(pid: int) -> bool:
    """Whether a process runs."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[0]
    except ProcessLookupError:
        return False
    except OSError:  # someone else's, or a system without /proc
        return True
    return state != "Z"


def problems(folder: Path) -> Iterator[tuple[int, str]]:
    """Why processes are not recorded, by process id."""
    for path in sorted(folder.glob(f"*{_PROBLEM}")):
        yield int(path.name.partition("-")[0]), path.read_text("utf-8", "replace")


def write_problem(folder: Path, text: str) -> None:
    """Notes why this process is not recorded."""
    name = f"{os.getpid()}-{os.urandom(4).hex()}{_PROBLEM}"
    (folder / name).write_text(" ".join(text.split()), "utf-8")

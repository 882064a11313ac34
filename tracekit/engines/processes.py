"""Does tasks in processes of this machine that live on: at most as many as cores, and as fit into the memory.

A pool of loky fails as a whole when one of its processes is killed, and does not report what that one did. So there is
a pool of one process for each core, and a killed process spoils its own task only.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NoReturn, Self

from tracekit.arrays.own_process import keep_memory, without_pandas
from tracekit.engines.base import Outcome, Result, Share, Task, throttled
from tracekit.progress import Progress

#: How often a task is given to another process when one ends before it begins.
_ATTEMPTS = 3
_HEARING_S = 0.2
#: How long a stopped process may take to remove what it has begun.
PATIENCE_S = 5
#: The smallest progress that is reported.
_STEP = 0.01
#: A container's limit and use of memory, in either version of Linux's control groups.
_LIMITS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")),
)
_EXIT_CODE = re.compile(r"\((-?\d+)\)\}")


def cores() -> int:
    """How many processes can run at once."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Processes:
    """Processes of this machine. They start with the first tasks and end with the block."""

    shares_files = True

    def __init__(self, most: int | None = None) -> None:
        self._most = most or cores()
        self._lock = threading.Lock()
        self._processes: list[_Process] = []
        self._stopped = False
        # Only the main thread is interrupted by signals, so others start processes, each its own, and wait for them.
        self._of_thread = threading.local()
        self._threads = ThreadPoolExecutor(self._most, thread_name_prefix="tracekit")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stops the processes, and kills those that do not end soon."""
        with self._lock:
            self._stopped = True
            processes = [*self._processes]
        for process in processes:
            process.stop()
        deadline = time.monotonic() + PATIENCE_S
        for process in processes:
            process.end(max(0.0, deadline - time.monotonic()))
        self._threads.shutdown()

    def outcomes(self, tasks: Sequence[Task[Result]], progress: Progress) -> Iterator[Outcome[Result]]:
        """Does as many tasks at once as there are cores, and as fit into the memory that is available at first."""
        waiting = deque(enumerate(tasks))
        running: dict[Future[Outcome[Result]], int] = {}
        # A Ctrl-C while Python's `wait` locks the futures would leave them locked for ever.
        ended: SimpleQueue[Future[Outcome[Result]]] = SimpleQueue()
        available = available_bytes()
        while waiting or running:
            while waiting and self._fits([*running.values()], waiting[0][1].needed_bytes, available):
                number, task = waiting.popleft()
                future = self._threads.submit(self._outcome, number, task, progress)
                running[future] = task.needed_bytes
                future.add_done_callback(ended.put)
            # A signal that the system gives to another thread is heard when this one next wakes up.
            try:
                future = ended.get(timeout=_HEARING_S)
            except Empty:
                continue
            del running[future]
            yield future.result()

    def _fits(self, running: list[int], more: int, available: int) -> bool:
        return not running or (len(running) < self._most and sum(running) + more <= available)

    def _outcome(self, number: int, task: Task[Result], progress: Progress) -> Outcome[Result]:
        from loky.process_executor import ShutdownExecutorError, TerminatedWorkerError  # noqa: PLC0415 - loaded late

        lost = "stopped"
        for _ in range(_ATTEMPTS):
            process = self._process()
            if process is None:
                break
            try:
                return Outcome(number, process.result(task, progress))
            except (TerminatedWorkerError, ShutdownExecutorError) as error:
                lost = _how_it_ended(error)
                process.end()
                if process.has_begun:
                    break
        return Outcome(number, None, lost)

    def _process(self) -> _Process | None:
        """That of this thread, which lives as long as it can; None once all are stopped."""
        with self._lock:
            if self._stopped:
                return None
            process: _Process | None = getattr(self._of_thread, "process", None)
            if process is None or process.has_ended:
                process = self._of_thread.process = _Process()
                self._processes.append(process)
            return process


def _how_it_ended(error: BaseException) -> str:
    codes = [int(code) for code in _EXIT_CODE.findall(str(error))]
    if not codes:
        return "for a reason that the system does not report"
    return f"signal {-codes[-1]}" if codes[-1] < 0 else f"exit code {codes[-1]}"


class _Process:
    """One process that lives on, and what it reports."""

    def __init__(self) -> None:
        from loky import ProcessPoolExecutor  # noqa: PLC0415 - most commands start no process

        self.has_begun = False
        self.has_ended = False
        self._lock = threading.Lock()
        self._pid = 0
        self._progress: Callable[[float], None] = lambda _: None
        self._all_told = threading.Event()
        self._failure: Exception | None = None
        self._pending: Future[Any] | None = None
        alive, self._keep_alive = multiprocessing.Pipe(duplex=False)
        self._from_worker, outbox = multiprocessing.Pipe(duplex=False)
        self._for_worker = (alive, outbox)
        self._executor = ProcessPoolExecutor(1, initializer=_prepare, initargs=(alive, outbox, gc.get_threshold()))
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def result(self, task: Task[Result], progress: Progress) -> Result:
        """Does a task, and passes on its progress."""
        self.has_begun = False
        self._progress = partial(progress, task.name)
        self._all_told.clear()
        with _out_of_reach():
            self._pending = self._executor.submit(_done, task.function)
        try:
            result: Result = self._pending.result()
            self._all_told.wait(_HEARING_S)
        finally:
            if self._failure is not None:
                raise self._failure
        return result

    def _listen(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                what, number = self._from_worker.recv()
                if what == "pid":
                    self._pid = int(number)
                elif what == "begun":
                    self.has_begun = True
                elif what == "ended":
                    self._all_told.set()
                elif self._failure is None:
                    self._pass_on(number)

    def _pass_on(self, share: float) -> None:
        try:
            self._progress(share)
        except Exception as failure:  # noqa: BLE001 - raised again where the result is waited for
            self._failure = failure
            self.stop()

    def stop(self) -> None:
        """Asks the process to remove what it has begun, and to end."""
        with suppress(ProcessLookupError):
            if self._pid and not self.has_ended:
                os.kill(self._pid, signal.SIGTERM)

    def end(self, patience_s: float = 0) -> None:
        """Ends the process and all that it started, if it does not exit within that time."""
        with self._lock:
            if self.has_ended:
                return
            if self._pending is not None and self._pid:
                with suppress(TimeoutError, CancelledError):
                    self._pending.exception(patience_s)
            self._executor.shutdown(kill_workers=True)
            for end in (*self._for_worker, self._keep_alive):
                end.close()
            self._listener.join()
            self._from_worker.close()
            self.has_ended = True


@contextmanager
def _out_of_reach() -> Iterator[None]:
    """Keeps Ctrl-C in a terminal from processes that are started meanwhile, until they handle signals themselves."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    # Starting this helper of Python would unblock signals.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _State:
    outbox: Connection | None = None
    busy: bool = False


def _prepare(alive: Connection, outbox: Connection, collections: tuple[int, int, int]) -> None:
    """Makes this process one that does tasks, as long as ``alive`` is open at its other end.

    ``outbox`` takes its id, then of each task the beginning, the shares that are done, and the end.
    """
    from loky import process_executor  # noqa: PLC0415 - loaded here anyway

    # Ctrl-C in a terminal, and its end, reach only the process that gives the tasks, which then ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _stopped)
    if hasattr(os, "setsid"):  # not on Windows
        os.setsid()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
    _State.outbox = outbox
    threading.Thread(target=_end_with, args=(alive,), daemon=True).start()
    outbox.send(("pid", os.getpid()))
    gc.set_threshold(*collections)
    # loky would replace a process that keeps memory for its next task.
    process_executor._USE_PSUTIL = False  # it has no other switch
    # Only tasks run here, so all memory is theirs.
    keep_memory()
    without_pandas()


def _done(function: Callable[[Share], Result]) -> Result:
    _send("begun", 0.0)
    _State.busy = True
    try:
        return function(throttled(partial(_send, "share"), _STEP))
    except SystemExit:
        os._exit(1)  # it was stopped, and has removed what it had begun
    finally:
        _State.busy = False
        _send("ended", 1.0)


def _send(what: str, number: float) -> None:
    with suppress(OSError):  # the process that gave the task is gone
        if _State.outbox is not None:
            _State.outbox.send((what, number))


def _stopped(*_: object) -> None:
    """Exit immediately, without logging: while a connection closes, SQLAlchemy would log a traceback."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    if not _State.busy:
        os._exit(1)
    sys.exit(1)


def _end_with(alive: Connection) -> NoReturn:
    with suppress(EOFError, OSError):
        alive.recv_bytes()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(PATIENCE_S)
    os._exit(1)


def available_bytes() -> int:
    """Memory that is available without swapping."""
    import psutil  # noqa: PLC0415 - most commands need not know

    free = [psutil.virtual_memory().available]
    for limit, used in _LIMITS:
        with suppress(OSError, ValueError):  # there is none, or it is "max"
            free.append(max(0, int(limit.read_text("ascii")) - int(used.read_text("ascii"))))
    return int(min(free))

"""Does tasks in processes of this machine that live on: at most as many as cores, and as fit into the memory.

Each is a Python of its own that does one task after the other, told by pipes. So a killed one loses its own task only,
the user's ``__main__`` is not imported again, and each ends when the process that started it is gone.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, BinaryIO, NoReturn, Self

from tracekit.arrays.own_process import keep_memory, without_pandas
from tracekit.engines.base import Outcome, Result, Share, Task, ThrottledShare
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
#: What a process says of a task: that it began, a share that is done, and how it ended.
_BEGUN, _SHARE, _RETURNED, _RAISED = range(4)


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
        lost = "stopped"
        for _ in range(_ATTEMPTS):
            process = self._process()
            if process is None:
                break
            try:
                return Outcome(number, process.result(task, progress))
            except _Ended as ended:
                lost = str(ended)
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


class _Ended(Exception):  # noqa: N818 - its text is how the process ended
    """A process ended before its task."""


class _Process:
    """One process that lives on, and the pipes to it."""

    def __init__(self) -> None:
        self.has_begun = False
        paths = [*sys.path, str(Path(__file__).parents[2])]
        work = f"from tracekit.engines.processes import work; work({gc.get_threshold()})"
        # In a session of its own, it is out of reach of Ctrl-C in a terminal.
        self._child = subprocess.Popen(
            [sys.executable, "-c", f"import sys; sys.path[:] = {paths!r}; {work}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    @property
    def has_ended(self) -> bool:
        """Whether it takes no more tasks."""
        return self._child.poll() is not None

    def result(self, task: Task[Result], progress: Progress) -> Result:
        """Does a task, and passes on its progress."""
        self.has_begun = False
        try:
            self._give(pickle.dumps(task.function))
            while (answer := self._answer())[0] not in {_RETURNED, _RAISED}:
                self.has_begun |= answer[0] == _BEGUN
                if self.has_begun and answer[0] == _SHARE:  # not what came late of an earlier task
                    progress(task.name, answer[1])
        except BaseException:
            self.stop()
            self.end(PATIENCE_S)
            raise
        how, value = answer
        if how == _RAISED:
            raise value
        result: Result = value
        return result

    def _give(self, function: bytes) -> None:
        tasks = self._child.stdin
        assert tasks is not None
        with self._heard():
            pickle.dump(function, tasks)
            tasks.flush()

    def _answer(self) -> tuple[int, Any]:
        answers = self._child.stdout
        assert answers is not None
        with self._heard():
            answer: tuple[int, Any] = pickle.load(answers)
        return answer

    @contextmanager
    def _heard(self) -> Iterator[None]:
        try:
            yield
        except (OSError, EOFError, pickle.UnpicklingError):  # it is gone, perhaps amid an answer
            self.end(PATIENCE_S)
            code = self._child.returncode
            raise _Ended(f"signal {-code}" if code < 0 else f"exit code {code}") from None

    def stop(self) -> None:
        """Asks the process to remove what it has begun, and to end."""
        self._child.terminate()

    def end(self, patience_s: float) -> None:
        """Waits for its end, and kills it if that takes longer."""
        try:
            self._child.wait(patience_s)
        except subprocess.TimeoutExpired:
            self._child.kill()
        with suppress(BrokenPipeError), self._child:
            pass


def work(collections: tuple[int, int, int]) -> NoReturn:
    """Does tasks in this process, one after the other, until it is stopped or the one that gives them is gone."""
    # Whatever tasks, and programs that they run, read and print has nothing to do with the pipes.
    pipes = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    gc.set_threshold(*collections)
    # Only tasks run here, so all memory is theirs.
    keep_memory()
    without_pandas()
    try:
        _Worker(*pipes).do_all()
    except Exception:  # noqa: BLE001 - nobody else would say it
        traceback.print_exc()
    finally:
        os._exit(1)  # it was stopped, and has removed what it had begun


class _Worker:
    """Takes tasks from a pipe, and answers by another."""

    def __init__(self, tasks: BinaryIO, answers: BinaryIO) -> None:
        self._tasks, self._answers = tasks, answers
        self._lock = threading.Lock()
        self._busy = False
        self._waiting: SimpleQueue[bytes] = SimpleQueue()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._stopped)
        threading.Thread(target=self._listen, daemon=True).start()

    def do_all(self) -> NoReturn:
        """Does one task after the other."""
        while True:
            task = self._waiting.get()
            self._busy = True
            self._answer(_BEGUN, None)
            try:
                function: Callable[[Share], object] = pickle.loads(task)
                self._answer(_RETURNED, function(ThrottledShare(partial(self._answer, _SHARE), _STEP)))
            except Exception as error:  # noqa: BLE001 - raised again where the task was given
                error.add_note(traceback.format_exc())
                self._answer(_RAISED, error)
            self._busy = False

    def _answer(self, what: int, value: object) -> None:
        answer = pickle.dumps((what, value))
        with self._lock, suppress(OSError):  # the process that gave the task is gone
            self._answers.write(answer)
            self._answers.flush()

    def _listen(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                self._waiting.put(pickle.load(self._tasks))
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(PATIENCE_S)
        os._exit(1)

    def _stopped(self, *_: object) -> None:
        """Exit immediately, without logging: while a connection closes, SQLAlchemy would log a traceback."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
        if not self._busy:
            os._exit(1)
        sys.exit(1)


def available_bytes() -> int:
    """Memory that is available without swapping."""
    import psutil  # noqa: PLC0415 - most commands need not know

    free = [psutil.virtual_memory().available]
    for limit, used in _LIMITS:
        with suppress(OSError, ValueError):  # there is none, or it is "max"
            free.append(max(0, int(limit.read_text("ascii")) - int(used.read_text("ascii"))))
    return int(min(free))

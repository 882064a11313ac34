"""The end of a process: what it leaves is written before, and another process that kills it waits for that.

The end is noticed at Python's exit, ``os._exit`` (as workers of multiprocessing end), forks, signals that it sends to
itself (as uvicorn does again what it got), and SIGTERM, where the program leaves it as it is and records in its main
thread. SIGKILL and crashes give no notice; but servers, vLLM's among them, kill their workers, and a process of the
command waits before it kills one that has not written its recording.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import update_wrapper
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from tracekit.capture.process_files import lives, unfinished

_WAITING = (signal.SIGTERM, signal.SIGINT)
_DEADLY = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
#: How long a process may take to write its recording once another one wants to kill it.
_KILL_TIMEOUT_S = 60


class Ending:
    """Calls back once before the process ends, and in every process that it forks."""

    def __init__(self, folder: Path, ends: Callable[[], object], forked: Callable[[], object]) -> None:
        self._ends = ends
        self._forked = forked
        self._lock = threading.RLock()
        self._begun = False
        self._pipe: tuple[int, int] | None = None
        #: The signals that a thread had blocked before it forked.
        self._thread = threading.local()
        atexit.register(self._finish_at_exit)
        self._watch_hard_exits()
        _kill_when_written(folder, self.finish)
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

    def _finish_at_exit(self) -> None:
        with suppress(KeyboardInterrupt):  # the program has ended
            self.finish()

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
        self._thread.blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM} if self._pipe else ())

    def _after_in_parent(self) -> None:
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
        self._after_in_parent()
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


def _kill_when_written(folder: Path, finish: Callable[[], object]) -> None:
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

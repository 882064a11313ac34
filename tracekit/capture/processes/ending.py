"""Notices that this process ends, however it ends, and that it forks.

Python's exit, ``os._exit`` (as workers of multiprocessing end), and SIGTERM, where the program leaves it as it is and
records in its main thread. SIGKILL and crashes give no notice.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import threading
from contextlib import contextmanager, suppress
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

_WAITING = (signal.SIGTERM, signal.SIGINT)


class _Thread(threading.local):
    """The signals that a thread had blocked before it forked."""

    blocked: Collection[int] = ()


class Ending:
    """Calls back once before the process ends, and in every process that it forks."""

    def __init__(self, ends: Callable[[], object], forked: Callable[[], object]) -> None:
        """Begins to watch.

        Args:
            ends: Called before the process ends, once; never at the same time on two threads.
            forked: Called in every forked process, which is watched too.
        """
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
        signal.signal(signal.SIGTERM, self._terminated)
        self._wait_beside()

    def _watch_hard_exits(self) -> None:
        leave = os._exit

        def finish_and_leave(status: int) -> NoReturn:
            try:
                self.finish()
            finally:
                leave(status)

        put_in_os(finish_and_leave, leave)

    def _terminated(self, *_signal: object) -> None:
        self._terminate()

    def _terminate(self) -> None:
        self.finish()
        # Python's own function works in the main thread alone.
        ctypes.CDLL(None).signal(int(signal.SIGTERM), None)
        os.kill(os.getpid(), signal.SIGTERM)

    def _wait_beside(self) -> None:
        """Another thread waits for the signal, too: the main thread may never come back from a call into C."""
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
                if number[0] == signal.SIGTERM and signal.getsignal(signal.SIGTERM) == self._terminated:
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
            if signal.getsignal(signal.SIGTERM) == self._terminated:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, self._thread.blocked)
        self._forked()


def put_in_os(function: Callable[..., Any], original: Callable[..., Any]) -> None:
    """Replaces a function of ``os``. Like the original, it can be pickled: it goes by the name that it has there."""
    update_wrapper(function, original)
    function.__module__ = os.__name__
    setattr(os, original.__name__, function)


@contextmanager
def _signals_later() -> Iterator[None]:
    """Signals that would interrupt the block are sent again after it."""
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

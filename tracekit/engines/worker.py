"""What runs in a process of this machine that does tasks for another one, which it does not outlive."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from tracekit.arrays.kept_memory import keep_memory
from tracekit.arrays.without_pandas import without_pandas

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from tracekit.engines.base import Result, Share

#: How long a stopped process may take to remove what it has begun.
PATIENCE_S = 5
#: The least progress that is told.
_STEP = 0.01


class _State:
    """What a signal has to know about this process."""

    telling: Connection | None = None
    busy: bool = False


def prepare(alive: Connection, telling: Connection, collections: tuple[int, int, int]) -> None:
    """Makes this process one that does tasks.

    Args:
        alive: Closed at its other end when the process that gives tasks is gone.
        telling: Takes this process's id, then of each task its beginning, the shares of it that are done, and its end.
        collections: How seldom garbage is collected, as ``gc.get_threshold`` tells in the process that gives tasks.
    """
    # Ctrl-C in a terminal, and its end, reach only the process that gives the tasks, which then ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _stopped)
    if hasattr(os, "setsid"):  # not on Windows
        os.setsid()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
    _State.telling = telling
    threading.Thread(target=_end_with, args=(alive,), daemon=True).start()
    telling.send(("pid", os.getpid()))
    gc.set_threshold(*collections)
    # Nothing but tasks runs here, so memory is theirs alone.
    keep_memory()
    without_pandas()


def done(function: Callable[[Share], Result]) -> Result:
    """Does a task."""
    telling = _Telling()
    telling.send("begun", 0.0)
    _State.busy = True
    try:
        return function(telling.share)
    except SystemExit:
        os._exit(1)  # it was stopped, and has removed what it had begun
    finally:
        _State.busy = False
        telling.send("ended", 1.0)


class _Telling:
    """Tells of one task, from any of its threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0.0

    def share(self, share: float) -> None:
        """Tells which share is done, where that has grown."""
        with self._lock:
            if share >= self._last + _STEP or self._last < share == 1:
                self._last = share
                self.send("share", share)

    def send(self, what: str, number: float) -> None:
        """Tells something; nobody hears it when the process that gave the task is gone."""
        with suppress(OSError):
            if _State.telling is not None:
                _State.telling.send((what, number))


def _stopped(*_: object) -> None:
    """Ends this process without a word: where it is just closing a connection, SQLAlchemy would log a traceback."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    if not _State.busy:
        os._exit(1)
    sys.exit(1)


def _end_with(alive: Connection) -> NoReturn:
    """Ends this process when the one that gives tasks is gone."""
    with suppress(EOFError, OSError):
        alive.recv_bytes()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(PATIENCE_S)
    os._exit(1)

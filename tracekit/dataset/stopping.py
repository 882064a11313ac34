"""Signals that stop a run: the first one does, later ones wait until everything is put away."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import FrameType

#: Ctrl-C, the polite kill, and a terminal that closes, which Windows does not know.
_STOPPING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


@contextmanager
def stopped_once() -> Iterator[None]:
    """Keeps signals away from the block's end once one has stopped it: people press Ctrl-C twice.

    Only what raises anyway is kept: handlers stay who they are, and in threads other than the main one, to which Python
    brings no signals, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in _STOPPING}
    mine = {number: handler for number, handler in handlers.items() if callable(handler)}

    def first(number: int, frame: FrameType | None) -> None:
        _handle(mine, _ignored)
        mine[signal.Signals(number)](number, frame)
        _handle(mine, first)  # whoever asked for it went on

    _handle(mine, first)
    try:
        yield
    finally:
        for number, handler in mine.items():
            signal.signal(number, handler)


def _handle(numbers: Iterable[signal.Signals], handler: Callable[[int, FrameType | None], None]) -> None:
    for number in numbers:
        signal.signal(number, handler)


def _ignored(_number: int, _frame: FrameType | None) -> None:
    pass

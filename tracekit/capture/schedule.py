"""When recording begins and ends: after the warm-up, and when enough iterations were recorded."""

from __future__ import annotations

from typing import Protocol


class Window(Protocol):
    """What is recorded lies between its opening and its closing."""

    def open(self) -> None:
        """Begins to record; opened anew, it drops what it held if it can."""

    def close(self) -> None:
        """Ends it, if it is open."""


class Schedule:
    """Opens a window after some iterations and closes it after some more.

    Attributes:
        begun: Iterations that have begun.
        opened: Whether the window was opened.
    """

    def __init__(self, window: Window, warmup: int = 0, steps: int | None = None) -> None:
        self.begun = 0
        self.opened = False
        self._window = window
        self._warmup = warmup
        self._last = None if steps is None else warmup + steps
        self._by: object = None

    def begins(self, by: object) -> None:
        """An iteration begins. Of several that announce iterations, the first alone counts them.

        Args:
            by: Who says so.
        """
        if self._by is None:
            self._by = by
        if self._by is not by:
            return
        self.begun += 1
        if self._last is not None and self.begun > self._last:
            self._window.close()
        elif self.begun > self._warmup and not self.opened:
            self.opened = True
            self._window.open()

    def taken_over(self, by: object) -> None:
        """Someone who knows better announces iterations from now on."""
        if self._by is not by:
            self._by = by
            self.begun = 0

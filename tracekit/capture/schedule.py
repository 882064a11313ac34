"""When recording begins and ends: after the warm-up, and after enough iterations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


class Window(Protocol):
    """The part of a run that is recorded: from ``open`` to ``close``."""

    def open(self) -> None:
        """Begins to record. Opening it again drops what was recorded before, where the engine can do that."""

    def drop(self) -> None:
        """Stops recording what opening it again would drop. Does nothing where it could not be opened again."""

    def close(self) -> None:
        """Stops recording, if the window is open."""


def attempt(action: Callable[[], object], failure: str, warnings: list[str]) -> None:
    """Runs an action at the end of a window. If it raises, that becomes a warning: the user's run must go on.

    Args:
        action: What to do.
        failure: The warning's text if it raises.
        warnings: Receives the warning.
    """
    try:
        action()
    except Exception as error:  # noqa: BLE001 - whatever it is, the recording so far is safe
        reason = " ".join(str(error).split())
        warnings.append(f"{failure}: {type(error).__name__}: {reason}")


def wait_for_gpu(warnings: list[str]) -> None:
    """Waits until the GPU has finished all submitted work; work that failed becomes a warning here."""
    attempt(_synchronize, "the GPU did not finish the recorded work", warnings)


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class Schedule:
    """Opens a window after some iterations and closes it after some more.

    Attributes:
        begun: Iterations that have begun.
        opened: Whether the window was opened.
        by: Who announces the iterations.
    """

    def __init__(self, window: Window, warmup: int = 0, steps: int | None = None) -> None:
        self._window = window
        self._warmup = warmup
        self._steps = steps
        self.restart()

    def restart(self) -> None:
        """Forgets all iterations, as a forked process does those of its parent."""
        self.begun = 0
        self.opened = False
        self.by: object = None
        self._beyond: int | None = None
        self._closed = False

    def begins(self, by: object) -> None:
        """An iteration begins. If several parts of a program announce iterations, only the first one counts.

        Args:
            by: Who announces it.
        """
        if self.by is None:
            self.by = by
        if self.by is not by:
            return
        self.begun += 1
        if not self.opened and self.begun > self._warmup:
            self.opened, self._closed = True, False
            self._ends_after(self.begun)
            self._window.open()
        elif self._beyond is not None and self.begun >= self._beyond:
            self._closed = True
            self._window.close()

    def taken_over(self, by: object, begun: int = 0) -> None:
        """From now on, only this announcer counts; it knows the iterations better than the earlier one.

        If the window was opened or closed too early because of that, it is opened again.

        Args:
            by: Who announces them.
            begun: How many of its iterations have begun.
        """
        if self.by is by:
            return
        self.by = by
        self.begun = begun
        self._open_again()
        self._ends_after(self._warmup + 1)

    def goes_on(self) -> None:
        """The iteration that began last is still the one before: its announcer did not know all that is part of it."""
        self.begun -= 1
        self._open_again()

    def _open_again(self) -> None:
        """Forgets a window that was opened or closed too early."""
        if self.opened and (self._closed or 0 < self._warmup >= self.begun):
            self.opened = False
            # Now, as torch's profiler must not be stopped and started inside one range of an optimizer.
            self._window.drop()

    def _ends_after(self, first: int) -> None:
        """The window ends before the iteration that follows the last one to record, counted from ``first``."""
        self._beyond = None if self._steps is None else first + self._steps

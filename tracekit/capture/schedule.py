"""When recording begins and ends: after the warm-up, and when enough iterations were recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


class Window(Protocol):
    """What is recorded lies between its opening and its closing."""

    def open(self) -> None:
        """Begins to record; opened anew, it drops what it held if it can."""

    def close(self) -> None:
        """Ends it, if it is open."""


def tried(action: Callable[[], object], what: str, warnings: list[str]) -> None:
    """Does something at a window's end, in the middle or at the end of a stranger's run: it must not end that run.

    Args:
        action: What is done.
        what: What has failed if it raises.
        warnings: Where that is told.
    """
    try:
        action()
    except Exception as error:  # noqa: BLE001 - whatever it is, what was recorded until here is safe
        said = " ".join(str(error).split())
        warnings.append(f"{what}: {type(error).__name__}: {said}")


def wait_for_gpu(warnings: list[str]) -> None:
    """Waits until the GPU has done what was asked of it; work of the target's that failed is told here."""
    what = "the GPU did not finish what the recording holds"
    tried(_gpu_done, what, warnings)


def _gpu_done() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


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

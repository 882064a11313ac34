"""How long-running work reports its progress; the command line draws a bar from it."""

import threading
from collections.abc import Callable

#: Called from any thread with the name of a stage and the share of it that is done, 0 to 1.
Progress = Callable[[str, float], None]


def no_progress(_stage: str, _share: float, /) -> None:
    """Ignores progress."""


def of_all(stage: str, count: int, progress: Progress) -> Progress:
    """Takes the shares of several tasks by their names, and reports the share of all together as one stage."""
    shares: dict[str, float] = {}
    lock = threading.Lock()
    total = 0.0

    def on_progress(name: str, share: float) -> None:
        nonlocal total
        with lock:
            total += max(0.0, share - shares.get(name, 0.0))  # what comes late is not taken back
            shares[name] = max(share, shares.get(name, 0.0))
            progress(stage, total / count)

    return on_progress

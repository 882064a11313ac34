"""How long-running work reports its progress; the command line draws a bar from it."""

from collections.abc import Callable

#: Called from any thread with the name of a stage and the share of it that is done, 0 to 1.
Progress = Callable[[str, float], None]


def no_progress(_stage: str, _share: float, /) -> None:
    """Ignores progress."""

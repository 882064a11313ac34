"""How long work tells whoever waits what it is doing; the command line draws a bar from it."""

from __future__ import annotations

from collections.abc import Callable

#: Called with the name of the stage and the share of it that is done, 0 to 1, from any thread.
Progress = Callable[[str, float], None]


def silent(_stage: str, _share: float, /) -> None:
    """Tells nobody."""

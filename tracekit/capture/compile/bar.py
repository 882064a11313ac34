"""Tells whoever waits how far compiling is: a bar on a terminal, else nothing."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def _no_step() -> None:
    """Nobody waits."""


@contextmanager
def progress_bar(total: int) -> Iterator[Callable[[], None]]:
    """A bar on stderr while the block runs; what is given is called after each of ``total`` compilations."""
    if not sys.stderr.isatty():
        yield _no_step
        return
    from rich.console import Console  # noqa: PLC0415 - only who sees it pays for it
    from rich.progress import Progress  # noqa: PLC0415

    with Progress(console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("compiling", total=total)
        yield lambda: bars.advance(task)

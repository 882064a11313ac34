"""Shows the progress of compiling: a bar on a terminal, else nothing."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def _no_step() -> None:
    """Does nothing, where there is no bar."""


@contextmanager
def progress_bar(total: int) -> Iterator[Callable[[], None]]:
    """Shows a bar on stderr while the block runs. Yields the function to call after each of ``total`` compilations."""
    if not sys.stderr.isatty():
        yield _no_step
        return
    from rich.console import Console  # noqa: PLC0415 - imported only if the bar is shown
    from rich.progress import Progress  # noqa: PLC0415

    with Progress(console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("compiling", total=total)
        yield lambda: bars.advance(task)

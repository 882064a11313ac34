"""What a command is, and how commands speak."""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from rich.progress import TaskID

    from tracekit.progress import Progress


class Command(Protocol):
    """A module that is one command."""

    NAME: str
    #: One line for the list of commands.
    HELP: str

    def arguments(self, parser: argparse.ArgumentParser, /) -> None:
        """Declares the command's arguments."""

    def run(self, args: argparse.Namespace, /) -> int:
        """Does it; returns the exit code."""


@contextmanager
def progress_bar(*, quiet: bool) -> Iterator[Progress]:
    """A bar on stderr while the block runs, if that is a terminal."""
    from tracekit.progress import silent

    if quiet or not sys.stderr.isatty():
        yield silent
        return
    from rich.console import Console
    from rich.progress import Progress as Bars

    with Bars(console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        lock = threading.Lock()

        def show(stage: str, share: float) -> None:
            with lock:  # reports tell at once how far they are
                if stage not in tasks:
                    tasks[stage] = bars.add_task(stage, total=1.0)
            bars.update(tasks[stage], completed=share)

        yield show

"""What a command is, and how commands tell what they do: a progress bar, and lines on stderr."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from typing_extensions import override

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator

    from rich.console import Console
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
        """Runs the command; returns the exit code."""


def console() -> Console:
    """Prints tables and trees to stdout.

    Where nobody reads stdout any more, rich would exit with code 1. That is no error: ``main`` handles the closed pipe.
    """
    from rich.console import Console

    class Terminal(Console):
        @override
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return Terminal(highlight=False, soft_wrap=False)


def say(lines: Iterable[str]) -> None:
    """Prints lines on stderr and flushes stdout, unless the recorded program has closed them.

    By then the recording is safe, and the exit code is that of the program even if nobody can read the lines.
    """
    try:
        for line in lines:
            print(line, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - until the process ends
    try:
        print(end="", flush=True)
    except (OSError, ValueError):
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - as above


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
            with lock:  # reports parsed side by side call this at once
                if stage not in tasks:
                    tasks[stage] = bars.add_task(stage, total=1.0)
            bars.update(tasks[stage], completed=share)

        yield show

"""The interface of an engine."""

import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tracekit.capture.program import Settings
from tracekit.errors import TracekitError

#: Exit code of what Ctrl-C stopped.
INTERRUPTED = 130


def say_writing() -> None:
    """Tells who pressed Ctrl-C why the program has not ended yet."""
    line = "tracekit: stopped; writing what was recorded, about a minute for 2 million operators (Ctrl-C: drop it)"
    with suppress(OSError, ValueError):  # the program may have closed it
        print(line, file=sys.stderr, flush=True)  # noqa: T201


@dataclass(frozen=True, slots=True)
class Job:
    """What to record, and where to write the report. Only the engine ``torch`` has a Chrome trace."""

    target: str
    arguments: tuple[str, ...]
    settings: Settings
    report: Path
    chrome_trace: Path | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a job. If the target failed, the report holds what was recorded until then.

    Attributes:
        problem: Why the target failed; None if it did not.
        figures: What recording cost and how much it recorded and lost, by name. Times are in nanoseconds.
        warnings: What went wrong without harming the run or the report, one line each.
    """

    exit_code: int = 0
    problem: TracekitError | None = None
    figures: dict[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


class Engine(Protocol):
    """A module that records targets."""

    #: The name by which the user chooses it.
    NAME: str

    def unavailable(self) -> str | None:
        """Why it cannot record on this machine, in one line; None if it can."""

    def record(self, job: Job, /) -> Outcome:
        """Runs the target and writes the report."""

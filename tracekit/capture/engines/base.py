"""The interface of an engine."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tracekit.capture.program import Settings
from tracekit.errors import TracekitError
from tracekit.progress import Progress, no_progress


@dataclass(frozen=True, slots=True)
class Job:
    """What to record, and where to write the report. Only ``torch`` has a Chrome trace and reports progress.

    Attributes:
        ended: Called with the outcome where the target ends this process by ``os._exit``.
    """

    target: str
    arguments: tuple[str, ...]
    settings: Settings
    report: Path
    chrome_trace: Path | None = None
    progress: Progress = no_progress
    ended: "Callable[[Outcome], object]" = bool


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

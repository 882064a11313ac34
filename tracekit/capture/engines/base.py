"""What an engine is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.capture.run import Settings
    from tracekit.errors import TracekitError


@dataclass(frozen=True, slots=True)
class Job:
    """What to record, and where to.

    Attributes:
        target: As the user named it.
        arguments: What a script finds in ``sys.argv``.
        settings: What of it to record.
        report: Where the SQLite file goes.
    """

    target: str
    arguments: tuple[str, ...]
    settings: Settings
    report: Path


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it. The report holds what was recorded, also where the target failed.

    Attributes:
        exit_code: That of the target.
        problem: Why it failed.
        figures: What recording cost, held and lost, by name; times in nanoseconds.
        warnings: What went wrong and harmed neither the run nor what was recorded of it, a line each.
    """

    exit_code: int = 0
    problem: TracekitError | None = None
    figures: dict[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


class Engine(Protocol):
    """A module that records targets."""

    #: How the user chooses it.
    NAME: str

    def unavailable(self) -> str | None:
        """Why it cannot record here, in one line; None if it can."""

    def record(self, job: Job, /) -> Outcome:
        """Runs the target and writes the report.

        Raises:
            CaptureError: If nothing was recorded.
        """

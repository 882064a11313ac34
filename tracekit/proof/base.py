"""What a check is: it records something, and judges the report by what is true."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.proof.machine import Machine

#: A number, a text or nothing, by name: what was counted or measured.
Figures = Mapping[str, int | float | str | None]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a check found.

    Attributes:
        problems: Where the report differs from the truth, a line each.
        figures: What was compared or measured.
        unproved: What could not be shown on this machine, and what is missing for it; None if everything was.
    """

    problems: list[str]
    figures: Figures = field(default_factory=dict)
    unproved: str | None = None


class Check(Protocol):
    """A module that is one check."""

    NAME: str
    #: What holds if it passes, in one line.
    ABOUT: str
    #: How long it may take, in seconds.
    LIMIT_S: int

    def missing(self, machine: Machine, /) -> str | None:
        """What the machine lacks for it to run at all; None if it can run."""

    def record(self, folder: Path, machine: Machine, /) -> None:
        """Runs something and leaves in the folder what came of it.

        Raises:
            TracekitError: If nothing came of it.
        """

    def judge(self, folder: Path, machine: Machine, /) -> Evidence:
        """Compares what is in the folder with the truth.

        Raises:
            TracekitError: If it cannot be read.
        """

"""What a self-test leaves: verdicts and figures as one JSON object, of a shape that stays.

The package's README lists the fields. ``FORMAT`` counts changes that are more than new fields.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tracekit.selftest.machine import Machine
from tracekit.selftest.programs import Program

FORMAT = 1
FILE = "summary.json"
PASSED, FAILED, MISSING = VERDICTS = ("passed", "failed", "missing")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one program; the README documents the fields."""

    name: str
    about: str
    limit_s: int
    verdict: str
    why: str
    problems: tuple[str, ...]
    seconds: float | None = None
    figures: Mapping[str, int | float | str | None] = field(default_factory=dict)
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Summary:
    """The results of all programs; the README documents the fields."""

    complete: bool
    started_utc: str
    seconds: float
    machine: Machine | None
    outcomes: tuple[Outcome, ...]

    @property
    def counts(self) -> dict[str, int]:
        """How many programs have each verdict."""
        counted = Counter(outcome.verdict for outcome in self.outcomes)
        return {verdict: counted[verdict] for verdict in VERDICTS}

    @property
    def exit_code(self) -> int:
        """1 if something failed, otherwise 0."""
        return int(self.counts[FAILED] > 0)

    def as_json(self) -> str:
        """As one JSON object."""
        values = asdict(self)
        checks = values.pop("outcomes")
        return json.dumps({"format": FORMAT, **values, "counts": self.counts, "checks": checks}, indent=2)


def outcome(
    program: Program,
    problems: Sequence[str] = (),
    unproved: str | None = None,
    **more: Any,  # noqa: ANN401 - fields of several types
) -> Outcome:
    """The verdict on a program, with its reason in one line."""
    verdict = FAILED if problems else MISSING if unproved else PASSED
    why = " ".join([*problems, unproved or ""][0].split())
    return Outcome(program.name, program.about, program.limit_s, verdict, why, tuple(problems), **more)


def is_summary(path: Path) -> bool:
    """Whether a file is a summary of this or another format."""
    try:
        values = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(values, dict) and {"format", "machine", "checks"} <= values.keys()

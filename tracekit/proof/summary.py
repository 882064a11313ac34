"""What a proof leaves: verdicts and figures as one JSON object, of a shape that stays.

The room's README lists its fields. ``FORMAT`` counts changes that are more than new fields.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from tracekit.files import whole_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tracekit.proof.base import Check, Figures
    from tracekit.proof.machine import Machine

FORMAT = 1
FILE = "summary.json"
PASSED, FAILED, MISSING = VERDICTS = ("passed", "failed", "missing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one check.

    Attributes:
        name, about, limit_s: As the check says.
        verdict: ``passed``, ``failed``, or ``missing`` where the machine lacks something to show it.
        why: The first problem, or what is missing, in one line; empty if it passed.
        problems: All problems.
        seconds: How long it took; None if it did not run.
        figures: What it compared or measured.
        files: What it left, relative to the proof's folder.
    """

    name: str
    about: str
    limit_s: int
    verdict: str
    why: str = ""
    problems: tuple[str, ...] = ()
    seconds: float | None = None
    figures: Figures = field(default_factory=dict)
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What came of all checks.

    Attributes:
        complete: Whether all of them ran, or were found to be impossible here.
        started_utc: When it began.
        seconds: How long it took.
        machine: What it ran on; None if that could not be found out.
        outcomes: What came of each.
    """

    complete: bool
    started_utc: str
    seconds: float
    machine: Machine | None
    outcomes: Sequence[Outcome]

    @property
    def counts(self) -> dict[str, int]:
        """How many checks have each verdict."""
        counted = Counter(outcome.verdict for outcome in self.outcomes)
        return {verdict: counted[verdict] for verdict in VERDICTS}

    @property
    def exit_code(self) -> int:
        """1 if something failed, otherwise 0."""
        return int(self.counts[FAILED] > 0)

    def as_json(self) -> str:
        """As one JSON object."""
        values: dict[str, Any] = {
            "format": FORMAT,
            "complete": self.complete,
            "started_utc": self.started_utc,
            "seconds": round(self.seconds, 3),
            "machine": None if self.machine is None else asdict(self.machine),
            "counts": self.counts,
            "checks": [asdict(outcome) for outcome in self.outcomes],
        }
        return json.dumps(values, indent=2)


def judged(check: Check, found: Mapping[str, Any], seconds: float) -> Outcome:
    """The outcome of a check that ran to its end."""
    problems, unproved = tuple(found["problems"]), found["unproved"]
    verdict = FAILED if problems else MISSING if unproved else PASSED
    why = problems[0] if problems else unproved or ""
    return outcome(check, verdict, why, problems=problems, seconds=round(seconds, 3), figures=found["figures"])


def outcome(check: Check, verdict: str, why: str, **more: Any) -> Outcome:  # noqa: ANN401 - fields of several types
    """An outcome of a check, with its reason in one line."""
    reason = " ".join(why.split())
    return Outcome(name=check.NAME, about=check.ABOUT, limit_s=check.LIMIT_S, verdict=verdict, why=reason, **more)


def is_summary(path: Path) -> bool:
    """Whether a file is a summary of this or another format."""
    try:
        values = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(values, dict) and {"format", "machine", "checks"} <= values.keys()


def write(folder: Path, text: str, name: str = FILE) -> None:
    """Writes a file of the proof whole."""
    with whole_file(folder / name) as partial:
        partial.write_text(text, "utf-8")

"""What a self-test leaves: the machine, verdicts and figures as one JSON object, of a shape that stays.

The package's README lists the fields. ``FORMAT`` counts changes that are more than new fields.
"""

import json
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

from tracekit.selftest.programs import Program
from tracekit.version import __version__

FORMAT = 1
FILE = "summary.json"
PASSED, FAILED, MISSING = VERDICTS = ("passed", "failed", "missing")
NO_GPU = "no GPU that torch can use"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What there is, None for what is missing or not known; ``nsys_problem`` is why nsys cannot record markers here."""

    tracekit: str = __version__
    python: str = platform.python_version()
    torch: str | None = None
    cuda: str | None = None
    nvtx: str | None = None
    nccl: str | None = None
    driver: str | None = None
    gpus: Sequence[str] = ()
    nsys: str | None = None
    nsys_problem: str | None = "not tried"

    @property
    def engine(self) -> str:
        """The engine that records kernels best here."""
        return "nsys" if self.gpus and self.nsys_problem is None else "torch"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What came of a comparison.

    Attributes:
        problems: Each difference of the report from the truth, a line each.
        figures: What was compared or measured, by name.
        unproved: What could not be shown on this machine, and what is missing for it; None if everything was.
    """

    problems: list[str]
    figures: dict[str, int | float | str | None] = field(default_factory=dict)
    unproved: str | None = None


class Outcome(NamedTuple):
    """The result of one program; the README documents the fields."""

    name: str
    about: str
    limit_s: int
    verdict: str
    why: str
    problems: Sequence[str]
    figures: Mapping[str, int | float | str | None]
    seconds: float | None
    files: Sequence[str]


def outcome(program: Program, evidence: Evidence, seconds: float | None = None, files: Sequence[str] = ()) -> Outcome:
    """The verdict on a program, with its reason in one line."""
    verdict = FAILED if evidence.problems else MISSING if evidence.unproved else PASSED
    why = " ".join([*evidence.problems, evidence.unproved or ""][0].split())
    about = program.name, program.about, program.limit_s
    return Outcome(*about, verdict, why, evidence.problems, evidence.figures, seconds, files)


class Summary(NamedTuple):
    """The results of all programs."""

    complete: bool
    started_utc: str
    seconds: float
    machine: Machine
    outcomes: Sequence[Outcome]

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
        values = self._asdict() | {"machine": asdict(self.machine)}
        checks = [outcome._asdict() for outcome in values.pop("outcomes")]
        return json.dumps({"format": FORMAT, **values, "counts": self.counts, "checks": checks}, indent=2)

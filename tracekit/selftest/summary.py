"""What a self-test leaves: verdicts and figures as one JSON object, of a shape that stays, and as a page of Markdown.

The package's README lists the fields. ``FORMAT`` counts changes that are more than new fields.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tracekit.selftest.machine import Machine
from tracekit.selftest.programs import Program

FORMAT = 1
FILE, PAGE = "summary.json", "summary.md"
PASSED, FAILED, MISSING = VERDICTS = ("passed", "failed", "missing")
_SIGNS = {PASSED: "✅ passed", FAILED: "❌ failed", MISSING: "⚪ missing"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one program; the README says what the fields are."""

    name: str
    about: str
    limit_s: int
    verdict: str
    why: str = ""
    problems: tuple[str, ...] = ()
    seconds: float | None = None
    figures: Mapping[str, int | float | str | None] = field(default_factory=dict)
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Summary:
    """What came of all programs; the README says what the fields are."""

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


def outcome(program: Program, verdict: str, why: str, **more: Any) -> Outcome:  # noqa: ANN401 - fields of several types
    """An outcome of a program, with its reason in one line."""
    return Outcome(
        name=program.name,
        about=program.about,
        limit_s=program.limit_s,
        verdict=verdict,
        why=" ".join(why.split()),
        **more,
    )


def is_summary(path: Path) -> bool:
    """Whether a file is a summary of this or another format."""
    try:
        values = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(values, dict) and {"format", "machine", "checks"} <= values.keys()


def page(summary: Summary) -> str:
    """Verdicts first, then what was compared, then the machine: to read and to paste into an issue."""
    counts = ", ".join(f"{number} {verdict}" for verdict, number in summary.counts.items())
    verdicts = (
        [one.name, _SIGNS[one.verdict], one.why, "" if one.seconds is None else f"{one.seconds:.1f}"]
        for one in summary.outcomes
    )
    lines = [
        "# Does tracekit work here?",
        "",
        f"{counts}, in {summary.seconds:.0f} s. {_where(summary.machine)}",
        *([] if summary.complete else ["", "**It was stopped before all checks had run.**"]),
        "",
        *_table(["check", "verdict", "why", "seconds"], verdicts),
        *(line for one in summary.outcomes for line in _details(one)),
        "",
        "## Machine",
        "",
        *_table(["what", "found"], _facts(summary.machine)),
    ]
    return "\n".join(lines) + "\n"


def _where(machine: Machine | None) -> str:
    if machine is None:
        return "The machine could not be examined."
    if machine.gpus:
        return f"Recorded on {', '.join(machine.gpus)}."
    return "Without a GPU: work is operators on the CPU, and what is CUDA's own is missing."


def _details(one: Outcome) -> list[str]:
    figures = [f"* {name}: {'not known' if value is None else value}" for name, value in one.figures.items()]
    lines = [*(f"* {problem}" for problem in one.problems), *figures]
    return ["", f"## {one.name}", "", f"{one.about[0].upper()}{one.about[1:]}.", *([""] if lines else []), *lines]


def _facts(machine: Machine | None) -> list[list[str]]:
    facts = {} if machine is None else asdict(machine)
    return [[name, ", ".join(value) if name == "gpus" else value] for name, value in facts.items() if value]


def _table(names: list[str], rows: Iterable[list[str]]) -> list[str]:
    cells = [names, ["---"] * len(names), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return [f"| {' | '.join(row)} |" for row in cells]

"""The page of a proof, to read and to paste into an issue: Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.proof.summary import FAILED, MISSING, PASSED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tracekit.proof.machine import Machine
    from tracekit.proof.summary import Outcome, Summary

FILE = "summary.md"
#: Larger figures are shown without a fraction.
_WHOLE = 1_000
_SIGNS = {PASSED: "✅ passed", FAILED: "❌ failed", MISSING: "⚪ missing"}


def page(summary: Summary) -> str:
    """Verdicts first, then what each check compared, then the machine."""
    counts = ", ".join(f"{number} {verdict}" for verdict, number in summary.counts.items())
    lines = [
        "# Does tracekit work here?",
        "",
        f"{counts}, in {summary.seconds:.0f} s. {_on(summary.machine)}",
        *([] if summary.complete else ["", "**It was stopped before all checks had run.**"]),
        "",
        *_table(["check", "verdict", "why", "seconds"], map(_verdict, summary.outcomes)),
        *(line for one in summary.outcomes for line in _details(one)),
        "",
        "## Machine",
        "",
        *_table(["what", "found"], _facts(summary.machine)),
    ]
    return "\n".join(lines) + "\n"


def _on(machine: Machine | None) -> str:
    if machine is None:
        return "The machine could not be examined."
    if machine.gpus:
        return f"Recorded on {', '.join(machine.gpus)}."
    return "Without a GPU: work is operators on the CPU, and what is CUDA's own is missing."


def _verdict(one: Outcome) -> list[str]:
    return [one.name, _SIGNS[one.verdict], one.why, "" if one.seconds is None else f"{one.seconds:.1f}"]


def _details(one: Outcome) -> Iterator[str]:
    yield from ("", f"## {one.name}", "", f"{one.about[0].upper()}{one.about[1:]}.")
    if one.problems:
        yield from ("", *(f"* {problem}" for problem in one.problems))
    if one.figures:
        yield from ("", *_table(["figure", "value"], ([name, _value(value)] for name, value in one.figures.items())))
    if one.files:
        yield from ("", f"Files: {', '.join(f'`{name}`' for name in one.files)}")


def _value(value: float | str | None) -> str:
    if value is None or isinstance(value, str):
        return value or "not known"
    return f"{value:,.0f}" if float(value).is_integer() or abs(value) >= _WHOLE else f"{value:,.4g}"


def _facts(machine: Machine | None) -> Iterator[list[str]]:
    if machine is None:
        return
    yield ["GPU", ", ".join(machine.gpus) or "none"]
    for name in ("driver", "cuda", "torch", "nccl", "nvtx", "nsys", "python", "tracekit"):
        yield [name, getattr(machine, name) or "none"]
    if machine.nsys_problem:
        yield ["nsys cannot be used", machine.nsys_problem]


def _table(names: list[str], rows: Iterable[list[str]]) -> list[str]:
    cells = [names, ["---"] * len(names), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return [f"| {' | '.join(row)} |" for row in cells]

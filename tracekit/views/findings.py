"""Findings in the terminal: what each would save, what to do, and the command that shows its evidence."""

from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from tracekit.arrays.types import Columns
from tracekit.dataset.opening import Dataset
from tracekit.errors import plain
from tracekit.views.formatting import duration, percent, records

#: How many the summary and the page show.
FIRST = 5
_INDENT = 3


def first(dataset: Dataset) -> list[dict[str, Any]]:
    """The first findings, and the notes."""
    from tracekit.steptime import findings  # noqa: PLC0415 - pandas waits until it is needed

    return [row for row in records(findings.columns(dataset)) if row["rank"] <= FIRST or _is_note(row)]


def as_text(answer: Columns, what: str) -> RenderableType:
    """A paragraph for each finding; ``what`` they save of, as :func:`tracekit.views.budget.window` calls it."""
    parts: list[RenderableType] = []
    for row in records(answer):
        family = (row["family"], "bold")
        if _is_note(row):
            parts.append(Padding(Text.assemble(family, f": {row['advice']}"), (0, 0, 1, 0), expand=False))
            continue
        where, spared = plain(row["module"] or "(outside)"), duration(row["saving_ns"])
        saving = f"  {where}  at most {spared} of the {what}, "
        share = (percent(row["saving_share"]), "bold")
        parts.append(Text.assemble(f"{row['rank']:<{_INDENT}}", family, saving, share))
        parts.append(Padding(Text(row["advice"]), (0, 0, 0, _INDENT), expand=False))
        # On one line, so that it can be copied; within a padding it would be cut.
        command = Text(f"{'':{_INDENT}}{row['evidence']['command']}\n", "dim", no_wrap=True, overflow="ignore")
        parts.append(command)
    return Group(*parts)


def _is_note(row: dict[str, Any]) -> bool:
    """Whether a row is no finding: what the recorder cost, or what no finding explains."""
    return not row["saving_ns"]


def lines(rows: list[dict[str, Any]], what: str, command: str, width: int) -> list[Text]:
    """Notes and ``Findings (the most each saves of the step): host_wait …``, with the command if that fits."""
    title = f"Findings (the most each saves of the {what}): "
    names = [
        f"{row['family']} {plain(row['module'] or '(outside)')} {percent(row['saving_share'])}"
        for row in rows
        if not _is_note(row)
    ]
    texts = [Text.assemble((f"{row['family']}: ", "bold"), row["advice"]) for row in rows if _is_note(row)]
    if names:
        found = Text.assemble((title, "bold"), f"{', '.join(names)}: ")
        whole = Text(command, no_wrap=True, overflow="ignore")
        fits = found.cell_len + whole.cell_len <= width
        at = int(not rows[0]["rank"])
        texts[at:at] = [found + whole] if fits else [found, whole]
    return texts
